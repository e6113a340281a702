"""``show N``: whose program each run ran, what early abort saw, and no promise of what is not there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from autoresearchd.cli.commands.experiment_commands import look_lines
from autoresearchd.cli.terminal_text import Paint, measured
from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Proposal
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


def test_runs_of_the_incumbent_are_told_from_those_of_the_experiment(compared: int, command: Command) -> None:
    lines = command("show", str(compared)).out.splitlines()
    head = next(i for i, line in enumerate(lines) if "seed" in line and "program" in line)
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["700", "0.97000"], ["700", "0.98000"]]
    assert "its own" in lines[head + 1]
    assert "incumbent #1" in lines[head + 2]


@pytest.mark.parametrize(
    ("value", "sigma", "shown"),
    [
        (2.3456789, 0.0123, "2.346"),
        (2.3456789, None, "2.3457"),
        (0.000012345678, None, "0.000012346"),
        (0.0, 0.1, "0"),
        (17.0, None, "17"),
        (-0.5, None, "-0.50000"),
        (1e300, 1e-300, "1e+300"),
        (float("nan"), None, "—"),
    ],
)
def test_a_figure_is_never_shown_as_nothing_nor_in_digits_that_say_nothing(
    value: float | None, sigma: float | None, shown: str
) -> None:
    assert measured(value, sigma) == shown


def test_a_run_that_was_ended_says_when_and_why() -> None:
    looks = [
        {"progress": 0.2, "abort": False},
        {"progress": 0.35, "abort": True, "sentence": "at 35%: it cannot drop."},
    ]
    seen = {"forecast": 2.1, "low": 2.0, "high": 2.2, "bar": 2.05}
    _, verdict, _, *rows = look_lines([look | seen for look in looks], Paint(enabled=False))
    assert verdict == "  early abort  ended at 35%: it cannot drop."
    assert rows[1].split() == ["35%", "2.100000", "2", "2.200000", "2.050000"]
