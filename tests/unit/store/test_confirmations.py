"""Confirmations in the journal: what is on the branch is told from what is only believed, also after a kill."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from autoresearchd.domain.confirmation import Confirmation, Verdict
from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Measurement, Session
from autoresearchd.domain.labels import Label, Outcome, Phase, Status
from autoresearchd.store.repository import SqlStore
from tests.unit.store.driver import AT, PARENT, Driver, commit_of, execute, result

BETTER = Verdict(Outcome.CONFIRMED, 0.5, 0.1, 0.999, "better by 0.5 ± 0.1 in 2 pairs")
WORSE = Verdict(Outcome.FELL, -0.1, 0.1, 0.2, "worse by 0.1 ± 0.1 in 2 pairs")
UNKNOWN = Verdict(Outcome.UNDECIDED, None, None, None, "the confirmed program failed twice")


@pytest.fixture
def chain(lab: Driver) -> Driver:
    """A baseline, and on it a chain of two keeps with a discard between them."""
    lab.baseline((1.0,))
    for status, value in ((Status.KEEP, 0.9), (Status.DISCARD, 1.2), (Status.KEEP, 0.8)):
        lab.decided(status, value)
    return lab


def confirmed(lab: Driver) -> list[bool | None]:
    return [e.confirmed for e in lab.store.experiments(lab.id)]


def places(lab: Driver) -> tuple[tuple[str, int], tuple[str, int]]:
    """Where the tip is, and the confirmed program."""
    session: Session = lab.store.session("nov21")
    return (session.incumbent, session.incumbent_experiment), (session.confirmed, session.confirmed_experiment)


def test_a_keep_moves_the_tip_and_only_a_baseline_is_confirmed_at_once(chain: Driver) -> None:
    assert confirmed(chain) == [True, None, None, None]
    assert places(chain) == ((commit_of(3), 3), (commit_of(0), 0))
    assert chain.store.confirmations(chain.id) == [] and chain.store.open_confirmation_of(chain.id) is None


def test_a_confirmation_comes_back_with_its_runs_in_order(chain: Driver) -> None:
    begun = chain.begin_confirmation(3)
    assert begun == Confirmation(chain.id, 0, 0, 3, 0, 3, "gain", AT)
    assert chain.store.open_confirmation_of(chain.id) == begun
    found = chain.confirm(0, (None, 7, 0.8), (0, 7, 1.0), (0, 7, 1.1), (None, 7, 0.7), device="NVIDIA H100")
    assert [(r.of, r.value, r.attempt) for r in found.runs] == [
        (None, 0.8, -1), (0, 1.0, -1), (0, 1.1, -1), (None, 0.7, -1),
    ]  # fmt: skip
    assert [r.index for r in found.runs] == [1, 2, 3, 4], "each has a folder of its own beside those of the experiment"
    done = chain.store.decide_confirmation(chain.id, 0, BETTER, AT + timedelta(seconds=1))
    assert (done.verdict, done.open, done.runs) == (BETTER, False, found.runs)
    assert list(chain.store.confirmations(chain.id)) == [done]
    assert chain.store.open_confirmation_of(chain.id) is None
    assert chain.store.totals(chain.id).gpu_s == 40.0


def test_what_an_experiment_was_judged_by_stays_its_own(chain: Driver) -> None:
    """Runs of a confirmation count neither as runs of the experiment nor as values of the session."""
    store, before = chain.store, chain.store.experiment(chain.id, 3)
    chain.begin_confirmation(3)
    chain.confirm(0, (None, 7, -9.0), (0, 7, 9.0))
    after = store.experiment(chain.id, 3)
    assert (after.current_runs, after.phase, after.decision) == (before.runs, Phase.DECIDED, before.decision)
    assert len(after.runs) == 3 and after.last_own == before.last_own
    assert list(store.values(chain.id, 0)) == [1.0, 0.9, 1.2, 0.8]


@pytest.mark.parametrize(
    ("verdict", "expected", "tip", "proven"),
    [(BETTER, [True, True, None, True], 3, 3), (WORSE, [True, False, None, False], 0, 0),
     (UNKNOWN, [True, None, None, None], 3, 0)],
)  # fmt: skip
def test_a_verdict_is_about_the_whole_chain(
    chain: Driver, verdict: Verdict, expected: list[bool | None], tip: int, proven: int
) -> None:
    chain.begin_confirmation(3)
    first = chain.store.decide_confirmation(chain.id, 0, verdict, AT)
    assert chain.store.decide_confirmation(chain.id, 0, verdict, AT + timedelta(hours=1)) == first, "as after a kill"
    assert confirmed(chain) == expected
    assert places(chain) == ((commit_of(tip), tip), (commit_of(proven), proven))
    other = WORSE if verdict is BETTER else BETTER
    with pytest.raises(StoreError, match="decided already"):
        chain.store.decide_confirmation(chain.id, 0, other, AT)
    assert confirmed(chain) == expected


def test_half_a_chain_may_be_confirmed(chain: Driver) -> None:
    """A chain is bisected: what is proven is on the branch, the tip stays where it is."""
    chain.begin_confirmation(1)
    chain.store.decide_confirmation(chain.id, 0, BETTER, AT)
    assert confirmed(chain) == [True, True, None, None]
    assert places(chain) == ((commit_of(3), 3), (commit_of(1), 1))
    assert chain.begin_confirmation(3, against=1).number == 1
    chain.store.decide_confirmation(chain.id, 1, WORSE, AT)
    assert confirmed(chain) == [True, True, None, False]
    assert places(chain) == ((commit_of(1), 1), (commit_of(1), 1))


def test_the_last_keep_alone_is_taken_back_without_a_run(chain: Driver) -> None:
    """The rest of the chain stays open, and the tip is the keep before it."""
    chain.begin_confirmation(3, against=1)
    chain.store.decide_confirmation(chain.id, 0, WORSE, AT)
    assert confirmed(chain) == [True, None, None, False]
    assert places(chain) == ((commit_of(1), 1), (commit_of(0), 0))


@pytest.mark.parametrize("verdict", [BETTER, WORSE])
@pytest.mark.parametrize("experiment", [0, 2])
def test_asking_about_an_experiment_outside_of_the_chain_moves_nothing(
    chain: Driver, experiment: int, verdict: Verdict
) -> None:
    """`confirm 2` of a discarded one answers a question; the work since the confirmed program is not lost by it."""
    before = confirmed(chain), places(chain)
    chain.begin_confirmation(experiment)
    assert chain.store.decide_confirmation(chain.id, 0, verdict, AT).verdict == verdict
    assert (confirmed(chain), places(chain)) == before


@pytest.mark.parametrize("verdict", [BETTER, WORSE])
def test_a_question_about_a_larger_budget_survives_a_kill_and_moves_nothing(
    chain: Driver, reopen: Callable[[], SqlStore], verdict: Verdict
) -> None:
    """`confirm --budget 1h --runs 3`: whether wins scale is no verdict on what is measured at the task's budget."""
    before = confirmed(chain), places(chain)
    begun = chain.store.open_confirmation(chain.id, experiment=3, against=0, why="asked", at=AT, pairs=3, budget=3600.0)
    assert (begun.pairs, begun.budget) == (3, 3600.0)
    with closing(reopen()) as again:
        assert again.open_confirmation_of(chain.id) == begun
    chain.store.decide_confirmation(chain.id, 0, verdict, AT)
    assert (confirmed(chain), places(chain)) == before


