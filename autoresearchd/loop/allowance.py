"""The time that a whole run has in this segment, by what the store knows of its baseline, and what the user is told."""

from __future__ import annotations

from autoresearchd.domain.duration import format_duration
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.allowance import allowed, needed
from autoresearchd.loop.context import Context
from autoresearchd.loop.standing import Standing


class Allowance:
    """Gives the task with the limit that holds in this segment, the same after a restart."""

    def __init__(self, context: Context, standing: Standing) -> None:
        self._context, self._standing = context, standing

    def task(self) -> Task:
        """The task as a run is to be started; a limit that the user named holds."""
        known = self._standing.pacing.known()
        return allowed(self._context.task, self._took(), known.most if known else None)

    def words(self) -> str:
        """What the user is to know once the baseline is measured; empty where it failed or the task allows enough."""
        return "; ".join(said for said in (self._held(), self._raised()) if said)

    def _held(self) -> str:
        """That training is held to the baseline's own time, and to how much that is."""
        known = self._standing.pacing.known()
        if known is None or known.most is None or self._context.task.execution.training_time != "auto":
            return ""
        return (
            f"the program does not end by its budget, so training is held to the baseline's own time: it took "
            f"{known.whole:.3g} s, and a result that took over a quarter more is not kept"
        )

    def _raised(self) -> str:
        """That a run may take longer than the task says, or should be allowed to."""
        wall, took = self._context.task.execution.budget.wall, self._took()
        if not took:
            return ""
        needs = needed(self._context.task.execution.budget, took)
        if needs <= wall:
            return ""
        told = (
            f"the baseline took {format_duration(max(took))} of the {format_duration(wall)} that a whole run may take"
        )
        if self._context.task.execution.timeout_named:
            return (
                f"{told}, so an experiment may be ended for a slow moment of this machine: "
                f"raise execution.timeout in task.yaml to {needs:.0f} or more"
            )
        return f"{told}: from now on it may take {format_duration(needs)} (execution.timeout in task.yaml fixes it)"

    def _took(self) -> list[float]:
        """How long the baseline's runs took."""
        return [run.duration_s for run in self._standing.baseline_runs]
