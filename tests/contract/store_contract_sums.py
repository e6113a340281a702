"""What every store must tell policies of a whole session: counts by label and role, the tree, visits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Node
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Store
from autoresearchd.domain.proposal import Proposal
from tests.contract.store_driver import AT, PARENT, Driver, StoreFixtures, commit_of, new_proposal, new_session


class SumsContract(StoreFixtures):
    """The part of ``StoreContract`` about sums."""

    def _decided(
        self,
        lab: Driver,
        decision: Decision,
        *,
        role: str = "optimizer",
        parent: str | None = None,
        segment: int = 0,
        kept: str | None = None,
    ) -> Experiment:
        e = lab.open(segment)
        e = lab.propose(e, replace(new_proposal(e.number), role=role, parent=parent))
        e = lab.store.record_commit(lab.id, e.number, commit_of(e.number))
        e = lab.run(e, Measurement(Label.NONE, decision.value or 1.0))
        return lab.decide(e, decision, kept)

    def test_failures_are_counted_by_label(self, store: Store, lab: Driver) -> None:
        assert store.label_counts(lab.id) == {}
        for _ in range(3):
            self._decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 2.0), role="a")
        self._decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 2.0), role="b")
        self._decided(lab, Decision(Status.KEEP, Label.NONE, 1.0), kept=commit_of(4))
        lab.decide(lab.open(), Decision(Status.CRASH, Label.MALFORMED_ANSWER))
        lab.measured()  # not decided yet
        assert store.label_counts(lab.id) == {"no_gain": 4, "": 1, "malformed_answer": 1}
        other = store.create_session(new_session("other"), AT)
        assert store.label_counts(other.id) == {}

    def test_roles_are_paid_for_what_they_bring(self, store: Store, lab: Driver) -> None:
        assert store.role_stats(lab.id) == {}
        self._decided(lab, Decision(Status.KEEP, Label.NONE, 1.0, reward=1.5), role="schedule", kept=commit_of(0))
        self._decided(lab, Decision(Status.KEEP, Label.SIMPLER, 1.0, reward=0.25), role="schedule", kept=commit_of(1))
        self._decided(lab, Decision(Status.CRASH, Label.ERROR, reward=-0.5), role="schedule")
        self._decided(lab, Decision(Status.DISCARD, Label.STALE_PARENT, 1.0), role="data")
        lab.decide(lab.open(), Decision(Status.CRASH, Label.MALFORMED_ANSWER, reward=-1.0))
        assert store.role_stats(lab.id) == {"schedule": (3, 2, 1.25), "data": (1, 0, 0.0), "": (1, 0, -1.0)}

    def test_a_decision_that_is_repeated_after_a_crash_counts_once(
        self, reopen: Callable[[], Store], lab: Driver
    ) -> None:
        decision = Decision(Status.DISCARD, Label.NO_GAIN, 2.0, reward=-0.5)
        e = self._decided(lab, decision)
        with closing(reopen()) as again:
            Driver(again, lab.id).decide(e, decision)
            assert again.label_counts(lab.id) == {"no_gain": 1}
            assert again.role_stats(lab.id) == {"optimizer": (1, 0, -0.5)}

    def test_a_repair_is_counted_for_the_role_that_made_it(self, store: Store, lab: Driver) -> None:
        e = lab.committed()
        e = lab.run(e, Measurement(Label.ERROR))
        e = lab.propose(e, replace(new_proposal(9, attempt=1), role="systems"))
        lab.decide(e, Decision(Status.CRASH, Label.ERROR))
        assert store.role_stats(lab.id) == {"systems": (1, 0, 0.0)}

    def test_turns_are_told_with_their_roles_and_whether_they_paid(self, store: Store, lab: Driver) -> None:
        assert store.role_turns(lab.id, 9) == []
        lab.decide(lab.open(), Decision(Status.CRASH, Label.MALFORMED_ANSWER))  # nothing was proposed
        self._decided(lab, Decision(Status.KEEP, Label.NONE, 1.0), role="data", kept=commit_of(1))
        self._decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 2.0), role="")
        lab.propose(lab.open())  # not decided yet
        assert store.role_turns(lab.id, 9) == [(1, "data", True), (2, "", False)]
        assert store.role_turns(lab.id, 1) == [(2, "", False)]

    def test_the_last_experiments_of_a_role_are_found_however_far_back(self, store: Store, lab: Driver) -> None:
        for role in ("data", "schedule", "data", "data", "schedule", ""):
            self._decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 2.0), role=role)
        e = lab.propose(lab.open(), replace(new_proposal(9), role="data"))
        lab.propose(e, replace(new_proposal(10, attempt=1), role="data"))
        assert [e.number for e in store.experiments(lab.id, role="data")] == [0, 2, 3, 6]
        assert [e.number for e in store.experiments(lab.id, role="data", last=2)] == [3, 6]
        (found,) = store.experiments(lab.id, role="", last=3)
        assert found == store.experiments(lab.id)[5]
        assert store.experiments(lab.id, role="nobody", last=3) == []
        assert store.experiments(lab.id, role="data", last=0) == []

    # -- the tree
    def test_the_tree_knows_which_experiment_each_was_made_from(self, store: Store, lab: Driver) -> None:
        # The baseline is the program as it is: its commit is its own parent.
        e = store.record_commit(lab.id, lab.propose(lab.open(), Proposal({}, "", "baseline")).number, PARENT)
        lab.decide(lab.run(e, Measurement(Label.NONE, 3.0)), Decision(Status.KEEP, Label.NONE, 3.0), PARENT)
        self._decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 4.0))
        final = "f" * 40  # the commit of a keep is written again, with the result in its message
        self._decided(lab, Decision(Status.KEEP, Label.NONE, 2.0), parent=commit_of(1), kept=final)
        self._decided(lab, Decision(Status.CRASH, Label.ERROR), parent=final)
        lab.decide(lab.propose(lab.open()), Decision(Status.DISCARD, Label.DUPLICATE))
        self._decided(lab, Decision(Status.CHECKS_FAILED, Label.NOT_CAUSAL, 0.1), parent=final)
        self._decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 9.0), parent="9" * 40)
        for label in (Label.CONSTRAINT, Label.SIZE_BLOCKED, Label.GATE_MISS):  # nothing to build on, whatever its value
            self._decided(lab, Decision(Status.DISCARD, label, 0.5), parent=final)
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

    def test_a_tree_does_not_reach_into_another_segment(self, store: Store, lab: Driver) -> None:
        self._decided(lab, Decision(Status.KEEP, Label.NONE, 3.0), kept=commit_of(0))
        store.open_segment(lab.id, "f1", "budget changed", "cpu", AT)
        self._decided(lab, Decision(Status.KEEP, Label.NONE, 5.0), parent=commit_of(0), segment=1, kept=commit_of(0))
        self._decided(lab, Decision(Status.DISCARD, Label.NO_GAIN, 6.0), parent=commit_of(0), segment=1)
        assert [(n.number, n.parent) for n in store.tree(lab.id, 0)] == [(0, None)]
        assert [(n.number, n.parent) for n in store.tree(lab.id, 1)] == [(1, None), (2, 1)]

    # -- visits
    def test_visits_are_counted_in_the_store(self, reopen: Callable[[], Store], lab: Driver) -> None:
        assert lab.store.visits(lab.id) == {}
        for _ in range(3):
            lab.open()
        assert [lab.store.add_visit(lab.id, n) for n in (0, 2, 2)] == [1, 1, 2]
        with closing(reopen()) as again:
            assert again.add_visit(lab.id, 2) == 3
            assert again.visits(lab.id) == {0: 1, 2: 3}
