"""A status in a narrow terminal: no line is cut by its edge, and no word is broken, whatever the session does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.cli.terminal_text import Paint, width, wrap
from autoresearchd.domain.labels import Outcome, SessionState
from autoresearchd.domain.proposal import Proposal
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import SHA, Command, add_confirmation

STYLE = re.compile(r"\x1b\[[0-9;]*m")
REASON = "less than 200 MB are free on the disk of /home/somebody/a/long/path/to/project; free some space"
STATES = {
    "stopped": (None, ""), "crashed": (SessionState.RUNNING, ""), "running": (SessionState.RUNNING, ""),
    "setting up": (SessionState.RUNNING, "set-up: python prepare.py --all --with words --and more of them"),
    "paused": (SessionState.PAUSED, ""), "backing off": (SessionState.BACKING_OFF, REASON),
}  # fmt: skip


def write(root: Path, state: SessionState | None, reason: str, *, runs: bool) -> None:
    add_confirmation(root, Outcome.CONFIRMED)
    now = datetime.now(UTC)
    with SqlStore.open(f"sqlite:///{layout.database_path(root)}") as store:
        session = store.session("mar8").id
        if runs:
            e = store.open_experiment(session, parent=SHA, segment=0, at=now - timedelta(seconds=80))
            words = "a rather long description of what this experiment changes in the program"
            proposal = Proposal({"train.py": "x = 2\n"}, "h", "search", description=words)
            store.record_proposal(session, e.number, proposal, diff="", code_hash="h")
            store.record_commit(session, e.number, "9" * 40)
            run = store.open_run(session, e.number, 5, now - timedelta(seconds=70))
            store.record_look(run.id, {"progress": 0.3, "forecast": 0.9812, "probability": 0.12})
        if state is not None:
            store.set_state(session, state, now, pid=os.getpid(), reason=reason)


@pytest.mark.parametrize("name", STATES)
def test_each_state_fits_its_terminal(
    name: str, repository: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, reason = STATES[name]
    write(repository, state, reason, runs=state is not None and name != "setting up")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with SessionLock(layout.lock_path(repository, "mar8"), "mar8") as lock:
        lock.ready()
        if name in ("stopped", "crashed"):
            lock.__exit__()

        def shown(columns: int) -> list[str]:
            monkeypatch.setenv("COLUMNS", str(columns))
            return STYLE.sub("", command("status").out).splitlines()

        whole = {word for line in shown(1000) for word in line.split()}
        for columns in (60, 80, 200):
            lines = shown(columns)
            assert lines[0].startswith("● autoresearch · mar8")
            for line in lines:
                assert width(line) <= columns, f"{width(line)} columns: {line}"
                cut = line.endswith("…")
                for word in line.split()[: -1 if cut else None]:
                    assert word in whole or (not word.strip("0123456789ms(),")), f"a broken word: {word!r} in {line!r}"


painted: Callable[..., str] = Paint(enabled=True)
parts = st.tuples(st.text("ab漢é·", min_size=1, max_size=12), st.sampled_from(["", "dim", "green"]))


@given(st.lists(parts, min_size=1), st.sampled_from([" ", "  ", " · "]), st.integers(30, 60))
def test_wrapping_loses_no_word_and_no_colour(words: list[tuple[str, str]], between: str, columns: int) -> None:
    line = between.join(painted(text, style) if style else text for text, style in words)
    lines = wrap(line, columns, 4)
    assert [w for one in lines for w in STYLE.sub("", one).split()] == STYLE.sub("", line).split()
    for one in lines:
        assert width(STYLE.sub("", one)) <= columns
        codes = STYLE.findall(one)
        assert codes[::2].count("\x1b[0m") == 0 and codes[1::2].count("\x1b[0m") == len(codes) / 2, (
            "it ends as it began"
        )
