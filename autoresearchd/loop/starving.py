"""Runs that the machine had too little time for are made again, where other runs of the program show that it was so."""

from __future__ import annotations

from collections.abc import Sequence

from autoresearchd.domain.experiment import Experiment, Measurement, Run, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.pace import starved
from autoresearchd.loop.laboratory import Laboratory

LATEST = 3
"""Runs of the program that one is compared with: on a machine that stays busy they are slow ones soon."""
AGAIN = 2
"""Runs of an experiment that are made again for it at most."""


class Starving:
    """Looks at runs of programs that have run before: the baseline's, the incumbent's beside another, second ones.

    What a run measured plays no part in it, and the one that takes its place has the same seed: nobody gains by luck.
    """

    def __init__(self, lab: Laboratory) -> None:
        self._lab = lab

    def spared(self, e: Experiment, run: Run, result: RunResult, measurement: Measurement) -> Measurement:
        """What a run gave, or, where it was starved of processor time, that it is to be made again."""
        before = sum(r.label is Label.INTERRUPTED for r in e.current_runs)
        if measurement.label is not Label.NONE or before >= AGAIN:
            return measurement
        stages = [self._lab.store.stages(r.id) for r in self._others(e, run)[-LATEST:]]
        told = starved(result, [stage for each in stages for stage in each])
        return Measurement(Label.INTERRUPTED, detail=told) if told else measurement

    def _others(self, e: Experiment, run: Run) -> Sequence[Run]:
        """Earlier runs of the same program, oldest first."""
        if run.of is None:
            return e.good_runs
        return (*self._lab.store.experiment(self._lab.session_id, run.of).good_runs, *e.control_runs)
