"""Measurement noise: how far the metric of a program varies between runs, how that is made up, and what to compare.

From the baseline's repeats alone σ is very uncertain: with three, its 95% interval (χ² with two degrees of freedom,
normal noise) reaches from 0.52 to 6.3 times the estimate. So all later repeats of a segment are pooled (n − 1 weights)
as far as programs are alike; where they differ, runs of the compared programs count more.

The variance of a program is drawn from a scaled inverse χ², as a gene's in limma (Smyth, *Stat. Appl. Genet. Mol.
Biol.* 3, 2004, article 3): with few degrees of freedom where programs differ much. The handful of programs that ran
twice tells them badly: a few values are weighed by their likelihood, and what follows from each is mixed. An edit's
program resembles the one that it was made from: its prior lies about that one's variance.

σ is taken apart as in a nested analysis of variance (Searle, Casella, McCulloch, *Variance Components*, 1992, ch. 3):
runs of one program made for one test lie next to each other in time, so what is between tests is drift; what pairs on
one seed have in common is the luck of the seed. Each share, the same for all programs, is shrunk towards a guess that
is worth ``GUESS_WEIGHT`` runs.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby

_LOG_GRID = tuple(-2.4 + 0.2 * i for i in range(33))
"""ln(σ / estimate): from 0.09 to 55 times the estimate, more than 99.9% also with two degrees of freedom."""


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; exact for equal values. ValueError when empty."""
    return float(statistics.mean(values))


