"""What every store must do on the way of one experiment: phases, repeated steps, several runs, repairs, decisions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import CurvePoint, Decision, Measurement, Totals
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.ports import Store
from autoresearchd.domain.proposal import ASI, Proposal
from tests.contract.store_driver import AT, PARENT, Driver, StoreFixtures, commit_of, new_proposal, result


class StepsContract(StoreFixtures):
    """The part of ``StoreContract`` about steps."""

    def test_an_experiment_goes_through_its_phases_and_keeps_all_it_was_given(self, store: Store, lab: Driver) -> None:
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

    def test_a_step_out_of_order_says_what_was_expected_and_changes_nothing(self, store: Store, lab: Driver) -> None:
        e = lab.open()
        before = store.experiment(lab.id, e.number)
        with pytest.raises(StoreError, match="proposed"):
            store.record_commit(lab.id, e.number, commit_of(0))
        with pytest.raises(StoreError, match="committed"):
            store.open_run(lab.id, e.number, 1, AT)
        assert store.experiment(lab.id, e.number) == before
        lab.propose(e)
        store.record_commit(lab.id, e.number, commit_of(0))
        with pytest.raises(StoreError, match="proposed"):
            store.record_commit(lab.id, e.number, commit_of(1))
        with pytest.raises(StoreError, match="attempt"):
            lab.propose(e)
        store.open_run(lab.id, e.number, 1, AT)
        with pytest.raises(StoreError, match="measured"):
            lab.decide(e, Decision(Status.KEEP, Label.NONE, 1.0))
        with pytest.raises(StoreError, match="committed"):
            store.open_run(lab.id, e.number, 1, AT)

    def test_the_same_step_with_the_same_data_may_be_repeated(self, store: Store, lab: Driver) -> None:
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
        assert store.totals(lab.id) == Totals(1, 1, 0, 0, 0, 0.25, 100, 20, 10.0)

    def test_what_is_written_is_not_written_over(self, store: Store, lab: Driver) -> None:
        lab.decided(Status.KEEP, 1.0)
        e = store.experiment(lab.id, 0)
        with pytest.raises(StoreError):
            lab.decide(e, Decision(Status.DISCARD, Label.NO_GAIN, 1.0))
        with pytest.raises(StoreError):
            store.close_run(e.runs[0].id, Measurement(Label.NONE, 0.1), None, AT, last=True)
        assert store.experiment(lab.id, 0) == e

    @pytest.mark.parametrize("label", [Label.INTERRUPTED, Label.HOST_LOST, Label.DISK_FULL])
    def test_an_interrupted_run_leaves_the_experiment_open(self, store: Store, lab: Driver, label: Label) -> None:
        e = lab.committed()
        run = store.open_run(lab.id, e.number, 1, AT)
        e = store.close_run(run.id, Measurement(label, detail="stopped"), None, AT, last=True)
        assert (e.phase, e.decision, e.counted_runs) == (Phase.COMMITTED, None, ())
        with pytest.raises(StoreError, match="open"):
            lab.decide(e, Decision(Status.DISCARD, label))
        e = lab.run(e, Measurement(Label.NONE, 2.0))
        assert e.phase is Phase.MEASURED
        assert [(r.index, r.label) for r in e.runs] == [(0, label), (1, Label.NONE)]

    def test_several_runs_are_kept_in_order(self, store: Store, lab: Driver) -> None:
        e = lab.committed()
        for value in (1.0, 3.0, 2.0):
            e = lab.run(e, Measurement(Label.NONE, value), last=value == 2.0)
        assert e.phase is Phase.MEASURED
        assert [(r.index, r.value) for r in e.good_runs] == [(0, 1.0), (1, 3.0), (2, 2.0)]

    def test_a_proposal_that_spends_no_job_is_decided_at_once(self, store: Store, lab: Driver) -> None:
        e = lab.decide(lab.open(), Decision(Status.CRASH, Label.ILLEGAL_EDIT, reason="edits a protected file"))
        assert (e.phase, e.proposal, e.commit) == (Phase.DECIDED, None, None)
        e = lab.decide(lab.propose(lab.open()), Decision(Status.DISCARD, Label.DUPLICATE))
        assert (e.phase, e.runs) == (Phase.DECIDED, ())
        assert store.totals(lab.id).experiments == 2

    def test_a_crash_may_be_repaired_and_every_attempt_is_charged(self, store: Store, lab: Driver) -> None:
        e = lab.committed()
        e = lab.run(e, Measurement(Label.ERROR, detail="NameError"))
        repaired = new_proposal(9, attempt=1)
        e = lab.propose(e, repaired)
        assert (e.phase, e.commit) == (Phase.PROPOSED, None)
        e = store.record_commit(lab.id, e.number, commit_of(2))
        e = lab.run(e, Measurement(Label.NONE, 0.9))
        assert [r.label for r in e.runs] == [Label.ERROR, Label.NONE]
        assert store.experiment(lab.id, e.number).proposal == repaired
        assert store.totals(lab.id).usd == 0.5

    def test_a_proposal_may_name_another_parent(self, store: Store, lab: Driver) -> None:
        proposal = Proposal({}, "combine", "search", parent="b" * 40)
        assert lab.propose(lab.open(), proposal).parent == "b" * 40

    def test_a_keep_becomes_the_incumbent_and_a_discard_does_not(self, store: Store, lab: Driver) -> None:
        lab.decided(Status.KEEP, 1.0)
        lab.decided(Status.DISCARD, 2.0)
        session = store.session("nov21")
        assert (session.incumbent, session.incumbent_experiment) == (commit_of(0), 0)
        e = lab.measured(0.5)
        e = lab.decide(e, Decision(Status.KEEP, Label.NONE, 0.5), "f" * 40)
        session = store.session("nov21")
        assert (session.incumbent, session.incumbent_experiment) == ("f" * 40, 2)
        assert e.commit == "f" * 40, "the commit that was kept, with its result in the message"

    def test_a_keep_that_loses_its_place_gives_it_back_to_the_one_before(self, store: Store, lab: Driver) -> None:
        """Else a poisoned program would go on to be the best that a user is shown."""
        lab.decided(Status.KEEP, 1.0)
        lab.decided(Status.KEEP, 0.5)
        e = lab.measured(2.0)
        lost = {1: Decision(Status.CRASH, Label.ERROR, reward=-2.0, reason="it failed twice")}
        store.record_decision(
            lab.id, e.number, Decision(Status.DISCARD, Label.NO_GAIN, 2.0), ASI(), AT, incumbent=None, fallen=lost
        )
        session, totals, fell = store.session("nov21"), store.totals(lab.id), store.experiment(lab.id, 1)
        assert (session.incumbent, session.incumbent_experiment) == (commit_of(0), 0)
        assert (totals.experiments, totals.keeps, totals.discards, totals.crashes) == (3, 1, 1, 1)
        assert fell.decision is not None and (fell.decision.status, fell.decision.value) == (Status.CRASH, None)
        assert fell.commit == commit_of(1) and fell.good_runs[0].value == 0.5, "what happened stays"
        assert store.label_counts(lab.id) == {Label.NONE: 1, Label.NO_GAIN: 1, Label.ERROR: 1}
        assert [top.number for top in store.top(lab.id, 0, 5, False)] == [0, 2]
        other = lab.measured(0.1)
        with pytest.raises(StoreError, match="cannot lose its place"):
            store.record_decision(
                lab.id, other.number, Decision(Status.KEEP, Label.NONE, 0.1), ASI(), AT, incumbent="f" * 40, fallen=lost
            )
        assert store.session("nov21").incumbent_experiment == 0, "nothing of it was written"

    # -- repairs
    def test_only_runs_of_the_repair_are_judged_and_none_is_forgotten(self, store: Store, lab: Driver) -> None:
        e = lab.committed()
        beside = store.open_run(lab.id, e.number, 7, AT, of=0)
        store.close_run(beside.id, Measurement(Label.NONE, 5.0), result(), AT, last=False)
        e = lab.run(e, Measurement(Label.ERROR, detail="NameError"))
        assert (len(e.control_runs), len(e.counted_runs)) == (1, 2)
        e = lab.propose(e, new_proposal(9, attempt=1))
        assert (e.attempt, e.counted_runs, e.good_runs, e.control_runs) == (1, (), (), ())
        store.record_commit(lab.id, e.number, commit_of(2))
        assert store.open_run(lab.id, e.number, 7, AT) == store.experiment(lab.id, e.number).runs[-1]
        e = store.experiment(lab.id, e.number)
        e = store.close_run(e.runs[-1].id, Measurement(Label.NONE, 0.9), result(), AT, last=True)
        assert [(r.index, r.attempt) for r in e.runs] == [(0, 0), (1, 0), (2, 1)]
        assert [r.value for r in e.good_runs] == [0.9]
        assert [r.index for r in e.counted_runs] == [2]

    def test_a_failed_attempt_leaves_nothing_in_the_noise_of_the_session(self, store: Store, lab: Driver) -> None:
        e = lab.committed()
        e = lab.run(e, Measurement(Label.NONE, 5.0), last=False)
        e = lab.run(e, Measurement(Label.ERROR))
        e = lab.propose(e, new_proposal(9, attempt=1))
        e = lab.run(store.record_commit(lab.id, e.number, commit_of(2)), Measurement(Label.NONE, 0.9))
        lab.decide(e, Decision(Status.DISCARD, Label.NO_GAIN, 0.9))
        assert [(r.value, r.attempt) for r in store.decided_runs(lab.id, 0)] == [(0.9, 1)]

    def test_a_repair_may_be_repeated_after_a_crash_and_is_charged_once(
        self, reopen: Callable[[], Store], lab: Driver
    ) -> None:
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

    def test_a_repair_follows_only_what_has_run_and_was_not_decided(self, store: Store, lab: Driver) -> None:
        e = lab.committed()
        with pytest.raises(StoreError, match="measured"):
            lab.propose(e, new_proposal(9, attempt=1))
        e = lab.decide(lab.run(e, Measurement(Label.ERROR)), Decision(Status.CRASH, Label.ERROR))
        with pytest.raises(StoreError, match="measured"):
            lab.propose(e, new_proposal(9, attempt=1))
