"""Learning curves and histories for the tests of forecast and early abort."""

from __future__ import annotations

from typing import Any

import numpy as np

from autoresearchd.evaluator.abort.abort_policy import AbortPolicy, Look

BUDGET = 300.0
DELTA = 0.02

Points = tuple[np.ndarray, np.ndarray]


def training(end: float, *, seed: int = 0, noise: float = 0.005, points: int = 60, offset: float = 0.1) -> Points:
    """Steps and losses of a run that ends at ``end``, its log lying ``offset`` above the metric."""
    rng = np.random.default_rng(seed)
    x = np.arange(1, points + 1) / points
    return x * BUDGET, end + offset + 0.4 * (x**-0.5 - 1) + rng.normal(0, noise, points)


def finished(end: float, *, seed: int = 0, **more: Any) -> dict[str, Any]:
    """An entry of the replay's history."""
    steps, losses = training(end, seed=seed, **more)
    return {"steps": steps, "losses": losses, "budget": BUDGET, "final": end, "aborted": False}


def varied(count: int = 14) -> list[dict[str, Any]]:
    """A history of distinct programs in no order, the best ending at 1.0; ``count`` is no multiple of five."""
    return [finished(1.0 + 0.05 * ((5 * k) % count), seed=k) for k in range(count)]


def until(share: float, points: Points) -> Points:
    """The part of a curve up to a share of the budget."""
    steps, losses = points
    keep = steps <= share * BUDGET + 1e-9
    return steps[keep], losses[keep]


class ReplayPolicy(AbortPolicy):
    """A policy that is called with the whole history each time, and remembers what it saw last."""

    last_look: Look | None = None

    def look(self, *points: Any) -> Look:
        """As ever."""
        self.last_look = super().look(*points)
        return self.last_look

    def observe_new(self, history: list[dict[str, Any]]) -> None:
        """Observe what the history holds that is new."""
        for run in history[self._observed :]:
            self.observe(run["steps"], run["losses"], run["budget"], run["final"], aborted=run["aborted"])

    def __call__(self, history: list[dict[str, Any]], *points: Any) -> bool:
        """Whether the run ends now."""
        self.observe_new(history)
        return self.look(*points).abort


def policy(**more: Any) -> ReplayPolicy:
    """A policy that audits nothing at random."""
    return ReplayPolicy(**{"delta": DELTA, "audit_rate": 0.0, **more})
