"""What a session has come to: its tip, its noise, its programs and their pace; in memory, so no step reads the past.

Read from the store once, then kept up by ``decided``. Owned by the loop's thread.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Phase, Status
from autoresearchd.domain.metric import Direction
from autoresearchd.domain.task import Task
from autoresearchd.errors import StoreError
from autoresearchd.evaluator.allowance import allowed
from autoresearchd.evaluator.decide import incumbent_value, samples_of
from autoresearchd.evaluator.ledger import Ledger
from autoresearchd.evaluator.pace import Pace, pace_of
from autoresearchd.evaluator.variables import ignores_seed
from autoresearchd.loop.artifacts import read_sources
from autoresearchd.loop.context import Context
from autoresearchd.loop.words import commit_of
from autoresearchd.ports import Store, Workspace

BASELINE = "baseline"
RECENT = 32
TOP = 5
PROGRAMS = 4
"""How many programs are remembered: the tip, the parent, and those that are compared with them."""


class Programs:
    """Texts of a session's programs by their commits; the last few that were asked for are remembered."""

    def __init__(self, workspace: Workspace, task: Task, pristine: Path, most: int = PROGRAMS) -> None:
        self._workspace, self._task, self._pristine, self._most = workspace, task, pristine, most
        self._code: dict[str, Mapping[str, str]] = {}

    def code(self, commit: str) -> Mapping[str, str]:
        """The editable files at a commit."""
        if commit not in self._code:
            self._code[commit] = {path: self._workspace.read(commit, path) for path in self._task.editable}
            while len(self._code) > self._most:
                del self._code[next(iter(self._code))]
        return self._code[commit]

    def whole(self, commit: str) -> dict[str, str]:
        """The editable files at a commit, and the protected Python files."""
        return {**read_sources(self._task, self._pristine), **self.code(commit)}


def noise_of(task: Task, store: Store, session_id: int, segment: int) -> Ledger:
    """All runs of a segment that say something about noise."""
    return Ledger(samples_of(task, store.decided_runs(session_id, segment)))


def pace_of_baseline(task: Task, store: Store, programs: Programs, baseline: Experiment) -> Pace | None:
    """The pace that runs are held to: the budget, or the baseline's own time where that does not end by its budget."""
    stages = [stage for run in baseline.good_runs for stage in store.stages(run.id)]
    return pace_of(task, programs.whole(commit_of(baseline)), stages)


def with_time(task: Task, baseline: Sequence[Run], pace: Pace | None) -> Task:
    """The task with the time that a run is given, by how long the baseline's runs took; a limit in task.yaml holds."""
    return allowed(task, [run.duration_s for run in baseline], pace.most if pace else None)


def is_keep(e: Experiment) -> bool:
    """Whether the experiment was kept."""
    return e.decision is not None and e.decision.status is Status.KEEP


def is_baseline(e: Experiment) -> bool:
    """Whether the experiment measures the program as it is."""
    return e.proposal is not None and e.proposal.policy == BASELINE


