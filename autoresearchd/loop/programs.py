"""Programs by their commits, and what the baseline says of all of them: noise, pace and the time that a run has."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.ports import Workspace
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.rules.program_text import ignores_seed
from autoresearchd.evaluator.rules.run_time import Pace, allowed, pace_of
from autoresearchd.loop.measuring.run_files import read_sources
from autoresearchd.loop.messages import commit_of
from autoresearchd.store.repository import SqlStore

PROGRAMS = 4
"""How many programs are remembered: the tip, the parent, and those that are compared with them."""


class Programs:
    """Texts of a session's programs by their commits; the last few that were asked for are remembered."""

    def __init__(self, workspace: Workspace, task: Task, pristine: Path, most: int = PROGRAMS) -> None:
        self._workspace, self._task, self._pristine = workspace, task, pristine
        self.code = lru_cache(most)(self._read)
        """The editable files at a commit."""

    def _read(self, commit: str) -> Mapping[str, str]:
        return {path: self._workspace.read(commit, path) for path in self._task.editable}

    def whole(self, commit: str) -> dict[str, str]:
        return {**read_sources(self._task, self._pristine), **self.code(commit)}


class Baseline:
    """The program as it is, as a segment has measured it: what all others are held to."""

    def __init__(self, experiment: Experiment, task: Task, store: SqlStore, programs: Programs) -> None:
        self.experiment, self.number, self.runs = experiment, experiment.number, experiment.good_runs
        self._task, self._store, self._programs = task, store, programs

    @property
    def value(self) -> float | None:
        return self.experiment.decision.value if self.experiment.decision else None

    @property
    def sigma(self) -> float | None:
        """Standard deviation of the metric between its first runs."""
        return self.experiment.decision.sigma if self.experiment.decision else None

    @cached_property
    def texts(self) -> Mapping[str, str]:
        return self._programs.whole(commit_of(self.experiment))

    @cached_property
    def pace(self) -> Pace | None:
        """The budget, or its own time where it does not end by the budget."""
        stages = [stage for run in self.runs for stage in self._store.stages(run.id)]
        return pace_of(self._task, self.texts, stages)

    @cached_property
    def ignores_seed(self) -> bool:
        return ignores_seed(self._task, self.texts)

    @property
    def run_task(self) -> Task:
        """The task with the time that a run is given, by how long its own took; a limit in task.yaml holds."""
        return allowed(self._task, [run.duration_s for run in self.runs], self.pace.most if self.pace else None)
