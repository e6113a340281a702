"""Measurement noise: how far the metric of one program varies between seeds, and what a difference must exceed.

σ comes from the repeats of the baseline. From so few runs it is itself uncertain: with three, its 95% interval (χ²
with two degrees of freedom, normal noise) reaches from 0.52 to 6.3 times the estimate. More repeats are the only
cure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Z = 2.0
"""A difference counts when it exceeds so many of its own standard deviations."""


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; exact for equal values, and without overflow for large ones. ValueError when empty."""
    if not values:
        raise ValueError("the mean of nothing is not defined")
    if min(values) == max(values):
        return values[0]
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(v / len(values) for v in values)


def estimate_sigma(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n − 1); None for fewer than two finite values; zero for a deterministic metric."""
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 2:
        return None
    centre = mean(finite)
    if min(finite) == max(finite):
        return 0.0
    return math.hypot(*(v - centre for v in finite)) / math.sqrt(len(finite) - 1)


def noise_bar(sigma: float, runs: int, reference_runs: int) -> float:
    """What an improvement must exceed: Z · σ · √(1/runs + 1/reference_runs), for two single runs 2σ·√2."""
    return Z * sigma * math.sqrt(1 / max(1, runs) + 1 / max(1, reference_runs))


def within_noise(improvement: float, sigma: float | None, runs: int = 1, reference_runs: int = 1) -> bool:
    """Whether an improvement does not exceed the noise; with σ unknown, whether it is none at all."""
    return not improvement > noise_bar(sigma or 0.0, runs, reference_runs)
