"""What a session has come to: its tip, its noise, its programs and their pace; in memory, so no step reads the past."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.task import Direction, Task
from autoresearchd.evaluator.keep.decide import incumbent_value, samples_of
from autoresearchd.evaluator.rules.run_time import Pace, allowed
from autoresearchd.loop.context import Context
from autoresearchd.loop.messages import commit_of, decision_of, is_baseline, is_keep
from autoresearchd.loop.programs import Baseline, Programs, noise_of

RECENT = 32
TOP = 5


class SessionView:
    """Where a session stands: read from the store once, then kept up by ``decided``. Owned by the loop's thread.

    tip_commit: the commit of the tip, whose files the branch has; labels: how many experiments ended under each.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.programs = Programs(context.workspace, context.task, context.site.pristine)
        self._read()

    def _read(self) -> None:
        task, store = self.context.task, self.context.store
        session = store.session(self.context.tag)
        segment, latest = store.segment(session.id), store.latest(session.id)
        self.segment = segment.number if segment else 0
        self.tip_commit = session.incumbent
        recent = store.experiments(session.id, last=RECENT)
        self._recent = deque((e for e in recent if e.phase is Phase.DECIDED), maxlen=RECENT)
        self._values = list(store.values(session.id, self.segment))
        self.noise_data = noise_of(task, store, session.id, self.segment)
        self.baseline: Baseline | None = None
        self._tip: Experiment | None = None
        self._top: tuple[Experiment, ...] | None = None
        self.totals = store.totals(session.id)
        self.labels = Counter(store.label_counts(session.id))
        # The baseline is the first kept experiment of the segment; before it there are only baselines that failed.
        first = segment.first if segment else 0
        for number in range(first, latest.number + 1 if latest else first):
            e = store.experiment(session.id, number)
            if is_keep(e):
                self.baseline = Baseline(e, task, store, self.programs)
                self._tip = store.experiment(session.id, max(session.incumbent_experiment, number))
            if is_keep(e) or not is_baseline(e):
                break
        if latest is not None and latest.phase is not Phase.DECIDED and latest.fallen:
            self.fall_back(latest)

    @property
    def needs_baseline(self) -> bool:
        return self.baseline is None

    @property
    def tip(self) -> Experiment:
        """The experiment that was kept last in this segment."""
        if self._tip is None:
            raise StoreError("no baseline has been measured in this segment")
        return self._tip

    @property
    def parent(self) -> str:
        """The commit that the next experiment is written on and reverted to."""
        return self.context.workspace.tip() if self.context.task.history == "revert" else self.tip_commit

    def base(self, e: Experiment) -> str:
        """What an experiment would be kept on: the tip, whatever it was written against."""
        return e.parent if self.context.task.history == "revert" else self.tip_commit

    @property
    def best(self) -> float | None:
        """The tip's metric, estimated anew from all of its runs: what it was kept with was partly luck."""
        if self._tip is None or not self.noise_data.values(self._tip.number):
            return self._tip.decision.value if self._tip and self._tip.decision else None
        return incumbent_value(self.context.task, self.noise_data, self._tip)

    @property
    def sigma(self) -> float | None:
        """Standard deviation of the metric between runs of the tip, as all repeats together tell it."""
        noise = self.noise_data.noise(self._tip.number) if self._tip else self.noise_data.noise()
        return noise.sigma if noise else None

    def rival(self, e: Experiment) -> Experiment:
        """What an experiment is compared with: the tip or, where that failed twice beside it, the keep before."""
        context = self.context
        if self.baseline is None or self.tip.number not in e.fallen:
            return self.tip
        before = range(self.tip.number - 1, self.baseline.number, -1)
        earlier = (context.store.experiment(context.session_id, n) for n in before if n not in e.fallen)
        return next((k for k in earlier if is_keep(k)), self.baseline.experiment)

    def fall_back(self, e: Experiment) -> str:
        """Let a tip that failed twice beside an experiment lose its place, in memory; the fact in words, or empty."""
        rival, fallen = self.rival(e), self.tip
        if rival.number == fallen.number:
            return ""
        self._tip, self.tip_commit = rival, commit_of(rival)
        lost = f"experiment {fallen.number}, the best so far, failed twice when it ran again and lost its place"
        return f"{lost}: experiment {rival.number} is the incumbent again"

    def fallen(self, e: Experiment) -> tuple[Experiment, ...]:
        """Keeps that lost their place beside an experiment, the latest first; also once that is in the store."""
        first = self.baseline.number if self.baseline else 0
        return tuple(self.context.store.experiment(self.context.session_id, n) for n in e.fallen if n > first)

    def program(self, number: int) -> Experiment:
        """What is run beside an experiment: the baseline or the tip, by the experiment's number."""
        return self.baseline.experiment if self.baseline and self.baseline.number == number else self.tip

    @property
    def baseline_runs(self) -> tuple[Run, ...]:
        return self.baseline.runs if self.baseline else ()

    @property
    def pace(self) -> Pace | None:
        """What runs are held to; None until it is measured."""
        return self.baseline.pace if self.baseline else None

    @property
    def run_task(self) -> Task:
        """The task with the time that a run is given in this segment, the same after a restart."""
        return self.baseline.run_task if self.baseline else allowed(self.context.task, ())

    @property
    def shown_task(self) -> Task:
        """The task with what training may take, where that is known from the baseline."""
        task, most = self.context.task, self.pace.most if self.pace else None
        budget = replace(task.execution.budget, most=most)
        return task if most is None else replace(task, execution=replace(task.execution, budget=budget))

    @property
    def recent(self) -> tuple[Experiment, ...]:
        """The last decided experiments, oldest first."""
        return tuple(self._recent)

    @property
    def top(self) -> tuple[Experiment, ...]:
        """The best decided experiments of the segment, best first."""
        if self._top is None:
            context, maximize = self.context, self.context.task.metric.direction is Direction.MAXIMIZE
            self._top = tuple(context.store.top(context.session_id, self.segment, TOP, maximize))
        return self._top

    def values_with(self, e: Experiment) -> list[float]:
        return [*self._values, *(r.value for r in e.good_runs if r.value is not None)]

    @property
    def streak(self) -> int:
        """How many of the last experiments in a row were not kept."""
        return max(0, self._recent[-1].number - self._tip.number) if self._tip and self._recent else 0

    @property
    def experiments(self) -> int:
        """How many were decided, without the baselines: one of each segment."""
        return max(0, self.totals.experiments - self.segment - (not self.needs_baseline))

    def decided(self, e: Experiment) -> None:
        """Take in an experiment whose decision is on disk."""
        decision = decision_of(e)
        if e.fallen:  # rare, and what was remembered of those that lost their place is wrong now
            self._read()
            return
        self._recent.append(e)
        self.labels[decision.label.value] += 1
        self.noise_data.take(samples_of(self.context.task, e.current_runs))
        if decision.value is not None:
            self._values.append(decision.value)
            last = self._top[-1].decision if self._top and len(self._top) == TOP else None
            if last is None or last.value is None or self.context.task.metric.better(decision.value, last.value):
                self._top = None
        if is_keep(e) and e.commit is not None:
            self._tip, self.tip_commit = e, e.commit
            if is_baseline(e):
                self.baseline = Baseline(e, self.context.task, self.context.store, self.programs)
        self.totals = self.context.store.totals(self.context.session_id)
