"""``show N``: whose program each run ran, what early abort saw, and no promise of what is not there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.cli.commands.experiment_commands import look_lines
from autoresearchd.cli.terminal_text import Paint, measured
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


REASON = "val_bpb 0.96 is 0.04 better than experiment 1 (± 0.02): kept."


def decided(repository: Path, *, sigma: float | None, asi: ASI | None = None) -> int:
    """Number of an experiment that was kept for a reason."""
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8")
        e = store.open_experiment(session.id, parent=SHA, segment=0, at=START)
        proposal = Proposal({"train.py": "x = 9\n"}, "it helps", "search", description="x 1 → 9")
        store.record_proposal(session.id, e.number, proposal, diff="", code_hash=f"decided-{e.number}")
        store.record_commit(session.id, e.number, f"{e.number:040x}")
        run = store.open_run(session.id, e.number, 700, START)
        result = Measurement(Label.NONE, 0.9612345, {"val_bpb": 0.9612345})
        store.close_run(run.id, result, None, START + timedelta(minutes=4), last=True)
        decision = Decision(Status.KEEP, Label.NONE, 0.9612345, 0.0366667, sigma=sigma, reason=REASON)
        at = START + timedelta(minutes=5)
        store.record_decision(session.id, e.number, decision, asi or ASI(), at, incumbent=f"{e.number:040x}")
        return e.number


def test_runs_of_the_incumbent_are_told_from_those_of_the_experiment(compared: int, command: Command) -> None:
    lines = command("show", str(compared)).out.splitlines()
    head = next(i for i, line in enumerate(lines) if "seed" in line and "program" in line)
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["700", "0.97000"], ["700", "0.98000"]]
    assert "its own" in lines[head + 1]
    assert "incumbent #1" in lines[head + 2]


def test_a_program_that_failed_twice_beside_it_is_not_taken_for_what_it_was_compared_with(
    repository: Path, command: Command
) -> None:
    with SqlStore.open(f"sqlite:///{layout.database_path(repository)}") as store:
        session = store.session("mar8")
        e = store.open_experiment(session.id, parent=SHA, segment=0, at=START)
        store.record_proposal(session.id, e.number, Proposal({}, "it helps", "search"), diff="", code_hash="fell")
        store.record_commit(session.id, e.number, f"{e.number:040x}")
        for value, of in ((0.97, None), (None, 3), (None, 3), (0.98, 1)):
            run = store.open_run(session.id, e.number, 700, START, of=of)
            measured = Measurement(Label.NONE if value else Label.ERROR, value)
            store.close_run(run.id, measured, None, START + timedelta(minutes=5), last=of == 1)
    out = command("show", str(e.number)).out
    assert out.count("failed #3") == 2 and "incumbent #1" in out and "baseline" not in out


def test_a_proposal_that_was_never_committed_has_no_diff_to_look_at(refused: int, command: Command) -> None:
    out = command("show", str(refused)).out
    assert "--diff" not in out
    assert "refused" not in out
    assert "exit code 3" in out


def test_a_reason_is_told_once(repository: Path, command: Command) -> None:
    number = decided(
        repository, sigma=None, asi=ASI(result=f"val_bpb: {REASON}", extra={"failure": "0.96", "seen": "x"})
    )
    out = command("show", str(number)).out
    assert out.count(REASON) == 1
    assert "failure" not in out and "seen" in out


def test_why_there_is_no_proposal_is_told_once(refused: int, command: Command) -> None:
    """Its failure is what such an experiment is described by: it stood in the headline and below it again."""
    out = command("show", str(refused)).out
    assert out.count("the command ended with exit code 3") == 1, out
    assert out.splitlines()[0].endswith(f"#{refused} crash (error)")


def test_what_a_policy_says_of_its_edit_stands_in_the_column_and_in_words(repository: Path, command: Command) -> None:
    said = ASI(arch_change="DEPTH 8 → 12", next_action_hint="try it with warm-up", extra={"seen_before": "no"})
    lines = command("show", str(decided(repository, sigma=None, asi=said))).out.splitlines()
    assert {"  change      DEPTH 8 → 12", "  next        try it with warm-up", "  seen before no"} <= set(lines)


def test_figures_have_the_digits_that_the_noise_leaves_a_meaning_to(repository: Path, command: Command) -> None:
    shown = command("show", str(decided(repository, sigma=0.0123))).out
    assert "0.961  +0.037 against" in shown
    shown = command("show", str(decided(repository, sigma=None))).out
    assert "0.96123  +0.036667 against" in shown


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


PLAIN = Paint(enabled=False)


def look(progress: float, *, abort: bool, sentence: str) -> dict[str, Any]:
    drawn = {"forecast": 2.1, "low": 2.0, "high": 2.2, "bar": 2.05}
    return {"progress": progress, "abort": abort, "sentence": sentence, **drawn}


def test_a_run_that_was_let_go_on_is_not_told_as_ended() -> None:
    seen = look(0.92, abort=False, sentence="at 92% of the budget: the loss can still drop to the bar.")
    [_, first, *chart] = look_lines([seen], PLAIN)
    assert first == (
        "  early abort  let go on; the last look, at 92% of the budget: the loss can still drop to the bar."
    )
    assert chart


def test_a_run_that_was_ended_says_when_and_why() -> None:
    before = look(0.2, abort=False, sentence="at 20% of the budget: the loss can still drop to the bar.")
    last = look(0.35, abort=True, sentence="at 35% of the budget: the loss cannot drop to the bar any more.")
    assert look_lines([before, last], PLAIN)[1] == (
        "  early abort  ended at 35% of the budget: the loss cannot drop to the bar any more."
    )


def test_without_a_look_nothing_is_said_and_without_a_sentence_no_more_than_is_known() -> None:
    assert look_lines([], PLAIN) == []
    assert look_lines([{}], PLAIN) == ["", "  early abort  let go on"]
