"""Holding runs to the pace of the baseline's: a run that could be kept must have kept to its time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autoresearchd.domain.experiment import Measurement, Run, RunResult
from autoresearchd.domain.task import Task
from autoresearchd.evaluator import pace
from autoresearchd.evaluator.pace import Pace
from autoresearchd.loop.artifacts import read_sources
from autoresearchd.loop.context import Context

if TYPE_CHECKING:
    from autoresearchd.loop.standing import Standing


class Pacing:
    """Compares runs with the baseline's, as the store has them.

    What they are held to is the budget, or the baseline's own time where that does not end by its budget.
    """

    def __init__(self, context: Context, standing: Standing) -> None:
        self._context, self._standing = context, standing
        self._known: tuple[tuple[int, ...], Pace | None] | None = None

    def held(self, run: Run, result: RunResult, measurement: Measurement) -> Measurement:
        """What a run gave, or what takes its place when it beats the best by having trained for longer."""
        if run.of is not None:
            return measurement
        standing = self._standing
        return pace.held(
            self._context.task, result, measurement, self.known(), best=standing.best, sigma=standing.sigma
        )

    def task(self) -> Task:
        """The task as policies are shown it: with what training may take, where that is known from the baseline."""
        task, known = self._context.task, self.known()
        if known is None or known.most is None:
            return task
        budget = replace(task.execution.budget, most=known.most)
        return replace(task, execution=replace(task.execution, budget=budget))

    def known(self) -> Pace | None:
        """The baseline's pace; None until it is measured."""
        runs = self._standing.baseline_runs
        key = tuple(run.id for run in runs)
        if self._known is None or self._known[0] != key:
            self._known = key, self._find(runs)
        return self._known[1]

    def _find(self, runs: tuple[Run, ...]) -> Pace | None:
        context, commit = self._context, self._standing.baseline_commit
        if not runs:
            return None
        texts = read_sources(context.task, context.site.pristine)
        if commit is not None:
            texts |= self._standing.code(commit)
        return pace.pace_of(context.task, texts, [stage for run in runs for stage in context.store.stages(run.id)])
