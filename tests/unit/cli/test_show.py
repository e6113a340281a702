"""``show N``: whose program each run ran, and no promise of what is not there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from tests.unit.cli.conftest import SHA, START, Command

pytestmark = pytest.mark.usefixtures("repository")


@pytest.fixture
def compared(repository: Path) -> int:
    """Number of an experiment beside which the incumbent, experiment 1, was run on the same seed."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8")
        e = store.open_experiment(session.id, parent=SHA, segment=0, at=START)
        proposal = Proposal({"train.py": "x = 9\n"}, "it helps", "search", description="x 1 → 9")
        store.record_proposal(session.id, e.number, proposal, diff="--- a/train.py\n", code_hash="compared")
        store.record_commit(session.id, e.number, f"{e.number:040x}")
        for value, of in ((0.97, None), (0.98, 1)):
            run = store.open_run(session.id, e.number, 700, START, of=of)
            measured = Measurement(Label.NONE, value, {"val_bpb": value})
            store.close_run(run.id, measured, None, START + timedelta(minutes=5), last=of is not None)
        return e.number


@pytest.fixture
def refused(repository: Path) -> int:
    """Number of an experiment whose policy failed, so that nothing was committed."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8")
        e = store.open_experiment(session.id, parent=SHA, segment=0, at=START)
        asi = ASI(extra={"refused": "error"})
        failed = Proposal({}, "", "command", description="the command ended with exit code 3", asi=asi)
        store.record_proposal(session.id, e.number, failed, diff="", code_hash="none")
        decision = Decision(Status.CRASH, Label.ERROR, reason="the command ended with exit code 3")
        store.record_decision(session.id, e.number, decision, asi, START, incumbent=None)
        return e.number


def test_runs_of_the_incumbent_are_told_from_those_of_the_experiment(compared: int, command: Command) -> None:
    lines = command("show", str(compared)).out.splitlines()
    head = next(i for i, line in enumerate(lines) if "seed" in line and "program" in line)
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["700", "0.970000"], ["700", "0.980000"]]
    assert "its own" in lines[head + 1]
    assert "incumbent #1" in lines[head + 2]


def test_where_nothing_was_run_beside_it_there_is_no_column_for_that(command: Command) -> None:
    assert "program" not in command("show", "0").out


def test_a_proposal_that_was_never_committed_has_no_diff_to_look_at(refused: int, command: Command) -> None:
    out = command("show", str(refused)).out
    assert "--diff" not in out
    assert "refused" not in out
    assert "exit code 3" in out


def test_what_was_changed_is_one_command_away(command: Command) -> None:
    assert "autoresearchd show 2 --diff   shows what it changed" in command("show", "2").out
