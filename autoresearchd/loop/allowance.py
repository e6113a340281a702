"""How long a whole run may take: what the task allows, or more where the baseline shows that this machine needs it.

Without ``execution.timeout`` a run may take 2 × budget + grace. Training ends by the clock, but what follows it takes
as long as the machine takes, and with a short budget on a slow machine that is nearly all there is: an experiment
would crash for a moment in which something else ran. The limit of training itself stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoresearchd.domain.duration import format_duration
from autoresearchd.domain.task import Budget, Task
from autoresearchd.loop.laboratory import Laboratory
from autoresearchd.loop.standing import Standing

SLOWER = 3.0
"""How much longer than the baseline's may take what is beyond the budget: start-up, checks, evaluation."""


def needed(budget: Budget, baseline: Iterable[float]) -> float:
    """Seconds that a run has to be allowed, by how long the baseline's runs took; the task's own where that is more."""
    beyond = max((seconds - budget.training for seconds in baseline), default=0.0)
    return max(budget.wall, budget.training + SLOWER * beyond)


class Allowance:
    """Gives the task with the limit that holds in this segment, the same after a restart."""

    def __init__(self, lab: Laboratory, standing: Standing) -> None:
        self._lab, self._standing = lab, standing

    def task(self) -> Task:
        """The task as a run is to be started; a limit that the user named holds."""
        task, wall = self._lab.task, self._needed()
        execution = task.execution
        if wall <= execution.budget.wall or execution.timeout_named:
            return task
        return replace(task, execution=replace(execution, budget=replace(execution.budget, wall=wall)))

    def words(self) -> str:
        """What the user is to know of it once the baseline is measured; empty where the task allows enough."""
        wall, needs = self._lab.task.execution.budget.wall, self._needed()
        if needs <= wall:
            return ""
        took = max(run.duration_s for run in self._standing.baseline_runs)
        told = f"the baseline took {format_duration(took)} of the {format_duration(wall)} that a whole run may take"
        if self._lab.task.execution.timeout_named:
            return (
                f"{told}, so an experiment may be ended for a slow moment of this machine: "
                f"raise execution.timeout in task.yaml to {needs:.0f} or more"
            )
        return f"{told}: from now on it may take {format_duration(needs)} (execution.timeout in task.yaml fixes it)"

    def _needed(self) -> float:
        return needed(self._lab.task.execution.budget, (run.duration_s for run in self._standing.baseline_runs))