def estimate_sigma(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n − 1); None for fewer than two finite values; zero for a deterministic metric."""
    finite = [v for v in values if math.isfinite(v)]
    return statistics.stdev(finite) if len(finite) > 1 else None


def mad_confidence(values: Sequence[float], baseline: float | None, best: float | None) -> float | None:
    """The advisory figure of pi-autoresearch: |best − baseline| / MAD, the unscaled median of |value − median|.

    It compares the gain with the spread of *ideas*, not with noise, so it decides nothing. None where they give none.
    """
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 3 or baseline is None or best is None or best == baseline:
        return None
    centre = statistics.median(finite)
    spread = statistics.median(abs(v - centre) for v in finite)
    confidence = abs(best - baseline) / spread if spread > 0 else math.inf
    return confidence if math.isfinite(confidence) else None


@dataclass(frozen=True, slots=True)
class Noise:
    """σ of single runs of a program, or of two that are compared, with its degrees of freedom.

    test, seed: share of the variance that runs made for one test (the machine's drift), or two of them on one seed,
    have in common. mixture: weight, σ and degrees of freedom of each answer to how much programs differ; ``sigma`` is
    their geometric mean. seeded: the program reads the seed of its runs; else a σ of 0 is none that was seen.
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
    """One prior of the variances, with its centre s₀²."""

    weight: float
    freedom: float
    centre: float

    def variance(self, own: Squares) -> float:
        """The variance of a program's runs, from the prior and from its own runs (Smyth's moderated variance)."""
        if math.isinf(self.freedom):
            return self.centre
        return (self.freedom * self.centre + own.total) / (self.freedom + own.freedom)

    def compare(self, programs: Sequence[tuple[Squares, int]], pooled: int) -> tuple[float, float]:
        """σ of a run in a comparison of programs, and its degrees of freedom (Satterthwaite, *Biometrics* 2, 1946).

        programs: squares and number of runs of one, or of one and of that which it was made from. pooled: degrees of
        freedom of all programs; no comparison can have more.
        """
        (own, runs), *parents = programs
        most, prior, known = float(pooled), self, self.freedom
        errors: list[tuple[float, float]] = []
        for parent, count in parents:
            of = min(most, self.freedom + parent.freedom)
            errors.append((self.variance(parent) / count, of))
            # What is not known of the parent's variance is not known of the child's either.
            prior, known = replace(self, centre=self.variance(parent)), 1.0 / (1.0 / self.freedom + 1.0 / of)
        errors.append((prior.variance(own) / runs, min(most, known + own.freedom)))
        total = math.fsum(error for error, _ in errors)
        freedom = 1.0 / math.fsum((error / total) ** 2 / of for error, of in errors)
        return math.sqrt(total / math.fsum(1.0 / n for _, n in programs)), min(most, freedom)


def alike(programs: Sequence[Squares]) -> VariancePrior:
    """The prior under which all programs have the same noise: its centre is the pooled variance."""
    return VariancePrior(1.0, ALIKE, math.fsum(p.total for p in programs) / sum(p.freedom for p in programs))


def weighed_priors(programs: Sequence[Squares]) -> list[VariancePrior]:
    """The priors that may hold, weighed by how likely they make the variances of these programs, not all of them 0."""
    pooled = alike(programs).centre
    known = [Squares(p.total / pooled, p.freedom) for p in programs if p.freedom]
    priors = [VariancePrior(weight, freedom, _centre(freedom, known)) for freedom, weight in FREEDOMS]
    logs = [math.log(p.weight) + _likelihood(p, known) for p in priors]
    weights = [math.exp(x - max(logs)) for x in logs]
    total = math.fsum(weights)
    return [replace(p, weight=w / total, centre=p.centre * pooled) for p, w in zip(priors, weights, strict=True)]


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


@dataclass(frozen=True, slots=True)
class Reading:
    """One finished run, of the experiment or of the incumbent. test: the experiment that it was made for."""

    own: bool
    test: int
    seed: int
    value: float


DRIFT = 1 / 3
"""Variance between tests as a multiple of that within one, before any run says better."""
SEED = 0.25
"""Share of the variance within a test that runs on one seed have in common, before any pair says better."""
GUESS_WEIGHT = 4.0
RECHECK_AFTER = 2
_MOST_DRIFT = 30.0
_MOST_SEED = 0.95


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished run of a program, made for a test (both are numbers of experiments); value: larger is better."""

    program: int
    test: int
    seed: int
    value: float
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Squares of one program's runs within tests and between them."""

    within: Squares = Squares()
    between: Squares = Squares()
    factor: float = 0.0

    def expected(self, share: float) -> float:
        """The sum of squares to expect in units of σ², where runs of one test have this share in common."""
        return (1.0 - share) * (self.within.freedom + self.between.freedom) + share * self.factor

    def whole(self, share: float) -> Squares:
        """All squares, scaled to those of as many runs with nothing in common."""
        freedom = self.within.freedom + self.between.freedom
        total = self.within.total + self.between.total
        return Squares(total * freedom / self.expected(share), freedom) if freedom else Squares()


class NoiseData:
    """The samples of one segment, in order of time."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._programs: dict[int, tuple[Sample, ...]] = {}
        self._spreads: dict[int, _Spread] = {}
        self._pairs: dict[int, tuple[int, Squares]] = {}
        self.experiments = -1
        """How many experiments were measured, the first one (the baseline) not counted."""
        self.extra = 0
        """Runs beyond the first one of each experiment, the baseline not counted."""
        for _, test in groupby(samples, key=lambda s: s.test):
            self.take(list(test))

    def take(self, samples: Sequence[Sample]) -> None:
        """Take all runs that were made for one experiment, in order of time."""
        if not samples:
            return
        self.experiments += 1
        self.extra += len(samples) - 1 if self.experiments else 0
        for sample in samples:
            own = (*self._programs.get(sample.program, ()), sample)
            self._programs[sample.program] = own
            if len(own) > 1:
                self._spreads[sample.program] = _spread(own)
        mine = {s.seed: s.value for s in samples if s.program == s.test}
        others = [s for s in samples if s.program != s.test]  # the incumbent's first, then perhaps the baseline's
        beside = [s for s in others if s.program == others[0].program and s.seed in mine]
        pairs = [mine[s.seed] - s.value for s in beside]
        if len(pairs) > 1:
            self._pairs[samples[0].test] = beside[0].program, _squares(pairs)

    def with_samples(self, samples: Sequence[Sample]) -> NoiseData:
        """These data and the runs of one more experiment, for a look."""
        other = copy(self)
        other._programs, other._spreads, other._pairs = dict(self._programs), dict(self._spreads), dict(self._pairs)
        other.take(samples)
        return other

    def values(self, program: int) -> list[float]:
        """Values of a program's runs, oldest first."""
        return [s.value for s in self.samples(program)]

    def samples(self, program: int) -> tuple[Sample, ...]:
        """Runs of a program, oldest first."""
        return self._programs.get(program, ())

    @property
    def baseline(self) -> int | None:
        """The program that ran first; None while none did."""
        return next(iter(self._programs), None)

    def without_reruns(self, program: int) -> NoiseData:
        """The same data with only those runs of one program that were made for its own test."""
        kept = [s for own in self._programs.values() for s in own if s.program != program or s.test == program]
        return NoiseData(sorted(kept, key=lambda s: s.test))

    def unchecked(self, incumbent: int) -> bool:
        """Whether the baseline, still the incumbent, ran at the very start only, and two experiments have been since.

        An idle machine is faster at first: beside such a baseline nothing would look like a gain. One more run tells.
        """
        fresh = self.baseline != incumbent or self.experiments < RECHECK_AFTER
        return not fresh and len({s.test for s in self._programs[incumbent]}) == 1

    def noise(self, *programs: int) -> Noise | None:
        """σ of one program, or of one and its incumbent, or as if all were alike; None while no program ran twice."""
        spreads = self._spreads.values()
        within = [s.within for s in spreads]
        freedom, squares = sum(w.freedom for w in within), math.fsum(w.total for w in within)
        between = math.fsum(s.between.total for s in spreads)
        known = freedom + sum(s.between.freedom for s in spreads)
        if known == 0:
            return None
        if squares + between == 0.0:
            return Noise(0.0, known)
        if not freedom or squares / freedom < sys.float_info.min:
            return Noise(math.sqrt((squares + between) / known), known)
        priors = weighed_priors(within) if programs else [alike(within)]
        share, seed = self._shares(priors)
        # Expected sums of squares in units of σ²: (1 − share) for each degree of freedom, and share times the factor.
        pooled = (squares + between) / math.fsum(s.expected(share) for s in spreads)
        if not programs:
            return Noise(math.sqrt(pooled), known, test=share, seed=seed)
        # A centre is of runs within a test; across tests there is drift as well.
        apart = [replace(p, centre=pooled if p.freedom == ALIKE else p.centre / (1.0 - share)) for p in priors]
        compared = [(self._spreads.get(p, _Spread()).whole(share), max(1, len(self.samples(p)))) for p in programs]
        return replace(_mixed(apart, compared, known), test=share, seed=seed)

    def _shares(self, priors: Sequence[VariancePrior]) -> tuple[float, float]:
        """Shares of the variance that runs of one test, and on one seed, share; each program in its own unit."""
        unit = {p: _variance(priors, s) for p, s in self._spreads.items()}
        unknown = _variance(priors, _Spread())
        spreads = self._spreads.values()
        between = math.fsum(s.between.total / unit[p] for p, s in self._spreads.items())
        factor = math.fsum(s.factor for s in spreads)
        drift = (between - sum(s.between.freedom for s in spreads) + GUESS_WEIGHT * DRIFT) / (factor + GUESS_WEIGHT)
        drift = min(_MOST_DRIFT, max(0.0, drift))
        pairs = math.fsum(
            s.total / (unit.get(test, unknown) + unit.get(beside, unknown)) for test, (beside, s) in self._pairs.items()
        )
        pairs_freedom = sum(s.freedom for _, s in self._pairs.values())
        apart = (pairs + GUESS_WEIGHT * (1.0 - SEED)) / (pairs_freedom + GUESS_WEIGHT)
        seed = min(_MOST_SEED, max(0.0, 1.0 - apart))
        share = drift / (1.0 + drift)
        return share, seed * (1.0 - share)

    def noise_of(self, figure: str, program: int) -> Noise | None:
        """σ of another metric of a program, from its own runs and others'; None while none gave it twice."""
        values = {p: [s.figures[figure] for s in own if figure in s.figures] for p, own in self._programs.items()}
        squares = {p: _squares(own) for p, own in values.items() if len(own) > 1}
        known, total = sum(s.freedom for s in squares.values()), math.fsum(s.total for s in squares.values())
        if not known:
            return None
        if total / known < sys.float_info.min:
            return Noise(math.sqrt(total / known), known)
        own = squares.get(program, Squares()), max(1, len(values.get(program, ())))
        return _mixed(weighed_priors(list(squares.values())), [own], known)

    def readings(self, incumbent: int, samples: Sequence[Sample]) -> list[Reading]:
        """What compares an experiment with the incumbent: the incumbent's earlier runs, then those of the test."""
        here = {s.test for s in samples}
        earlier = [s for s in self.samples(incumbent) if s.test not in here]
        return readings_of([*earlier, *(s for s in samples if s.program in (s.test, incumbent))], incumbent)


def readings_of(samples: Iterable[Sample], incumbent: int) -> list[Reading]:
    """Runs of the incumbent, and of programs that all count as the experiment's."""
    return [Reading(s.program != incumbent, s.test, s.seed, s.value) for s in samples]


def _mixed(priors: Sequence[VariancePrior], programs: Sequence[tuple[Squares, int]], known: int) -> Noise:
    """σ in a comparison of programs (their squares, and how often they ran), as it follows from each of the priors."""
    mixture = tuple((prior.weight, *prior.compare(programs, known)) for prior in priors)
    sigma = math.exp(math.fsum(weight * math.log(x) for weight, x, _ in mixture))
    worth = round(math.fsum(weight * x for weight, _, x in mixture))
    return Noise(sigma, max(1, worth), mixture=mixture)


def _variance(priors: Sequence[VariancePrior], spread: _Spread) -> float:
    """Variance of a program's runs within a test: the inverse of the precision that the priors lead to on average."""
    variances = [(prior.weight, prior.variance(spread.within)) for prior in priors]
    least = min(variance for _, variance in variances)
    return least / math.fsum(weight * least / variance for weight, variance in variances)


def _spread(samples: Sequence[Sample]) -> _Spread:
    tests: dict[int, list[float]] = {}
    for s in samples:
        tests.setdefault(s.test, []).append(s.value)
    whole, inner = _squares([s.value for s in samples]), [_squares(values) for values in tests.values()]
    within = Squares(math.fsum(s.total for s in inner), sum(s.freedom for s in inner))
    between = Squares(max(0.0, whole.total - within.total), whole.freedom - within.freedom)
    factor = len(samples) - sum(len(values) ** 2 for values in tests.values()) / len(samples)
    return _Spread(within, between, factor)


def _squares(values: Sequence[float]) -> Squares:
    centre = mean(values)
    return Squares(math.fsum((v - centre) ** 2 for v in values), len(values) - 1)
