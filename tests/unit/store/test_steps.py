"""The way of one experiment in the journal, answers of models, and sums over a session."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import CurvePoint, Decision, Experiment, Measurement, Node, Totals
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.store.repository import SqlStore
from tests.unit.store.driver import (
    AT,
    PARENT,
    SYSTEM,
    Driver,
    asked_again,
    commit_of,
    new_answer,
    new_proposal,
    new_session,
    result,
)  # fmt: skip


def test_an_experiment_goes_through_its_phases_and_keeps_all_it_was_given(store: SqlStore, lab: Driver) -> None:
    e = lab.open()
    assert (e.number, e.phase, e.parent, e.proposal, e.runs) == (0, Phase.PROPOSING, PARENT, None, ())
    assert store.experiment(lab.id, 0) == e
    proposal = new_proposal(0)
    e = lab.propose(e, proposal)
    assert e.phase is Phase.PROPOSED
    e = store.record_commit(lab.id, 0, commit_of(0))
    assert (e.phase, e.commit) == (Phase.COMMITTED, commit_of(0))
    run = store.open_run(lab.id, 0, 123, AT)
    assert run.open
    assert store.experiment(lab.id, 0).phase is Phase.RUNNING
    measurement = Measurement(Label.NONE, 0.97, {"val_bpb": 0.97, "peak": 3.0}, "fine", (CurvePoint(1, 5.5),))
    e = store.close_run(run.id, measurement, result(), AT + timedelta(seconds=9), last=True)
    assert e.phase is Phase.MEASURED
    decision = Decision(Status.KEEP, Label.NONE, 0.97, 0.02, {"peak": 3.0}, 2.5, 0.01, 1.5, "better")
    asi = ASI("h", "a", "r", "n", {"free": {"deep": [1, None, "x"]}})
    store.record_decision(lab.id, 0, decision, asi, AT, incumbent=commit_of(0))
    store.record_overhead(lab.id, 0, 42.5)
    e = store.experiment(lab.id, 0)
    assert (e.phase, e.decision, e.asi, e.finished_at, e.overhead_ms) == (Phase.DECIDED, decision, asi, AT, 42.5)
    assert e.proposal == proposal
    assert dict(e.proposal.files) == dict(proposal.files)
    (done,) = e.runs
    assert (done.id, done.index, done.seed, done.value) == (run.id, 0, 123, 0.97)
    assert (done.metrics, done.detail) == ({"val_bpb": 0.97, "peak": 3.0}, "fine")
    assert (done.duration_s, done.exit_code, done.tier, done.device) == (10.0, 0, "bubblewrap", "cpu")
    assert store.diff(lab.id, 0) == "+LR = 0\n"
    assert store.latest(lab.id) == e


def test_the_same_step_with_the_same_data_may_be_repeated(store: SqlStore, lab: Driver) -> None:
    e = lab.open()
    first = lab.propose(e)
    assert lab.propose(e) == first
    first = store.record_commit(lab.id, 0, commit_of(0))
    assert store.record_commit(lab.id, 0, commit_of(0)) == first
    run = store.open_run(lab.id, 0, 1, AT)
    ended = Measurement(Label.NONE, 0.5)
    first = store.close_run(run.id, ended, result("cuda:0"), AT, last=True)
    assert store.close_run(run.id, ended, result("cuda:0"), AT, last=True) == first
    kept = Decision(Status.KEEP, Label.NONE, 0.5)
    first = lab.decide(e, kept, commit_of(0))
    assert lab.decide(e, kept, commit_of(0)) == first
    assert store.role_stats(lab.id) == {"optimizer": (1, 1, 0.0)}
    assert store.totals(lab.id) == Totals(1, 1, 0, 0, 0, 0.25, 100, 20, 10.0)


def test_what_is_written_is_not_written_over(store: SqlStore, lab: Driver) -> None:
    lab.decided(Status.KEEP, 1.0)
    e = store.experiment(lab.id, 0)
    with pytest.raises(StoreError):
        lab.decide(e, Decision(Status.DISCARD, Label.NO_GAIN, 1.0))
    with pytest.raises(StoreError):
        store.close_run(e.runs[0].id, Measurement(Label.NONE, 0.1), None, AT, last=True)
    assert store.experiment(lab.id, 0) == e


@pytest.mark.parametrize("label", [Label.INTERRUPTED, Label.HOST_LOST, Label.DISK_FULL])
def test_an_interrupted_run_leaves_the_experiment_open(store: SqlStore, lab: Driver, label: Label) -> None:
    e = lab.committed()
    run = store.open_run(lab.id, e.number, 1, AT)
    e = store.close_run(run.id, Measurement(label, detail="stopped"), None, AT, last=True)
    assert (e.phase, e.decision, e.counted_runs) == (Phase.COMMITTED, None, ())
    with pytest.raises(StoreError, match="open"):
        lab.decide(e, Decision(Status.DISCARD, label))
    e = lab.run(e, Measurement(Label.NONE, 2.0))
    assert e.phase is Phase.MEASURED
    assert [(r.index, r.label) for r in e.runs] == [(0, label), (1, Label.NONE)]


def test_a_proposal_may_name_another_parent(store: SqlStore, lab: Driver) -> None:
    proposal = Proposal({}, "combine", "search", parent="b" * 40)
    assert lab.propose(lab.open(), proposal).parent == "b" * 40


def test_a_keep_becomes_the_incumbent_and_a_discard_does_not(store: SqlStore, lab: Driver) -> None:
    lab.decided(Status.KEEP, 1.0)
    lab.decided(Status.DISCARD, 2.0)
    session = store.session("nov21")
    assert (session.incumbent, session.incumbent_experiment) == (commit_of(0), 0)
    e = lab.measured(0.5)
    e = lab.decide(e, Decision(Status.KEEP, Label.NONE, 0.5), "f" * 40)
    session = store.session("nov21")
    assert (session.incumbent, session.incumbent_experiment) == ("f" * 40, 2)
    assert e.commit == "f" * 40, "the commit that was kept, with its result in the message"


def test_only_runs_of_the_repair_are_judged_and_none_is_forgotten(store: SqlStore, lab: Driver) -> None:
    e = lab.committed()
    e = lab.run(e, Measurement(Label.NONE, 5.0), last=False)
    e = lab.run(e, Measurement(Label.ERROR, detail="NameError"))
    assert (len(e.good_runs), len(e.counted_runs)) == (1, 2)
    e = lab.propose(e, new_proposal(9, attempt=1))
    assert (e.attempt, e.counted_runs, e.good_runs) == (1, (), ())
    store.record_commit(lab.id, e.number, commit_of(2))
    assert store.open_run(lab.id, e.number, 7, AT) == store.experiment(lab.id, e.number).runs[-1]
    e = store.experiment(lab.id, e.number)
    e = store.close_run(e.runs[-1].id, Measurement(Label.NONE, 0.9), result(), AT, last=True)
    assert [(r.index, r.attempt) for r in e.runs] == [(0, 0), (1, 0), (2, 1)]
    assert [r.value for r in e.good_runs] == [0.9]
    assert [r.index for r in e.counted_runs] == [2]


def test_a_repair_repeated_after_a_crash_is_charged_once(reopen: Callable[[], SqlStore], lab: Driver) -> None:
    e = lab.committed()
    e = lab.run(e, Measurement(Label.ERROR))
    repaired = lab.propose(e, new_proposal(9, attempt=1))
    with closing(reopen()) as again:
        found = again.experiment(lab.id, e.number)
        assert (found.phase, found.attempt, found.commit) == (Phase.PROPOSED, 1, None)
        assert Driver(again, lab.id).propose(e, new_proposal(9, attempt=1)) == repaired
        assert again.totals(lab.id).usd == 0.5
        with pytest.raises(StoreError, match="attempt 0"):
            Driver(again, lab.id).propose(e)


def test_a_conversation_that_goes_on_is_stored_once(store: SqlStore, lab: Driver) -> None:
    """Messages may be dropped, changed in the middle or begun anew: each answer keeps its own."""
    e = lab.open()
    first = new_answer()
    longer = asked_again(first, {"role": "user", "content": "again"})
    shorter = new_answer(*map(dict, longer.generation.messages[:2]))
    changed = new_answer(SYSTEM, {"role": "user", "content": "something else"})
    fresh = new_answer({"role": "user", "content": "hello"}, attempt=1)
    failed = new_answer(error="there is no such line in train.py")
    answers = [first, longer, shorter, changed, fresh, fresh, failed, Answer("other", Cost(None), Generation())]
    for answer in answers:
        store.record_answer(lab.id, e.number, answer, AT)
    assert list(store.answers(lab.id, e.number)) == answers


def test_a_proposal_whose_answers_were_charged_costs_nothing_more(store: SqlStore, lab: Driver) -> None:
    e = lab.open()
    store.record_answer(lab.id, e.number, new_answer(), AT)
    proposal = replace(new_proposal(0), cost=Cost(0.5, 1000, 200, 2.5), charged=True)
    for _ in range(2):  # recovery may repeat it
        e = lab.propose(e, proposal)
        assert store.totals(lab.id).usd == 0.5
    assert e.proposal.cost == proposal.cost, "what it cost can still be read with it"


def test_an_answer_that_comes_late_is_charged_all_the_same(store: SqlStore, lab: Driver) -> None:
    number = lab.decided(Status.DISCARD, 1.0).number
    e, before = store.experiment(lab.id, number), store.totals(lab.id).usd
    store.record_answer(lab.id, e.number, new_answer(), AT)
    assert store.totals(lab.id).usd == before + 0.5
    assert store.experiment(lab.id, e.number) == e


def test_what_the_store_took_without_saying_so_is_counted_once(store: SqlStore, lab: Driver) -> None:
    """Else a commit whose answer is lost with the connection is paid for twice, and a cap ends a session too early."""
    e, answer, later = lab.open(), new_answer(), AT + timedelta(microseconds=1)
    for at, again in ((AT, False), (AT, True), (later, True), (later, True)):
        store.record_answer(lab.id, e.number, answer, at, again=again)
    assert len(store.answers(lab.id, e.number)) == 2
    assert store.totals(lab.id).usd == 1.0
    for bill in ("1", "1", "2", "2"):
        store.charge(lab.id, 4.0, bill)
    assert store.totals(lab.id).usd == 9.0


@pytest.mark.parametrize("usd", [None, math.nan, math.inf])
def test_an_unknown_price_is_neither_nothing_nor_counted(store: SqlStore, lab: Driver, usd: float | None) -> None:
    e = lab.open()
    store.record_answer(lab.id, e.number, new_answer(usd=usd), AT)
    assert store.answers(lab.id, e.number)[0].cost.usd is None
    assert (store.totals(lab.id).usd, store.totals(lab.id).tokens_out) == (0.0, 200)
    assert list(store.charges_since(AT)) == []


def test_each_charge_of_all_sessions_can_be_told_with_its_time(store: SqlStore, lab: Driver) -> None:
    other, late = Driver(store, store.create_session(new_session("other"), AT).id), AT + timedelta(microseconds=7)
    for driver, at, usd in (
        (other, late, 2.0),
        (lab, AT, 1.5),
        (lab, AT - timedelta(seconds=1), 8.0),
        (lab, late, 0.0),
    ):
        store.record_answer(driver.id, driver.open().number, new_answer(usd=usd), at)
    assert list(store.charges_since(AT)) == [(AT, 1.5), (late, 2.0)]


def _decided(
    lab: Driver, decision: Decision, *, role: str = "optimizer", parent: str | None = None, segment: int = 0,
    kept: str | None = None,
) -> Experiment:  # fmt: skip
    e = lab.open(segment)
    e = lab.commit(lab.propose(e, replace(new_proposal(e.number), role=role, parent=parent)))
    return lab.decide(lab.run(e, Measurement(Label.NONE, decision.value or 1.0)), decision, kept)


def test_roles_are_paid_for_what_they_bring(store: SqlStore, lab: Driver) -> None:
    assert store.role_stats(lab.id) == {}
    _decided(lab, Decision(Status.KEEP, Label.NONE, 1.0, reward=1.5), role="schedule", kept=commit_of(0))
    _decided(lab, Decision(Status.KEEP, Label.SIMPLER, 1.0, reward=0.25), role="schedule", kept=commit_of(1))
    _decided(lab, Decision(Status.CRASH, Label.ERROR, reward=-0.5), role="schedule")
    _decided(lab, Decision(Status.DISCARD, Label.STALE_PARENT, 1.0), role="data")
    lab.decide(lab.open(), Decision(Status.CRASH, Label.MALFORMED_ANSWER, reward=-1.0))
    assert store.role_stats(lab.id) == {"schedule": (3, 2, 1.25), "data": (1, 0, 0.0), "": (1, 0, -1.0)}


def test_a_repair_is_counted_for_the_role_that_made_it(store: SqlStore, lab: Driver) -> None:
    e = lab.committed()
    e = lab.run(e, Measurement(Label.ERROR))
    e = lab.propose(e, replace(new_proposal(9, attempt=1), role="systems"))
    lab.decide(e, Decision(Status.CRASH, Label.ERROR))
    assert store.role_stats(lab.id) == {"systems": (1, 0, 0.0)}


def test_turns_are_told_with_their_roles_and_whether_they_paid(store: SqlStore, lab: Driver) -> None:
    assert store.role_turns(lab.id, 9) == []
    lab.decide(lab.open(), Decision(Status.CRASH, Label.MALFORMED_ANSWER))  # nothing was proposed
    _decided(lab, Decision(Status.KEEP, Label.NONE, 1.0), role="data", kept=commit_of(1))
    _decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 2.0), role="")
    lab.propose(lab.open())  # not decided yet
    assert store.role_turns(lab.id, 9) == [(1, "data", True), (2, "", False)]
    assert store.role_turns(lab.id, 1) == [(2, "", False)]


def test_the_last_experiments_of_a_role_are_found_however_far_back(store: SqlStore, lab: Driver) -> None:
    for role in ("data", "schedule", "data", "data", "schedule", ""):
        _decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 2.0), role=role)
    e = lab.propose(lab.open(), replace(new_proposal(9), role="data"))
    lab.propose(e, replace(new_proposal(10, attempt=1), role="data"))
    assert [e.number for e in store.experiments(lab.id, role="data")] == [0, 2, 3, 6]
    assert [e.number for e in store.experiments(lab.id, role="data", last=2)] == [3, 6]
    (found,) = store.experiments(lab.id, role="", last=3)
    assert found == store.experiments(lab.id)[5]
    assert store.experiments(lab.id, role="nobody", last=3) == []
    assert store.experiments(lab.id, role="data", last=0) == []


def test_the_tree_knows_which_experiment_each_was_made_from(store: SqlStore, lab: Driver) -> None:
    # The baseline is the program as it is: its commit is its own parent.
    e = store.record_commit(lab.id, lab.propose(lab.open(), Proposal({}, "", "baseline")).number, PARENT)
    lab.decide(lab.run(e, Measurement(Label.NONE, 3.0)), Decision(Status.KEEP, Label.NONE, 3.0), PARENT)
    _decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 4.0))
    final = "f" * 40  # the commit of a keep is written again, with the result in its message
    _decided(lab, Decision(Status.KEEP, Label.NONE, 2.0), parent=commit_of(1), kept=final)
    _decided(lab, Decision(Status.CRASH, Label.ERROR), parent=final)
    lab.decide(lab.propose(lab.open()), Decision(Status.DISCARD, Label.DUPLICATE))
    _decided(lab, Decision(Status.CHECKS_FAILED, Label.NOT_CAUSAL, 0.1), parent=final)
    _decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 9.0), parent="9" * 40)
    for label in (Label.CONSTRAINT, Label.SIZE_BLOCKED, Label.GATE_MISS):  # nothing to build on, whatever its value
        _decided(lab, Decision(Status.DISCARD, label, 0.5), parent=final)
    lab.measured(1.0)
    assert list(store.tree(lab.id, 0)) == [
        Node(0, None, PARENT, 3.0, Status.KEEP),
        Node(1, 0, commit_of(1), 4.0, Status.DISCARD),
        Node(2, 1, final, 2.0, Status.KEEP),
        Node(5, 2, commit_of(5), 0.1, Status.CHECKS_FAILED),
        Node(6, None, commit_of(6), 9.0, Status.DISCARD),
    ]
    assert [node.number for node in store.tree(lab.id, 0, after=2)] == [5, 6]
    assert store.tree(lab.id, 0, after=1)[0] == Node(2, 1, final, 2.0, Status.KEEP)
    assert list(store.tree(lab.id, 0, after=6)) == []


def test_a_tree_does_not_reach_into_another_segment(store: SqlStore, lab: Driver) -> None:
    _decided(lab, Decision(Status.KEEP, Label.NONE, 3.0), kept=commit_of(0))
    store.open_segment(lab.id, "f1", "budget changed", "cpu", AT)
    _decided(lab, Decision(Status.KEEP, Label.NONE, 5.0), parent=commit_of(0), segment=1, kept=commit_of(0))
    _decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 6.0), parent=commit_of(0), segment=1)
    assert [(n.number, n.parent) for n in store.tree(lab.id, 0)] == [(0, None)]
    assert [(n.number, n.parent) for n in store.tree(lab.id, 1)] == [(1, None), (2, 1)]


def test_visits_are_counted_in_the_store(reopen: Callable[[], SqlStore], lab: Driver) -> None:
    assert lab.store.visits(lab.id) == {}
    for _ in range(3):
        lab.open()
    assert [lab.store.add_visit(lab.id, n) for n in (0, 2, 2)] == [1, 1, 2]
    with closing(reopen()) as again:
        assert again.add_visit(lab.id, 2) == 3
        assert again.visits(lab.id) == {0: 1, 2: 3}