class SessionView:
    """Where a session stands. tip_commit: the commit of the tip, whose files the branch has."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.programs = Programs(context.workspace, context.task, context.site.pristine)
        self._read()

    def _read(self) -> None:
        """Everything, from the store."""
        task, store = self.context.task, self.context.store
        session = store.session(self.context.tag)
        segment, latest = store.segment(session.id), store.latest(session.id)
        self.segment = segment.number if segment else 0
        self.tip_commit = session.incumbent
        recent = store.experiments(session.id, last=RECENT)
        self._recent = deque((e for e in recent if e.phase is Phase.DECIDED), maxlen=RECENT)
        self._values = list(store.values(session.id, self.segment))
        self.noise_data = noise_of(task, store, session.id, self.segment)
        self.baseline: Experiment | None = None
        self._tip: Experiment | None = None
        self._top: tuple[Experiment, ...] | None = None
        self._of_baseline: tuple[Experiment, Pace | None, bool] | None = None
        self.totals = store.totals(session.id)
        self._labels = Counter(store.label_counts(session.id))
        # The baseline is the first kept experiment of the segment; before it there are only baselines that failed.
        first = segment.first if segment else 0
        for number in range(first, latest.number + 1 if latest else first):
            e = store.experiment(session.id, number)
            if is_keep(e):
                self.baseline = e
                self._tip = store.experiment(session.id, max(session.incumbent_experiment, number))
            if is_keep(e) or not is_baseline(e):
                break
        if latest is not None and latest.phase is not Phase.DECIDED and latest.fallen:
            self.fall_back(latest)

    # ------------------------------------------------------------------ the tip
    @property
    def needs_baseline(self) -> bool:
        """Whether the program as it is has yet to be measured in this segment."""
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
        if self._tip is None or self._tip.decision is None:
            return None
        if not self.noise_data.values(self._tip.number):
            return self._tip.decision.value
        return incumbent_value(self.context.task, self.noise_data, self._tip)

    @property
    def sigma(self) -> float | None:
        """Standard deviation of the metric between runs of the tip, as all repeats together tell it."""
        noise = self.noise_data.noise(self._tip.number) if self._tip else self.noise_data.noise()
        return noise.sigma if noise else None

    # ------------------------------------------------------------------ a tip that fails beside an experiment
    def rival(self, e: Experiment) -> Experiment:
        """What an experiment is compared with: the tip or, where that failed twice beside it, the keep before.

        The baseline, with which everything began, keeps its place.
        """
        found, first = self.tip, self.baseline.number if self.baseline is not None else 0
        while found.number in e.fallen and found.number > first:
            store, session_id = self.context.store, self.context.session_id
            before = (store.experiment(session_id, n) for n in range(found.number - 1, first, -1))
            found = next((k for k in before if is_keep(k)), self.baseline or found)
        return found

    def fall_back(self, e: Experiment) -> str:
        """Let the tip lose its place where it failed twice beside an experiment; the fact in words, else empty.

        In memory alone: the runs say it, and the store follows with the decision on the experiment.
        """
        rival, fallen = self.rival(e), self.tip
        if rival.number == fallen.number:
            return ""
        self._tip, self.tip_commit = rival, commit_of(rival)
        return (
            f"experiment {fallen.number}, the best so far, failed twice when it ran again and lost its place: "
            f"experiment {rival.number} is the incumbent again"
        )

    def fallen(self, e: Experiment) -> tuple[Experiment, ...]:
        """Keeps that lost their place beside an experiment, the latest first; also once that is in the store."""
        first = self.baseline.number if self.baseline is not None else 0
        return tuple(self.context.store.experiment(self.context.session_id, n) for n in e.fallen if n > first)

    def program(self, number: int) -> Experiment:
        """What is run beside an experiment: the baseline or the tip, by the experiment's number."""
        return self.baseline if self.baseline is not None and self.baseline.number == number else self.tip

    def named(self, program: Experiment | None) -> str:
        """A program that is run beside an experiment, in words; empty for the experiment's own."""
        if program is None:
            return ""
        return f"the {'incumbent' if program.number == self.tip.number else 'baseline'} (experiment {program.number})"

    # ------------------------------------------------------------------ the baseline, and what follows from it
    @property
    def baseline_runs(self) -> tuple[Run, ...]:
        """The runs of the segment's baseline that ended well."""
        return self.baseline.good_runs if self.baseline else ()

    @property
    def pace(self) -> Pace | None:
        """The baseline's pace; None until it is measured."""
        return self._facts()[0]

    @property
    def ignores_seed(self) -> bool:
        """Whether the baseline's program has a seed of its own in each run, as far as is known."""
        return self._facts()[1]

    def _facts(self) -> tuple[Pace | None, bool]:
        """Pace and seeding of the baseline, which are worked out once."""
        baseline, task = self.baseline, self.context.task
        if baseline is None:
            return None, False
        if self._of_baseline is None or self._of_baseline[0] is not baseline:
            pace = pace_of_baseline(task, self.context.store, self.programs, baseline)
            self._of_baseline = baseline, pace, ignores_seed(task, self.programs.whole(commit_of(baseline)))
        return self._of_baseline[1:]

    def run_task(self) -> Task:
        """The task with the time that a run is given in this segment, the same after a restart."""
        return with_time(self.context.task, self.baseline_runs, self.pace)

    def shown_task(self) -> Task:
        """The task as policies are shown it: with what training may take, where that is known from the baseline."""
        task, most = self.context.task, self.pace.most if self.pace else None
        if most is None:
            return task
        return replace(task, execution=replace(task.execution, budget=replace(task.execution.budget, most=most)))

    # ------------------------------------------------------------------ the past
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
        """Values of all decided experiments of the segment, and of this one."""
        return [*self._values, *(r.value for r in e.good_runs if r.value is not None)]

    @property
    def failures(self) -> dict[str, int]:
        """How many decided experiments of the session ended under each label."""
        return dict(self._labels)

    @property
    def streak(self) -> int:
        """How many of the last experiments in a row were not kept."""
        if self._tip is None or not self._recent:
            return 0
        return max(0, self._recent[-1].number - self._tip.number)

    @property
    def experiments(self) -> int:
        """Decided experiments of the session, baselines not counted."""
        return max(0, self.totals.experiments - self._baselines)

    @property
    def _baselines(self) -> int:
        """How many baselines the session has measured: one for each segment."""
        return self.segment + (0 if self.needs_baseline else 1)

    def figures(self) -> dict[str, Any]:
        """Figures for displays: best, baseline, σ and counts."""
        decision = self.baseline.decision if self.baseline else None
        return {
            "best": self.best,
            "baseline": decision.value if decision else None,
            "sigma": self.sigma,
            "experiments": self.experiments,
            "keeps": max(0, self.totals.keeps - self._baselines),
        }

    def decided(self, e: Experiment) -> None:
        """Take in an experiment whose decision is on disk."""
        decision = e.decision
        if decision is None:
            return
        if e.fallen:  # rare, and what was remembered of those that lost their place is wrong now
            self._read()
            return
        self._recent.append(e)
        self._labels[decision.label.value] += 1
        self.noise_data.take(samples_of(self.context.task, e.current_runs))
        if decision.value is not None:
            self._values.append(decision.value)
            last = self._top[-1].decision if self._top and len(self._top) == TOP else None
            if last is None or last.value is None or self.context.task.metric.better(decision.value, last.value):
                self._top = None
        if is_keep(e) and e.commit is not None:
            self._tip, self.tip_commit = e, e.commit
            if is_baseline(e):
                self.baseline = e
        self.totals = self.context.store.totals(self.context.session_id)
