"""Measurement noise: how far the metric of one program varies between runs, and how well that is known.

From the baseline's repeats alone σ is very uncertain: with three, its 95% interval (χ² with two degrees of freedom,
normal noise) reaches from 0.52 to 6.3 times the estimate. ``ledger`` adds all later repeats, and ``variances`` says how
much those of other programs tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LOG_GRID = tuple(-2.4 + 0.2 * i for i in range(33))
"""ln(σ / estimate): from 0.09 to 55 times the estimate, more than 99.9% also with two degrees of freedom."""


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


@dataclass(frozen=True, slots=True)
class Noise:
    """σ of single runs of a program, or of two that are compared, and how it is made up, as far as they are known.

    freedom: degrees of freedom of the estimate. test: share of the variance that runs made for one test, next to each
    other in time, have in common (the machine's drift); seed: share that two of them have in common for being run on
    the same seed. mixture: where it is not known how much programs differ, the weight, the σ and the degrees of freedom
    that follow from each answer; ``sigma`` is then their geometric mean. seeded: whether the program reads the seed of
    its runs; where it does not, a σ of 0 is none that was seen.
    """

    sigma: float
    freedom: int
    test: float = 0.0
    seed: float = 0.0
    mixture: tuple[tuple[float, float, float], ...] = ()
    seeded: bool = True

    @property
    def calm(self) -> float:
        """What is left of σ between runs made side by side, as a share: without the machine's drift."""
        return math.sqrt(max(0.0, 1.0 - self.test))

    def weighted(self) -> list[tuple[float, float]]:
        """Values of σ with their posterior weights (not normalised): scaled inverse χ², from the prior 1/σ."""
        if not self.mixture:
            return [(self.sigma * math.exp(x), w) for x, w in zip(_LOG_GRID, _density(0.0, self.freedom), strict=True)]
        weights = [0.0] * len(_LOG_GRID)
        for share, sigma, freedom in self.mixture:
            density = _density(math.log(sigma / self.sigma), freedom)
            total = math.fsum(density) or 1.0
            weights = [w + share * d / total for w, d in zip(weights, density, strict=True)]
        return [(self.sigma * math.exp(x), w) for x, w in zip(_LOG_GRID, weights, strict=True)]


def _density(centre: float, freedom: float) -> list[float]:
    """Posterior density of ln σ over the grid (not normalised), of an estimate at ``centre``."""
    return [math.exp(freedom * (0.5 - (x - centre) - 0.5 * math.exp(-2.0 * (x - centre)))) for x in _LOG_GRID]
