"""How long a whole run may take: what the task allows, or more where the baseline shows that this machine needs it.

Without ``execution.timeout`` a run may take 2 × budget + grace. Training ends by the clock, but what follows it takes
as long as the machine takes, and with a short budget on a slow machine that is nearly all there is: an experiment
would crash for a moment in which something else ran. The limit of training itself stays as it is. The baseline itself
meets as much patience, with a machine that nobody knows yet: without it a slow one could not begin at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoresearchd.domain.task import Budget, Task

SLOWER = 3.0
"""How much longer than the baseline's may take what is beyond the budget: start-up, checks, evaluation."""


def needed(budget: Budget, baseline: Iterable[float]) -> float:
    """Seconds that a run has to be allowed, by how long the baseline's runs took; the task's own where that is more.

    Before they are known, what the task allows beyond the budget counts as what it took.
    """
    beyond = max((seconds - budget.training for seconds in baseline), default=budget.wall - budget.training)
    return max(budget.wall, budget.training + SLOWER * beyond)


def allowed(task: Task, baseline: Iterable[float], most: float | None = None) -> Task:
    """The task as a run of it is to be started, by how long the baseline's runs took; a limit that was named holds.

    most: what training may take of a result that is kept, where it is held to the baseline's own time.
    """
    execution = task.execution
    budget = replace(execution.budget, most=most)
    wall = needed(budget, baseline)
    if most is not None:  # what follows training has as long as ever
        wall = max(wall, wall + budget.limit - budget.training)
    if execution.timeout_named:
        wall = budget.wall
    return replace(task, execution=replace(execution, budget=replace(budget, wall=wall)))
