"""Runs of the baseline that the machine had too little time for are made again, where its other runs show that."""

from __future__ import annotations

from autoresearchd.domain.experiment import Experiment, Measurement, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.pace import starved
from autoresearchd.loop.context import Context
from autoresearchd.loop.standing import is_baseline

AGAIN = 2
"""Runs of the baseline that are made again for it at most."""


class Starving:
    """Looks at runs of the program as it was, never at an edit's: one that waits on purpose would draw its luck anew.

    A run is compared with those before it, so a first run that was starved stays. What it measured plays no part, and
    the one that takes its place has the same seed.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def spared(self, e: Experiment, result: RunResult, measurement: Measurement) -> Measurement:
        """What a run gave, or, where it was starved of processor time, that it is to be made again."""
        before = sum(r.label is Label.INTERRUPTED for r in e.current_runs)
        if not is_baseline(e) or measurement.label is not Label.NONE or before >= AGAIN:
            return measurement
        stages = [stage for run in e.good_runs for stage in self._context.store.stages(run.id)]
        told = starved(result, stages)
        return Measurement(Label.INTERRUPTED, detail=told) if told else measurement