def test_a_chain_that_fell_is_not_brought_back_by_the_next_verdict(chain: Driver) -> None:
    chain.begin_confirmation(3)
    chain.store.decide_confirmation(chain.id, 0, WORSE, AT)
    chain.decided(Status.KEEP, 0.7)
    chain.begin_confirmation(4)
    chain.store.decide_confirmation(chain.id, 1, BETTER, AT)
    assert confirmed(chain) == [True, False, None, False, True]
    assert [k.number for k in chain.store.confirmations(chain.id)] == [0, 1]


def test_a_chain_that_later_runs_cannot_confirm_falls_with_the_segment_that_begins(chain: Driver) -> None:
    begun = chain.begin_confirmation(3)
    chain.store.open_segment(chain.id, "f1", "another machine", "cpu", AT)
    assert confirmed(chain) == [True, False, None, False]
    assert chain.store.open_confirmation_of(chain.id) is None and chain.store.open_keeps(chain.id) == []
    (found,) = chain.store.confirmations(chain.id)
    assert (found.number, found.moved) == (begun.number, False)
    assert found.verdict is not None and found.verdict.outcome is Outcome.UNDECIDED
    tip, stands = places(chain)
    assert tip == stands == (commit_of(0), 0)


def test_a_verdict_confirms_nothing_that_was_measured_under_other_conditions(chain: Driver) -> None:
    chain.store.open_segment(chain.id, "f1", "budget", "cpu", AT)
    chain.baseline((1.0,), segment=1)
    chain.decided(Status.KEEP, 0.7, segment=1)
    with pytest.raises(StoreError, match="different conditions"):
        chain.begin_confirmation(5, against=0)
    assert chain.begin_confirmation(5, against=4).segment == 1
    chain.store.decide_confirmation(chain.id, 0, BETTER, AT)
    assert confirmed(chain) == [True, False, None, False, True, True]
    assert [k.number for k in chain.store.confirmations(chain.id, 1)] == [0]
    assert chain.store.confirmations(chain.id, 0) == []


