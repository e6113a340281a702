"""Measurement noise: how far the metric of one program varies between runs, and how far programs differ in that.

From the baseline's repeats alone σ is very uncertain: with three, its 95% interval (χ² with two degrees of freedom,
normal noise) reaches from 0.52 to 6.3 times the estimate. ``noise_data`` adds all later repeats.

The variance of a program is drawn from a scaled inverse χ², as a gene's in limma (Smyth, *Stat. Appl. Genet. Mol.
Biol.* 3, 2004, article 3): with few degrees of freedom where programs differ much, with infinitely many where all are
alike. A program's own runs and that prior give its variance together. An edit's program resembles the one that it was
made from: its prior lies about that one's variance. The handful of programs that ran twice tells those degrees of
freedom badly: a few values are weighed by their likelihood, and what follows from each is mixed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

_LOG_GRID = tuple(-2.4 + 0.2 * i for i in range(33))
"""ln(σ / estimate): from 0.09 to 55 times the estimate, more than 99.9% also with two degrees of freedom."""


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; exact for equal values. ValueError when empty."""
    return float(statistics.mean(values))


def estimate_sigma(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n − 1); None for fewer than two finite values; zero for a deterministic metric."""
    finite = [v for v in values if math.isfinite(v)]
    return statistics.stdev(finite) if len(finite) > 1 else None


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


ALIKE = math.inf
"""Degrees of freedom of a prior under which all programs have the same noise."""
FREEDOMS = ((ALIKE, 0.7), (4.0, 0.15), (2.0, 0.15))
"""Degrees of freedom, and how likely they are before any run. With 4 σ varies by a factor of 1.5, with 2 of 1.9."""
_LEAST = 1e-4
"""The centre of a prior is at least this share of the pooled variance: repeats may be equal by chance."""
_HALVINGS = 30


@dataclass(frozen=True, slots=True)
class Squares:
    """Sum of squared deviations of a program's runs, and its degrees of freedom."""

    total: float = 0.0
    freedom: int = 0


@dataclass(frozen=True, slots=True)
class VariancePrior:
    """One prior of the variances: its weight among others, its degrees of freedom and its centre s₀²."""

    weight: float
    freedom: float
    centre: float

    def variance(self, own: Squares) -> float:
        """The variance of a program's runs, from the prior and from its own runs (Smyth's moderated variance)."""
        if math.isinf(self.freedom):
            return self.centre
        return (self.freedom * self.centre + own.total) / (self.freedom + own.freedom)

    def child(self, parent: Squares) -> VariancePrior:
        """The prior of a program that was made from one with these runs: about that one's variance."""
        return replace(self, centre=self.variance(parent))

    def compare(self, programs: Sequence[tuple[Squares, int]], pooled: int) -> tuple[float, float]:
        """σ of a run in a comparison of programs, and its degrees of freedom (Satterthwaite, *Biometrics* 2, 1946).

        programs: the squares of one program, or of one and of that which it was made from, and how often each ran.
        pooled: degrees of freedom of all programs; no comparison can have more.
        """
        (own, runs), *parents = programs
        most, prior, known = float(pooled), self, self.freedom
        errors: list[tuple[float, float]] = []
        for parent, count in parents:
            of = min(most, self.freedom + parent.freedom)
            errors.append((self.variance(parent) / count, of))
            # What is not known of the parent's variance is not known of the child's either.
            prior, known = self.child(parent), 1.0 / (1.0 / self.freedom + 1.0 / of)
        errors.append((prior.variance(own) / runs, min(most, known + own.freedom)))
        total = math.fsum(error for error, _ in errors)
        freedom = 1.0 / math.fsum((error / total) ** 2 / of for error, of in errors)
        return math.sqrt(total / math.fsum(1.0 / n for _, n in programs)), min(most, freedom)


def alike(programs: Sequence[Squares]) -> VariancePrior:
    """The prior under which all programs have the same noise: its centre is the pooled variance."""
    return VariancePrior(1.0, ALIKE, math.fsum(p.total for p in programs) / sum(p.freedom for p in programs))


def weighed_priors(programs: Sequence[Squares]) -> list[VariancePrior]:
    """The priors that may hold, weighed by how likely they make the variances of these programs.

    ValueError when the programs have no variance at all.
    """
    pooled = alike(programs).centre
    if not pooled > 0.0:
        raise ValueError("without noise there are no variances to compare")
    known = [Squares(p.total / pooled, p.freedom) for p in programs if p.freedom]
    found = [VariancePrior(weight, freedom, _centre(freedom, known)) for freedom, weight in FREEDOMS]
    logs = [math.log(s.weight) + _likelihood(s, known) for s in found]
    most = max(logs)
    weights = [math.exp(x - most) for x in logs]
    total = math.fsum(weights)
    return [replace(s, weight=w / total, centre=s.centre * pooled) for s, w in zip(found, weights, strict=True)]


def _centre(freedom: float, programs: Sequence[Squares]) -> float:
    """The likeliest centre, in units of the pooled variance: a pool in which a program counts less the noisier it is.

    Where the derivative of the likelihood vanishes; it falls with the centre, so halving an interval finds it.
    """
    if math.isinf(freedom):
        return 1.0
    low, high = math.log(_LEAST), math.log(max(p.total / p.freedom for p in programs))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        centre = math.exp(middle)
        slope = math.fsum((p.total - p.freedom * centre) / (freedom * centre + p.total) for p in programs)
        low, high = (middle, high) if slope > 0.0 else (low, middle)
    return math.exp(0.5 * (low + high))


def _likelihood(prior: VariancePrior, programs: Sequence[Squares]) -> float:
    """Logarithm of the density of the sums of squares, up to what is the same for every prior."""
    d, centre = prior.freedom, prior.centre
    if math.isinf(d):
        return -0.5 * math.fsum(p.freedom * math.log(2.0 * centre) + p.total / centre for p in programs)
    scale = d * centre
    return math.fsum(
        math.lgamma(0.5 * (d + p.freedom))
        - math.lgamma(0.5 * d)
        - 0.5 * p.freedom * math.log(scale)
        - 0.5 * (d + p.freedom) * math.log1p(p.total / scale)
        for p in programs
    )
