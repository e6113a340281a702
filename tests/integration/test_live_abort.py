"""The benchmark that replays recorded sessions: what is told about early abort can be had again from the sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import live_abort
from tests.integration.bench import TASK, Bench
from tests.unit.loop.test_early_abort import VALUES, made, run

ALL = len(VALUES)


def test_recorded_sessions_tell_what_would_have_been_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benches = [made(tmp_path / name, VALUES, TASK + "curve: {abort: false}\n", Bench) for name in ("one", "two")]
    for bench in benches:
        run(bench, ALL)
    tally = live_abort.replay(benches[0].store)
    assert (tally.runs, tally.ended, tally.lost, tally.improved) == (ALL, 1, 0, ALL - 1)
    assert ALL - 1 < tally.spent < ALL - 0.3
    assert live_abort.main(["--replay", *(str(bench.root) for bench in benches)]) == 0
    one, two, both = capsys.readouterr().out.splitlines()
    assert one.startswith(f"{benches[0].root}: 1 of {ALL} ended, 0 of {ALL - 1} improvements")
    assert two.split(": ", 1)[1] == one.split(": ", 1)[1]
    assert both.startswith(f"all: 2 of {2 * ALL} ended, 0 of {2 * (ALL - 1)} improvements")
    assert "(95% limit 13%)" in both