def test_steps_out_of_order_are_refused(chain: Driver) -> None:
    store = chain.store
    with pytest.raises(KeyError):
        chain.begin_confirmation(9)
    with pytest.raises(KeyError):
        store.decide_confirmation(chain.id, 0, BETTER, AT)
    undecided = chain.measured()
    with pytest.raises(StoreError, match="measured"):
        chain.begin_confirmation(undecided.number)
    chain.begin_confirmation(3)
    with pytest.raises(StoreError, match="still open"):
        chain.begin_confirmation(3)
    with pytest.raises(StoreError, match="not 1"):
        store.open_confirmation_run(chain.id, 0, 7, AT, of=1)
    first = store.open_confirmation_run(chain.id, 0, 7, AT, of=None)
    with pytest.raises(StoreError, match="under way"):
        store.open_confirmation_run(chain.id, 0, 7, AT, of=0)
    with pytest.raises(StoreError, match="under way"):
        store.decide_confirmation(chain.id, 0, BETTER, AT)
    with pytest.raises(StoreError):
        store.close_run(first.id, Measurement(Label.NONE, 1.0), None, AT, last=True)
    with pytest.raises(StoreError, match="not of a confirmation"):
        store.close_confirmation_run(undecided.runs[0].id, Measurement(Label.NONE, 1.0), None, AT)
    store.close_confirmation_run(first.id, Measurement(Label.NONE, 0.8), result("cuda"), AT)
    store.close_confirmation_run(first.id, Measurement(Label.NONE, 0.8), result("cuda"), AT)
    assert store.totals(chain.id).gpu_s == 10.0, "counted once"
    with pytest.raises(StoreError, match="ended already"):
        store.close_confirmation_run(first.id, Measurement(Label.NONE, 0.9), None, AT)
    store.decide_confirmation(chain.id, 0, BETTER, AT)
    with pytest.raises(StoreError, match="decided already"):
        store.open_confirmation_run(chain.id, 0, 7, AT, of=None)


def test_a_confirmation_that_a_kill_cut_off_is_found_as_it_was(chain: Driver, reopen: Callable[[], SqlStore]) -> None:
    chain.begin_confirmation(3)
    chain.confirm(0, (None, 7, 0.8))
    cut = chain.store.open_confirmation_run(chain.id, 0, 8, AT, of=0)
    with closing(reopen()) as again:
        found = again.open_confirmation_of(chain.id)
        assert found is not None and found.last_run == cut and found.last_run.open
        after = again.close_confirmation_run(cut.id, Measurement(Label.INTERRUPTED), None, AT)
        assert [r.counts for r in after.runs] == [True, False]
        assert again.open_confirmation_run(chain.id, 0, 8, AT, of=0).index == 3


def test_a_confirmation_can_be_run_after_a_repair_that_found_few_of_the_runs(chain: Driver, path: Path) -> None:
    """Of an experiment rebuilt from its logs a first run may be missing, and the second is number 1 all the same."""
    execute(path, "UPDATE run SET run_index = 4 WHERE number = 3")
    chain.begin_confirmation(3)
    assert [chain.confirm(0, (None, 7, 0.8)).runs[-1].index for _ in range(2)] == [5, 6]


def test_a_session_goes_with_its_confirmations(chain: Driver) -> None:
    chain.begin_confirmation(3)
    chain.confirm(0, (None, 7, 0.8))
    chain.store.delete_session("nov21", even_with_keeps=True)
    assert chain.store.confirmations(chain.id) == []


def test_a_new_session_has_nothing_confirmed_but_where_it_began(lab: Driver) -> None:
    assert places(lab) == ((PARENT, 0), (PARENT, 0))
