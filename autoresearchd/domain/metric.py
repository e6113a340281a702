"""A metric, its direction, and arithmetic that treats both directions alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Direction(StrEnum):
    """Whether a smaller or a larger value of the metric is better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


class MetricSource(StrEnum):
    """Who computed the metric: the evaluator's own command, or the job itself (then it is *self-reported*)."""

    EVALUATOR = "evaluator"
    STDOUT = "self-reported"


@dataclass(frozen=True, slots=True)
class Metric:
    """The metric that a task optimises."""

    name: str
    direction: Direction

    def improvement(self, value: float, reference: float) -> float:
        """How much better ``value`` is than ``reference`` (positive: better), in units of the metric."""
        return reference - value if self.direction is Direction.MINIMIZE else value - reference

    def better(self, value: float, reference: float) -> bool:
        """Whether ``value`` is strictly better than ``reference``."""
        return self.improvement(value, reference) > 0

    def best(self, values: list[float]) -> float:
        """The best of ``values`` (ValueError when empty)."""
        return min(values) if self.direction is Direction.MINIMIZE else max(values)
