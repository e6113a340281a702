"""Sessions in the journal, what is read of them, and what no database likes."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import AbortMemory, CurvePoint, Decision, Limits, Measurement, StageResult, Totals
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.proposal import ASI, Answer, Cost, Generation, Proposal
from autoresearchd.store.repository import SqlStore
from tests.unit.store.driver import AT, PARENT, Driver, commit_of, new_answer, new_proposal, new_session, result


def test_a_session_comes_back_as_it_was_created(store: SqlStore) -> None:
    created = store.create_session(new_session(), AT.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert created == store.session("nov21")
    assert created.limits == Limits(40, 3600.5, 1.25)
    assert (created.started_at, created.started_at.utcoffset()) == (AT, timedelta(0))
    assert (created.incumbent, created.incumbent_experiment) == (PARENT, 0)
    assert created.state is SessionState.STOPPED
    assert created.seed == 2**31 - 1


def test_what_is_unknown_is_a_key_error(store: SqlStore, lab: Driver) -> None:
    unknown: list[Callable[[], object]] = [
        lambda: store.session("nope"), lambda: store.delete_session("nope"),
        lambda: store.set_state(99, SessionState.RUNNING, AT, pid=1), lambda: store.open_segment(99, "", "", "", AT),
        lambda: store.open_experiment(99, parent=PARENT, segment=0, at=AT), lambda: store.experiment(lab.id, 99),
        lambda: store.record_commit(lab.id, 99, PARENT),
        lambda: store.close_run(99, Measurement(Label.NONE), None, AT, last=True), lambda: store.diff(lab.id, 99),
        lambda: store.answers(lab.id, 99), lambda: store.curve(99), lambda: store.record_look(99, {"progress": 0.1}),
        lambda: store.totals(99), lambda: store.add_note(99, "", AT), lambda: store.add_control(99, "stop", AT),
    ]  # fmt: skip
    for call in unknown:
        with pytest.raises(KeyError):
            call()


def test_a_tag_is_given_once(store: SqlStore) -> None:
    store.create_session(new_session(), AT)
    with pytest.raises(StoreError, match="nov21"):
        store.create_session(new_session(), AT)


def test_sessions_are_listed_oldest_first_and_do_not_share_numbers(store: SqlStore) -> None:
    ids = [store.create_session(new_session(tag), AT).id for tag in ("b", "a", "c")]
    assert [s.tag for s in store.sessions()] == ["b", "a", "c"]
    for session_id in ids:
        assert Driver(store, session_id).open().number == 0


def test_state_limits_and_heartbeat_are_remembered(store: SqlStore, lab: Driver) -> None:
    store.set_state(lab.id, SessionState.BACKING_OFF, AT, pid=4321, reason="disk full")
    store.set_limits(lab.id, Limits(max_usd=9.0))
    store.heartbeat(lab.id, AT + timedelta(seconds=5), 12.5)
    session = store.session("nov21")
    assert (session.state, session.pid, session.reason) == (SessionState.BACKING_OFF, 4321, "disk full")
    assert session.limits == Limits(max_usd=9.0)
    assert (session.heartbeat_at, session.active_seconds) == (AT + timedelta(seconds=5), 12.5)


def test_only_a_session_without_a_result_can_be_forgotten(store: SqlStore, lab: Driver) -> None:
    e = lab.measured(None)
    lab.decide(e, Decision(Status.CRASH, Label.ERROR))
    store.add_note(lab.id, "hello", AT)
    store.record_answer(lab.id, e.number, new_answer(), AT)
    store.add_visit(lab.id, e.number)
    store.delete_session("nov21")
    assert store.sessions() == []
    again = Driver(store, store.create_session(new_session(), AT).id)
    again.decided(Status.KEEP, 1.0)
    assert (store.unseen_notes(again.id), list(store.answers(again.id, 0)), store.visits(again.id)) == ([], [], {})
    with pytest.raises(StoreError):
        store.delete_session("nov21")


def test_segments_are_numbered_and_know_their_first_experiment(store: SqlStore, lab: Driver) -> None:
    lab.decided(Status.KEEP, 1.0)
    lab.decided(Status.DISCARD, 2.0)
    opened = store.open_segment(lab.id, "f1", "budget changed", "H100", AT)
    assert (opened.number, opened.first) == (1, 2)
    assert store.segment(lab.id) == opened
    assert store.segment(store.create_session(new_session("other"), AT).id) is None


def test_lists_come_oldest_first_without_files_and_generations(store: SqlStore, lab: Driver) -> None:
    for _ in range(5):
        lab.decided(Status.DISCARD, 1.0)
    assert [e.number for e in store.experiments(lab.id)] == [0, 1, 2, 3, 4]
    last = store.experiments(lab.id, last=2)
    assert [e.number for e in last] == [3, 4]
    assert all((e.proposal.files, e.proposal.generation) == ({}, Generation()) for e in last)
    assert [len(e.runs) for e in last] == [1, 1]
    assert store.experiments(lab.id, last=99) == store.experiments(lab.id)


@pytest.mark.parametrize(("maximize", "expected"), [(False, [3, 0, 5]), (True, [1, 0, 5])])
def test_the_best_are_found(store: SqlStore, lab: Driver, maximize: bool, expected: list[int]) -> None:
    lab.decided(Status.KEEP, 1.0)
    lab.decided(Status.DISCARD, 2.0)
    lab.decided(Status.CRASH, None)
    lab.decided(Status.KEEP, -1.0)
    lab.decided(Status.CHECKS_FAILED, -9.0 if not maximize else 9.0)  # a value that was cheated for
    lab.decided(Status.DISCARD, 1.0)  # a tie: the earlier one first
    lab.decided(Status.DISCARD, -5.0 if not maximize else 5.0, segment=1)
    lab.measured(-7.0 if not maximize else 7.0)  # not decided yet
    assert [e.number for e in store.top(lab.id, 0, 3, maximize)] == expected
    assert store.top(lab.id, 7, 3, maximize) == []


def test_values_are_those_of_decided_experiments_of_the_segment(store: SqlStore, lab: Driver) -> None:
    for status, value in ((Status.KEEP, 3.0), (Status.DISCARD, 1.0), (Status.CRASH, None), (Status.DISCARD, 2.0)):
        lab.decided(status, value)
    lab.decided(Status.KEEP, 9.0, segment=1)
    lab.measured(8.0)
    assert list(store.values(lab.id, 0)) == [3.0, 1.0, 2.0]
    assert list(store.values(lab.id, 1)) == [9.0]


def test_trials_are_decided_experiments_whose_changes_are_known(store: SqlStore, lab: Driver) -> None:
    lab.decided(Status.KEEP, 1.0)
    lab.decide(lab.propose(lab.open(), Proposal({}, "free text", "agent")), Decision(Status.DISCARD, Label.NO_OP))
    lab.decided(Status.CRASH, None)
    lab.measured(2.0)
    trials = store.trials(lab.id)
    assert [t.number for t in trials] == [0, 2]
    assert trials[0].changes == {"LR": 0, "depth": [4, 6]}
    assert (trials[0].status, trials[0].label, trials[0].value) == (Status.KEEP, Label.NONE, 1.0)
    assert (trials[0].parent, trials[0].commit) == (PARENT, commit_of(0))
    assert [t.number for t in store.trials(lab.id, after=0)] == [2]


def test_a_duplicate_is_found_in_its_own_session_only(store: SqlStore, lab: Driver) -> None:
    for _ in range(3):
        lab.decided(Status.DISCARD, 1.0)
    e = lab.open()
    store.record_proposal(lab.id, e.number, new_proposal(3), diff="", code_hash="h1")
    assert store.find_duplicate(lab.id, "h1") == 1
    assert store.find_duplicate(lab.id, "h9") is None
    other = store.create_session(new_session("other"), AT)
    assert store.find_duplicate(other.id, "h1") is None


def test_totals_add_up_and_an_unknown_price_is_not_counted_as_a_price(store: SqlStore, lab: Driver) -> None:
    assert store.totals(lab.id) == Totals()
    for status in (Status.KEEP, Status.DISCARD, Status.DISCARD, Status.CRASH, Status.CHECKS_FAILED):
        lab.decided(status, 1.0)
    e = lab.propose(lab.open(), new_proposal(5, usd=None))  # killed here: its number and its tokens are kept
    stored = store.experiment(lab.id, e.number).proposal
    assert stored.cost.usd is None
    assert store.totals(lab.id) == Totals(5, 1, 2, 1, 1, 1.25, 600, 120, 0.0)


def test_gpu_seconds_are_those_of_runs_on_a_gpu(store: SqlStore, lab: Driver) -> None:
    e = lab.committed()
    e = lab.run(e, Measurement(Label.INTERRUPTED), device="NVIDIA H100")
    lab.run(e, Measurement(Label.NONE, 1.0), device="cpu")
    assert store.totals(lab.id).gpu_s == 10.0


def test_a_learning_curve_comes_back_point_by_point(store: SqlStore, lab: Driver) -> None:
    e = lab.committed()
    points = tuple(CurvePoint(i, 10 / (i + 1), i / 500, None, i % 2 == 0) for i in range(500))
    e = lab.run(e, Measurement(Label.NONE, 1.0, curve=points))
    assert tuple(store.curve(e.runs[0].id)) == points
    e = lab.measured()
    assert list(store.curve(e.runs[0].id)) == []


def test_how_the_processes_of_a_run_ended_comes_back(store: SqlStore, lab: Driver) -> None:
    e = lab.committed()
    run = store.open_run(lab.id, e.number, 1, AT)
    assert list(store.stages(run.id)) == []
    stages = (
        StageResult("training", "ok", 0, 5.5, "training.log", 100.0, cpu_s=5.25),
        StageResult("evaluation", "failed", 1, 0.5, "evaluation.log", detail="no such file"),
    )
    store.close_run(run.id, Measurement(Label.ERROR), replace(result(), stages=stages), AT, last=True)
    assert tuple(store.stages(run.id)) == stages


def test_looks_at_a_run_come_back_in_order(store: SqlStore, lab: Driver) -> None:
    e = lab.committed()
    run = store.open_run(lab.id, e.number, 1, AT)
    assert list(store.looks(run.id)) == []
    for progress in (0.1, 0.2):
        store.record_look(run.id, {"progress": progress, "forecast": math.nan, "sentence": "so far", "abort": False})
    found = list(store.looks(run.id))
    assert [look["progress"] for look in found] == [0.1, 0.2]
    assert found[0]["sentence"] == "so far" and found[0]["abort"] is False


def test_figures_of_early_abort_change_while_its_state_stays(store: SqlStore, lab: Driver) -> None:
    assert store.abort_memory(lab.id) is None
    store.remember_aborts(lab.id, AbortMemory(0, 3, {"audited": 1.0, "false_abort_rate": None}))
    assert store.abort_memory(lab.id) == AbortMemory(0, -1, {"audited": 1.0, "false_abort_rate": None})
    store.remember_aborts(lab.id, AbortMemory(0, 50, {"audited": 2.0}, {"observed": 50}))
    store.remember_aborts(lab.id, AbortMemory(0, 51, {"audited": 3.0}))
    assert store.abort_memory(lab.id) == AbortMemory(0, 50, {"audited": 3.0}, {"observed": 50})
    store.remember_aborts(lab.id, AbortMemory(1, 52, {"audited": 0.0}))
    found = store.abort_memory(lab.id)
    assert found is not None and found.segment == 1 and found.state is None, "that of another segment is forgotten"


def test_numbers_that_are_not_finite_do_no_harm(store: SqlStore, lab: Driver) -> None:
    e = lab.committed()
    bad = {"loss": math.nan, "grad": math.inf, "low": -math.inf, "ok": 1.0}
    run = store.open_run(lab.id, e.number, 1, AT)
    measurement = Measurement(Label.NON_FINITE, math.nan, bad, curve=(CurvePoint(1, math.inf),))
    e = store.close_run(run.id, measurement, result(exit_code=1), AT, last=True)
    assert e.runs[0].value is None
    found = dict(e.runs[0].metrics)
    assert math.isnan(found.pop("loss"))
    assert found == {"grad": math.inf, "low": -math.inf, "ok": 1.0}
    assert tuple(store.curve(e.runs[0].id)) == (CurvePoint(1, math.inf),)
    decision = Decision(Status.CRASH, Label.NON_FINITE, math.inf, math.nan, bad, math.nan, math.inf, -math.inf)
    e = lab.decide(e, decision)
    assert (e.decision.value, e.decision.delta, e.decision.reward) == (None, None, None)
    assert list(store.values(lab.id, 0)) == []


def test_text_of_a_model_is_stored_whatever_it_holds(store: SqlStore, lab: Driver) -> None:
    text = "nul \0, lone \ud800, '; DROP TABLE run; --, 🎉"
    odd = {"set": {1}, "nan": math.nan, "bytes": b"x", "big": 10**5000, text: [text]}
    proposal = Proposal(
        {"train.py": text}, text, "agent", description=text, changes=odd, asi=ASI(text, extra=odd),
        generation=Generation(({"role": "user", "content": text},), text),
    )  # fmt: skip
    e = store.record_proposal(lab.id, lab.open().number, proposal, diff=text, code_hash="h")
    assert e.proposal.hypothesis.endswith("🎉")
    store.record_answer(lab.id, e.number, Answer(text, Cost(), proposal.generation, text, text, text), AT)
    assert store.answers(lab.id, e.number)[0].error.endswith("🎉")
    e = lab.decide(e, Decision(Status.DISCARD, Label.NO_OP, reason=text))
    store.add_note(lab.id, text, AT)
    stored = store.experiment(lab.id, e.number).proposal
    assert stored.generation.completion.endswith("🎉")
    assert "DROP TABLE" in store.diff(lab.id, e.number)


def test_notes_wait_until_a_prompt_has_carried_them(store: SqlStore, lab: Driver) -> None:
    first, second = (store.add_note(lab.id, text, AT) for text in ("try GELU", "more heads"))
    assert list(store.unseen_notes(lab.id)) == [first, second]
    store.mark_notes_seen(lab.id, [first.id], 4)
    store.mark_notes_seen(lab.id, [], 5)
    assert list(store.unseen_notes(lab.id)) == [second]


def test_a_control_is_handed_out_once(store: SqlStore, lab: Driver) -> None:
    assert list(store.take_controls(lab.id)) == []
    added = [store.add_control(lab.id, kind, AT) for kind in ("pause", "unpause", "stop")]
    assert list(store.take_controls(lab.id)) == added
    assert list(store.take_controls(lab.id)) == []


def test_steps_of_one_block_see_each_other_and_happen_together_or_not_at_all(store: SqlStore) -> None:
    def steps(block: SqlStore, tag: str) -> None:
        lab = Driver(block, block.create_session(new_session(tag), AT).id)
        block.open_segment(lab.id, "f0", "start", "cpu", AT)
        lab.baseline()
        block.record_overhead(lab.id, 0, 1.0)
        assert block.totals(lab.id).keeps == 1

    with pytest.raises(ZeroDivisionError), store.as_one() as block:
        steps(block, "lost")
        1 / 0  # noqa: B018
    with store.as_one() as block:
        steps(block, "kept")
    assert [session.tag for session in store.sessions()] == ["kept"]


def test_a_store_that_was_never_closed_is_found_as_it_was(reopen: Callable[[], SqlStore], lab: Driver) -> None:
    lab.decided(Status.KEEP, 1.0)
    e = lab.propose(lab.open())
    lab.store.record_commit(lab.id, e.number, commit_of(1))
    run = lab.store.open_run(lab.id, e.number, 5, AT)
    with closing(reopen()) as again:
        found = again.latest(lab.id)
        assert (found.number, found.phase, found.runs[-1].open) == (1, Phase.RUNNING, True)
        assert found == lab.store.experiment(lab.id, 1)
        again.close_run(run.id, Measurement(Label.INTERRUPTED), None, AT, last=False)
        assert again.open_run(lab.id, 1, 5, AT).index == 1
        assert Driver(again, lab.id).open().number == 2
