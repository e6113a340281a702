"""All runs of a segment that say something about noise: σ over programs, how it is made up, and what to compare.

The variance of a program's runs is pooled over all programs that ran more than once (n − 1 weights) as far as they are
alike, so σ is better known after each repeat; where they differ, runs of the compared programs count more
(``noise``). It is taken apart as in a nested analysis of variance (Searle, Casella, McCulloch, *Variance
Components*, 1992, ch. 3): runs of one program made for one test lie next to each other, those made for different tests
far apart, so what is between tests is drift; what pairs on one seed have in common is the luck of the seed. Three
numbers from a handful of runs need help: each share is shrunk towards a guess that is worth ``GUESS_WEIGHT`` runs.
The shares are taken to be the same for all programs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from autoresearchd.evaluator.keep.keep_rule import Program, Reading
from autoresearchd.evaluator.keep.noise import ALIKE, Noise, Squares, VariancePrior, alike, mean, weighed_priors

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
    """One finished run. program: number of the experiment whose program ran; test: of the one that it was made for.

    value is goodness: larger is better. figures: further metrics that constraints bound.
    """

    program: int
    test: int
    seed: int
    value: float
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Spread:
    """Sums of squares of one program, with their degrees of freedom, within tests and between them."""

    within: float = 0.0
    within_freedom: int = 0
    between: float = 0.0
    between_freedom: int = 0
    factor: float = 0.0

    def expected(self, share: float) -> float:
        """The sum of squares to expect in units of σ², where runs of one test have this share in common."""
        return (1.0 - share) * (self.within_freedom + self.between_freedom) + share * self.factor

    def whole(self, share: float) -> Squares:
        """All squares, scaled to those of as many runs with nothing in common."""
        freedom = self.within_freedom + self.between_freedom
        if not freedom:
            return Squares()
        return Squares((self.within + self.between) * freedom / self.expected(share), freedom)


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
            self._pairs[samples[0].test] = beside[0].program, Squares(*_squares(pairs))

    def with_samples(self, samples: Sequence[Sample]) -> NoiseData:
        """This noise_data and the runs of one more experiment, for a look; this one stays as it is."""
        other = NoiseData()
        other._programs, other._spreads, other._pairs = dict(self._programs), dict(self._spreads), dict(self._pairs)
        other.experiments, other.extra = self.experiments, self.extra
        other.take(samples)
        return other

    def values(self, program: int) -> list[float]:
        """Values of a program's runs, oldest first."""
        return [s.value for s in self._programs.get(program, ())]

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

        A machine that was idle is faster at first (turbo, burst credits, a cold case): beside such a baseline nothing
        would ever look like a gain. One more run tells, and teaches how far the machine drifts.
        """
        if self.baseline != incumbent or self.experiments < RECHECK_AFTER:
            return False
        return len({s.test for s in self._programs[incumbent]}) == 1

    def noise(self, *programs: int) -> Noise | None:
        """σ and what is known of it; None while no program ran twice.

        programs: one program, or one that is compared with the incumbent, which it was made from; none: as if all were
        alike.
        """
        spreads = self._spreads.values()
        freedom = sum(s.within_freedom for s in spreads)
        between_freedom = sum(s.between_freedom for s in spreads)
        squares, between = math.fsum(s.within for s in spreads), math.fsum(s.between for s in spreads)
        known = freedom + between_freedom
        if known == 0:
            return None
        if squares + between == 0.0:
            return Noise(0.0, known)
        if not freedom or squares / freedom < sys.float_info.min:
            return Noise(math.sqrt((squares + between) / known), known)
        within = [Squares(s.within, s.within_freedom) for s in spreads]
        priors = weighed_priors(within) if programs else [alike(within)]
        share, seed = self._shares(priors)
        # Expected sums of squares in units of σ²: (1 − share) for each degree of freedom, and share times the factor.
        pooled = (squares + between) / math.fsum(s.expected(share) for s in spreads)
        if not programs:
            return Noise(math.sqrt(pooled), known, test=share, seed=seed)
        # A centre is of runs within a test; across tests there is drift as well.
        apart = [replace(p, centre=pooled if p.freedom == ALIKE else p.centre / (1.0 - share)) for p in priors]
        compared = [
            (self._spreads.get(p, _Spread()).whole(share), max(1, len(self._programs.get(p, ())))) for p in programs
        ]
        return _mixed(apart, compared, known, test=share, seed=seed)

    def _shares(self, priors: Sequence[VariancePrior]) -> tuple[float, float]:
        """Shares of the variance that runs of one test, and those on one seed, have in common.

        Each program's squares count in units of its own variance, or the noisiest alone would tell.
        """
        unit = {p: _variance(priors, s) for p, s in self._spreads.items()}
        unknown = _variance(priors, _Spread())
        spreads = self._spreads.values()
        between = math.fsum(s.between / unit[p] for p, s in self._spreads.items())
        factor = math.fsum(s.factor for s in spreads)
        drift = (between - sum(s.between_freedom for s in spreads) + GUESS_WEIGHT * DRIFT) / (factor + GUESS_WEIGHT)
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
        """σ of another metric of a program, known from its own runs and from others'; None while none gave it twice."""
        values = {
            p: [s.figures[figure] for s in samples if figure in s.figures] for p, samples in self._programs.items()
        }
        squares = {p: Squares(*_squares(own)) for p, own in values.items() if len(own) > 1}
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
        earlier = [s for s in self._programs.get(incumbent, ()) if s.test not in here]
        return [
            *(Reading(Program.INCUMBENT, s.test, s.seed, s.value) for s in earlier),
            *(
                Reading(Program.EXPERIMENT if s.program == s.test else Program.INCUMBENT, s.test, s.seed, s.value)
                for s in samples
                if s.program in (s.test, incumbent)
            ),
        ]


def _mixed(
    priors: Sequence[VariancePrior],
    programs: Sequence[tuple[Squares, int]],
    known: int,
    *,
    test: float = 0.0,
    seed: float = 0.0,
) -> Noise:
    """σ in a comparison of programs (their squares, and how often they ran), as it follows from each of the priors."""
    mixture = tuple((prior.weight, *prior.compare(programs, known)) for prior in priors)
    sigma = math.exp(math.fsum(weight * math.log(x) for weight, x, _ in mixture))
    worth = round(math.fsum(weight * x for weight, _, x in mixture))
    return Noise(sigma, max(1, worth), test=test, seed=seed, mixture=mixture)


def _variance(priors: Sequence[VariancePrior], spread: _Spread) -> float:
    """Variance of a program's runs within a test: the inverse of the precision that the priors lead to on average."""
    own = Squares(spread.within, spread.within_freedom)
    found = [(prior.weight, prior.variance(own)) for prior in priors]
    least = min(variance for _, variance in found)
    return least / math.fsum(weight * least / variance for weight, variance in found)


def _spread(samples: Sequence[Sample]) -> _Spread:
    tests: dict[int, list[float]] = {}
    for s in samples:
        tests.setdefault(s.test, []).append(s.value)
    total, freedom = _squares([s.value for s in samples])
    inner = [_squares(values) for values in tests.values()]
    within, within_freedom = math.fsum(s for s, _ in inner), sum(f for _, f in inner)
    factor = len(samples) - sum(len(values) ** 2 for values in tests.values()) / len(samples)
    return _Spread(within, within_freedom, max(0.0, total - within), freedom - within_freedom, factor)


def _squares(values: Sequence[float]) -> tuple[float, int]:
    """Sum of squared deviations, and its degrees of freedom."""
    centre = mean(values)
    return math.fsum((v - centre) ** 2 for v in values), len(values) - 1
