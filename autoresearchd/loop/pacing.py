"""Holding runs to the pace of the baseline's: a run that could be kept must have kept to its budget."""

from __future__ import annotations

from autoresearchd.domain.experiment import Measurement, Run, RunResult
from autoresearchd.evaluator import pace
from autoresearchd.evaluator.pace import Pace
from autoresearchd.loop.artifacts import read_sources
from autoresearchd.loop.laboratory import Laboratory
from autoresearchd.loop.standing import Standing


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
        if run.of is not None:
            return measurement
        standing = self._standing
        return pace.held(self._lab.task, result, measurement, self._pace(), best=standing.best, sigma=standing.sigma)

    def _pace(self) -> Pace | None:
        runs = self._standing.baseline_runs
        key = tuple(run.id for run in runs)
        if self._known is None or self._known[0] != key:
            self._known = key, self._find(runs)
        return self._known[1]

    def _find(self, runs: tuple[Run, ...]) -> Pace | None:
        lab, commit = self._lab, self._standing.baseline_commit
        if not runs:
            return None
        texts = list(read_sources(lab.task, lab.site.pristine).values())
        if commit is not None:
            texts += self._standing.code(commit).values()
        return pace.told_pace(lab.task, texts, [stage for run in runs for stage in lab.store.stages(run.id)])
