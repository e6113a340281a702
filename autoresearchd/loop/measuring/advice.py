"""What the user is to know of the measuring: of the baseline's time and seed, and of a machine that is too busy."""

from __future__ import annotations

from collections.abc import Iterator

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.limits import CALM, explain_noise, noise_has_grown
from autoresearchd.domain.quantities import format_duration
from autoresearchd.evaluator.rules.program_text import SEED_VARIABLE
from autoresearchd.evaluator.rules.run_time import needed
from autoresearchd.loop.messages import is_baseline
from autoresearchd.loop.session_view import SessionView


class Advice:
    """Warnings after decisions; what was said before a restart is not said again."""

    def __init__(self, view: SessionView) -> None:
        self._view = view
        sigmas = [e.decision.sigma for e in view.recent if e.decision and e.decision.sigma is not None]
        self._busy = bool(sigmas) and noise_has_grown(sigmas[-1], self._first_sigma)

    def after(self, e: Experiment) -> Iterator[str]:
        """What is to be said of an experiment that was just decided."""
        if is_baseline(e):
            said = (*filter(None, (self._held(), self._raised())),)
            yield from filter(None, ("; ".join(said), self._seedless()))
        elif said_of_noise := self._noise(e):
            yield said_of_noise

    @property
    def _first_sigma(self) -> float | None:
        """σ between the first runs of the baseline."""
        return self._view.baseline.sigma if self._view.baseline else None

    def _noise(self, e: Experiment) -> str:
        """That a decision is the first with too much noise, or without it again."""
        sigma, first = e.decision.sigma if e.decision else None, self._first_sigma
        if sigma is None or first is None:
            return ""
        if not self._busy and noise_has_grown(sigma, first):
            self._busy = True
            return explain_noise(sigma, first)
        if self._busy and not noise_has_grown(sigma, first, CALM):
            self._busy = False
            return f"σ is down to {sigma:.2g}, from too much: gains of that size can be told again"
        return ""

    def _held(self) -> str:
        """That training is held to the baseline's own time, and to how much that is."""
        pace = self._view.pace
        if pace is None or pace.most is None or self._view.context.task.execution.training_time != "auto":
            return ""
        return (
            f"the program does not end by its budget, so training is held to the baseline's own time: it took "
            f"{pace.whole:.3g} s, and a result that took over a quarter more is not kept"
        )

    def _raised(self) -> str:
        """That a run may take longer than the task says, or should be allowed to."""
        execution = self._view.context.task.execution
        took, wall = [run.duration_s for run in self._view.baseline_runs], execution.budget.wall
        needs = needed(execution.budget, took) if took else 0.0
        if needs <= wall:
            return ""
        told = f"the baseline took {format_duration(max(took))} of the {format_duration(wall)} that a run may take"
        if execution.timeout_named:
            return (
                f"{told}, so an experiment may be ended for a slow moment of this machine: "
                f"raise execution.timeout in task.yaml to {needs:.0f} or more"
            )
        return f"{told}: from now on it may take {format_duration(needs)} (execution.timeout in task.yaml fixes it)"

    def _seedless(self) -> str:
        """That no noise is seen, as the program has a seed of its own."""
        baseline, values = self._view.baseline, [run.value for run in self._view.baseline_runs]
        if len(values) < 2 or len(set(values)) > 1 or not (baseline and baseline.ignores_seed):
            return ""
        return (
            f"all {len(values)} runs of the baseline gave the same {self._view.context.task.metric.name}, and the "
            f"program does not read {SEED_VARIABLE}: no noise is seen, so what is kept may be the luck of its own seed"
        )
