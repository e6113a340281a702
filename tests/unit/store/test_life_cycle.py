"""The journal agrees with a model of it under any order of steps."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Decision, Measurement
from autoresearchd.domain.labels import RULES, Label, Phase
from autoresearchd.store.repository import SqlStore
from tests.fakes.stores import open_store
from tests.postgresql import needs_postgresql, running
from tests.unit.store.driver import AT, PARENT, Driver, begin, commit_of, new_answer, new_proposal

LABELS = [label for label in Label if RULES[label] is not None]
UNCOUNTED = [label for label in Label if RULES[label] is None]


class LifeCycle(RuleBasedStateMachine):
    """Many experiments at once, steps in any order, the daemon killed in between: the journal agrees with a model."""

    open_ones = Bundle("open_ones")

    @initialize()
    def begin(self) -> None:
        self.left = ExitStack()
        self.reopen = self.journal()
        self.store = self.reopen()
        self.lab = begin(self.store)
        self.model: dict[int, tuple[Phase, int]] = {}
        self.statuses: list[str] = []
        self.labels: list[str] = []
        self.answers: dict[int, int] = {}
        self.usd = 0.0

    def journal(self) -> Callable[[], SqlStore]:
        """Opens a new journal, and at each further call the same one again."""
        path = Path(self.left.enter_context(tempfile.TemporaryDirectory()), "state.db")
        return lambda: self.left.enter_context(open_store(path))

    def teardown(self) -> None:
        if hasattr(self, "left"):
            self.left.close()

    @rule(target=open_ones)
    def open(self) -> int:
        e = self.lab.open()
        assert e.number == len(self.model)
        self.model[e.number] = (Phase.PROPOSING, 0)
        return e.number

    @rule(number=open_ones, attempt=st.integers(0, 2))
    def propose(self, number: int, attempt: int) -> None:
        phase, runs = self.model[number]
        before = self.store.experiment(self.lab.id, number)
        legal = phase in (Phase.PROPOSING, Phase.PROPOSED, Phase.MEASURED)
        if before.proposal is not None and attempt <= before.proposal.attempt:
            legal = phase is Phase.PROPOSED and attempt == before.proposal.attempt
            charged = 0.0
        else:
            charged = 0.25
        self._try(legal, lambda: self.lab.propose(before, new_proposal(number, attempt=attempt)))
        if legal:
            self.model[number] = (Phase.PROPOSED, runs)
            self.usd += charged

    @rule(number=open_ones)
    def answer(self, number: int) -> None:
        self.store.record_answer(self.lab.id, number, new_answer(usd=0.5), AT)
        self.answers[number] = self.answers.get(number, 0) + 1
        self.usd += 0.5

    @rule(number=open_ones)
    def commit(self, number: int) -> None:
        phase, runs = self.model[number]
        done = phase in (Phase.COMMITTED, Phase.RUNNING, Phase.MEASURED)
        self._try(
            done or phase is Phase.PROPOSED, lambda: self.store.record_commit(self.lab.id, number, commit_of(number))
        )
        if phase is Phase.PROPOSED:
            self.model[number] = (Phase.COMMITTED, runs)

    @rule(number=open_ones)
    def run(self, number: int) -> None:
        phase, runs = self.model[number]
        self._try(phase is Phase.COMMITTED, lambda: self.store.open_run(self.lab.id, number, 1, AT))
        if phase is Phase.COMMITTED:
            self.model[number] = (Phase.RUNNING, runs + 1)

    @rule(number=open_ones, label=st.sampled_from([Label.NONE, Label.ERROR, *UNCOUNTED]), last=st.booleans())
    def close(self, number: int, label: Label, last: bool) -> None:
        phase, runs = self.model[number]
        if phase is not Phase.RUNNING:
            return
        run = self.store.experiment(self.lab.id, number).runs[-1]
        assert run.open
        self.store.close_run(run.id, Measurement(label, 1.0), None, AT, last=last)
        ended = Phase.MEASURED if last and label not in UNCOUNTED else Phase.COMMITTED
        self.model[number] = (ended, runs)

    @rule(number=consumes(open_ones), label=st.sampled_from(LABELS))
    def decide(self, number: int, label: Label) -> None:
        phase, runs = self.model[number]
        status = RULES[label]
        e = self.store.experiment(self.lab.id, number)
        legal = phase is not Phase.RUNNING
        self._try(legal, lambda: self.lab.decide(e, Decision(status, label, 1.0)))
        if legal:
            self.model[number] = (Phase.DECIDED, runs)
            self.statuses.append(status.value)
            self.labels.append(label.value)

    @precondition(lambda self: getattr(self, "model", None))
    @rule()
    def kill_and_reopen(self) -> None:
        self.store = self.reopen()  # the old one is not closed: nobody closes anything after kill -9
        self.lab = Driver(self.store, self.lab.id)

    @invariant()
    def the_journal_says_what_happened(self) -> None:
        if not hasattr(self, "model"):
            return
        found = self.store.experiments(self.lab.id)
        assert [(e.number, e.phase, len(e.runs)) for e in found] == [(n, p, r) for n, (p, r) in self.model.items()]
        totals = self.store.totals(self.lab.id)
        assert totals.experiments == len(self.statuses) == sum(e.decision is not None for e in found)
        assert totals.keeps == self.statuses.count("keep")
        assert totals.usd == pytest.approx(self.usd)
        assert len(self.store.charges_since(AT)) == sum(self.answers.values())
        assert all(len(self.store.answers(self.lab.id, e.number)) == self.answers.get(e.number, 0) for e in found)
        assert self.store.label_counts(self.lab.id) == Counter(self.labels)
        assert all(r.attempt == e.attempt for e in found for r in e.counted_runs)
        assert all(e.parent == PARENT for e in found)

    def _try(self, legal: bool, step: Callable[[], object]) -> None:
        if legal:
            step()
        else:
            with pytest.raises(StoreError):
                step()


LifeCycle.TestCase.settings = settings(
    max_examples=6, stateful_step_count=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
TestLifeCycle = LifeCycle.TestCase


@pytest.mark.nightly
class TestLongerLifeCycle(LifeCycle.TestCase):
    settings = settings(LifeCycle.TestCase.settings, max_examples=60)


class OnAServer(LifeCycle):
    """The same with PostgreSQL."""

    def journal(self) -> Callable[[], SqlStore]:
        project = running().empty_project()
        return lambda: self.left.enter_context(SqlStore.open(project))


@needs_postgresql
@pytest.mark.usefixtures("postgresql")
class TestLifeCycleOnAServer(OnAServer.TestCase):
    settings = settings(LifeCycle.TestCase.settings, max_examples=3)
