"""Holding runs to the pace of the baseline's: a run that could be kept must have kept to its budget."""

from __future__ import annotations

from autoresearchd.domain.experiment import Measurement, Run, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.pace import Pace, overrun, pace_of, reads_budget
from autoresearchd.loop.artifacts import read_sources
from autoresearchd.loop.laboratory import Laboratory
from autoresearchd.loop.standing import Standing

FAR = 3.0
"""In σ: a first run that is further behind the best leads to no keep."""


class Pacing:
    """Compares runs with the baseline's, as the store has them.

    Nothing is compared where the program as it was did not read its budget: it may take as long as it takes, up to
    budget and grace.
    """

    def __init__(self, lab: Laboratory, standing: Standing) -> None:
        self._lab, self._standing = lab, standing
        self._known: tuple[tuple[int, ...], Pace | None] | None = None

    def held(self, run: Run, result: RunResult, measurement: Measurement) -> Measurement:
        """What a run gave, or what takes its place when it beats the best by having trained for longer."""
        best, value = self._standing.best, measurement.value
        if measurement.label is not Label.NONE or value is None or best is None or run.of is not None:
            return measurement
        if self._clearly_worse(value, best):
            return measurement
        pace = self._pace()
        told = overrun(self._lab.task, result, pace) if pace is not None else ""
        return Measurement(Label.BUDGET_OVERRUN, detail=told, curve=measurement.curve) if told else measurement

    def _clearly_worse(self, value: float, best: float) -> bool:
        """Whether a value is so much worse that nothing could keep it: neither a tie nor its next runs."""
        reach = FAR * (self._standing.sigma or 0.0)
        return not self._lab.task.metric.better(value, best) and abs(value - best) > reach

    def _pace(self) -> Pace | None:
        runs = self._standing.baseline_runs
        key = tuple(run.id for run in runs)
        if self._known is None or self._known[0] != key:
            self._known = key, self._find(runs)
        return self._known[1]

    def _find(self, runs: tuple[Run, ...]) -> Pace | None:
        lab = self._lab
        if not runs or not self._reads_budget():
            return None
        return pace_of(lab.task, [stage for run in runs for stage in lab.store.stages(run.id)])

    def _reads_budget(self) -> bool:
        """Whether the baseline is told how long to train."""
        lab, commit = self._lab, self._standing.baseline_commit
        texts = [lab.task.execution.run_command, *read_sources(lab.task, lab.site.pristine).values()]
        if commit is not None:
            texts += self._standing.code(commit).values()
        return reads_budget(texts)
