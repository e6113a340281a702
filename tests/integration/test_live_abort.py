"""The benchmark that replays recorded sessions: what is told about early abort can be had again from the sessions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import Label
from tests.fakes.bench import Bench as MemoryBench
from tests.integration.bench import TASK, Bench
from tests.unit.loop.test_early_abort import VALUES, by_label, made, run

COMPLETE = TASK + "curve: {abort: false}\n"


@pytest.fixture(scope="module")
def live_abort() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "live_abort.py"
    spec = importlib.util.spec_from_file_location("live_abort", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["live_abort"] = module
    spec.loader.exec_module(module)
    return module


def recorded(folder: Path, task: str = COMPLETE) -> MemoryBench:
    bench = made(folder, VALUES, task, Bench)
    run(bench, len(VALUES))
    return bench


def test_a_recorded_session_tells_what_would_have_been_ended(tmp_path: Path, live_abort: ModuleType) -> None:
    tally = live_abort.replay(recorded(tmp_path).store)
    assert (tally.runs, tally.ended, tally.lost) == (len(VALUES), 1, 0)
    assert tally.improved == len(VALUES) - 1
    assert len(VALUES) - 1 < tally.spent < len(VALUES) - 0.3


def test_what_was_ended_live_has_no_end_to_judge_by_and_is_left_out(tmp_path: Path, live_abort: ModuleType) -> None:
    bench = recorded(tmp_path, TASK)
    assert len(by_label(bench, Label.ABORTED_EARLY)) == 1
    assert live_abort.replay(bench.store).runs == len(VALUES) - 1


def test_any_number_of_sessions_is_replayed_and_summed(
    tmp_path: Path, live_abort: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [recorded(tmp_path / name).root for name in ("one", "two")]
    assert live_abort.main(["--replay", *map(str, folders)]) == 0
    one, two, both = capsys.readouterr().out.splitlines()
    assert one.startswith(f"{folders[0]}: 1 of {len(VALUES)} ended, 0 of {len(VALUES) - 1} improvements")
    assert two.split(": ", 1)[1] == one.split(": ", 1)[1]
    assert both.startswith(f"all: 2 of {2 * len(VALUES)} ended, 0 of {2 * (len(VALUES) - 1)} improvements")
    assert "(95% limit 13%)" in both


def test_a_folder_without_a_session_is_named(tmp_path: Path, live_abort: ModuleType) -> None:
    bench = Bench(tmp_path)
    bench.close()
    (bench.state / "state.db").unlink()
    with pytest.raises(UsageError, match="no session in"):
        live_abort.main(["--replay", str(bench.root)])


def test_no_improvement_seen_is_no_promise_kept(live_abort: ModuleType) -> None:
    assert "0 of 0 improvements by more than 2σ lost (95% limit 100%), G 2.00" in str(live_abort.Tally(4, 4, 0, 0, 2.0))
