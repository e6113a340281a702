"""Where the curve of a run that ends at a given value must lie: a band around those of the good finished programs.

At each of ``GRID``'s shares of the budget, a program that ends at f has the level a + b·f + noise: one line per share,
by least squares, over the better half of the distinct programs. It is drawn towards b = 1 by a prior, and lifted where
later programs lie higher than earlier ones. So the unit of the log and its offset from the metric need not be known;
and where the curves tell little of the end, the noise is large and the band wide.

The *score* of a run against an end says how far its level lies above that line: Student's t for a new observation, as
the normal deviate of the same probability. Each finished program has a score against its own end, the highest over all
shares: judged by the other programs now, and by those that were known before it, whichever is higher (what changes with
time shows in the latter). ``Band.limit`` is the ⌊α(K+1)⌋-th highest of the K scores. A run that truly ends at the bar
is one more draw from these scores if it is exchangeable with the good programs, and exceeds the limit at *any* of its
looks with a probability of at most α (conformal prediction: Vovk et al., *Algorithmic Learning in a Random World*,
2005, ch. 2; the highest over the looks makes it valid at all of them at once). An improvement ends below the bar, and
is lost less often still.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autoresearchd.evaluator.abort.learning_curve import Array

GRID = np.arange(2, 20) / 20
"""Shares of the budget at which curves are compared."""
SAME_FROM = 2
"""Copies of one program are told by their levels from this one of ``GRID`` on: earlier, seeds differ most."""
ALPHA = 0.1
"""Nominal share of the programs which end just at the bar that are ended early."""
MIN_DISTINCT = 12
"""Nothing is aborted before so many distinct programs have finished; above 1/α − 1, the least that can bound it."""
LEAST = 8
"""With fewer programs before it, a finished one is judged only by the others of now."""
GOOD_SHARE = 0.5
UNIT_SD = 0.5
"""Prior standard deviation of b around 1."""
NEWEST = 10
"""A limit is also the highest score of so many newest good programs: where the world changed, they know."""
LEAST_LIMIT = 1.28
"""The normal deviate of ``ALPHA``: where curves are told to the last digit, luck is not."""
_ROUNDS = 3
Z90 = 1.645


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of the final value, lower is better; [low, high] holds it nine times in ten if the past is a guide."""

    mean: float
    sd: float

    @property
    def low(self) -> float:
        return self.mean - Z90 * self.sd

    @property
    def high(self) -> float:
        return self.mean + Z90 * self.sd

    def gain(self, value: float) -> float:
        """The expected improvement on a value."""
        if not self.sd > 0:
            return max(0.0, value - self.mean)
        z = (value - self.mean) / self.sd
        return self.sd * (math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) + z * 0.5 * math.erfc(-z / math.sqrt(2)))


class Band:
    """Lines from final value to level, one for each of ``GRID``; lower values are better.

    levels: (K, P), NaN where unknown; finals: (K,); ages: (K,), positions in the history; before: (K,), scores from
    when the programs finished; now: the position for which it holds.
    """

    def __init__(self, levels: Array, finals: Array, ages: Array, before: Array, now: float) -> None:
        self.programs = count = len(finals)
        self.known: npt.NDArray[np.bool_] = np.asarray(np.isfinite(levels).all(axis=0))
        self._ages, self._before = ages, before
        levels = np.where(self.known, levels, 0.0)
        self._centre, self._levels = float(finals.mean()), levels.mean(axis=0)
        self._x = finals - self._centre
        rest = levels - self._levels - self._x[:, None]
        square = float(self._x @ self._x)
        least = 1e-12 * (float(np.max(rest**2)) + square / count) + 1e-300
        variance = (rest**2).sum(axis=0) / (count - 1) + least
        for _ in range(_ROUNDS):
            weight = square + variance / UNIT_SD**2
            slope = np.maximum(self._x @ rest / weight, -1.0)
            errors = rest - slope * self._x[:, None]
            variance = (errors**2).sum(axis=0) / (count - 2) + least
        self._slope, self._errors, self._variance, self._weight, self._least = (
            1 + slope,
            errors,
            variance,
            weight,
            least,
        )
        old = ages - ages.mean()
        growth = np.maximum(0.0, old @ errors / max(float(old @ old), 1e-9))
        self._levels = self._levels + growth * (now - float(ages.mean()))

    @cached_property
    def limit(self) -> float:
        """The score that a run must exceed to be ended."""
        count = self.programs
        leverage = np.minimum(1 / count + self._x[:, None] ** 2 / self._weight, 0.9)
        others = ((count - 2) * self._variance - self._errors**2 / (1 - leverage)) / (count - 3)
        scores = self._errors / np.sqrt((1 - leverage) * np.maximum(others, self._least))
        highest = _deviates(np.where(self.known, scores, -np.inf).max(axis=1), count - 3)
        highest = np.maximum(highest, self._before)
        rank = max(1, int(ALPHA * (count + 1) + 1e-9))
        newest = highest[np.argsort(self._ages)[-NEWEST:]]
        return max(LEAST_LIMIT, float(np.sort(highest)[-rank]), float(newest.max()))

    def scores(self, levels: Array, end: float, noise: float = 0.0) -> Array:
        """How far levels at ``GRID`` lie above those of a program that ends at ``end``; −∞ where it is not known.

        noise: a standard deviation that the programs known may not have shown, as all ran on one seed.
        """
        x = end - self._centre
        expected = self._levels + self._slope * x
        sd = np.sqrt(self._variance * (1 + 1 / self.programs + x * x / self._weight) + noise * noise)
        scores = _deviates((levels - expected) / sd, self.programs - 2)
        return np.where(self.known & np.isfinite(scores), scores, -np.inf)

    def forecast(self, cell: int, level: float) -> Forecast:
        """The end of a run with this level at ``GRID[cell]``, with the good programs as its prior (normal, Bayes)."""
        slope, variance = float(self._slope[cell]), float(self._variance[cell])
        prior = float(self._x @ self._x) / (self.programs - 1) + self._least
        precision = 1 / prior + slope * slope / variance
        mean = self._centre + slope * (level - float(self._levels[cell])) / variance / precision
        away = 1 + 1 / self.programs + (mean - self._centre) ** 2 / float(self._weight[cell])
        return Forecast(mean, math.sqrt(away / precision))


def _deviates(scores: Array, freedom: int) -> Array:
    """Normal deviates of the same upper probability as Student's t."""
    from scipy.special import ndtri, stdtr  # slow to import, and only needed while a job runs

    return np.asarray(-ndtri(np.clip(stdtr(freedom, -scores), 1e-15, 1 - 1e-15)))


class Finished:
    """The distinct programs that finished, oldest first: levels at ``GRID``, final values, positions, scores."""

    def __init__(self) -> None:
        self._table: dict[str, Array] = {n: np.empty((0, *shape)) for n, shape in _COLUMNS.items()}
        self._band: Band | None = None

    @property
    def distinct(self) -> int:
        """How many there are."""
        return len(self._table["finals"])

    def tolerance(self, delta: float) -> float:
        """How close two runs of one program lie: delta; where it is not known, a fiftieth of the finals' spread."""
        finals = self._table["finals"]
        if delta > 0 or len(finals) < 4:
            return delta
        return 0.02 * float(np.subtract(*np.percentile(finals, [75, 25])))

    def band(self) -> Band | None:
        """The band as of the newest program; None: too few programs are known."""
        count = self.distinct
        if count < LEAST:
            return None
        if self._band is None:
            good = np.argsort(self._table["finals"], kind="stable")[: max(MIN_DISTINCT, math.ceil(GOOD_SHARE * count))]
            now = float(self._table["ages"][-1]) + 1
            levels, finals, ages, scores = (self._table[name][good] for name in _COLUMNS)
            self._band = Band(levels, finals, ages, scores, now)
        return self._band

    def add(self, levels: Array, final: float, now: int, delta: float, *, another: bool) -> None:
        """Take a finished run; another: it is known to be no program of before."""
        if not another and self._is_copy(levels, final, self.tolerance(delta)):
            return
        band = self.band()
        score = float(band.scores(levels, final).max()) if band else -math.inf
        for name, value in (("levels", levels), ("finals", final), ("ages", now), ("scores", score)):
            self._table[name] = np.append(self._table[name], np.asarray([value], dtype=np.float64), axis=0)
        self._band = None

    def _is_copy(self, levels: Array, final: float, tolerance: float) -> bool:
        gaps = (self._table["levels"] - levels)[:, SAME_FROM:]
        known = np.isfinite(gaps)
        squares = np.where(known, gaps, 0.0) ** 2
        near = squares.sum(axis=1) <= tolerance**2 * known.sum(axis=1)
        return bool(np.any(near & known.any(axis=1) & (np.abs(self._table["finals"] - final) <= tolerance)))

    def to_state(self) -> dict[str, str]:
        """The table as JSON-able values: doubles in base64."""
        return {name: base64.b64encode(values.tobytes()).decode("ascii") for name, values in self._table.items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Finished:
        """Read back what ``to_state`` gave."""
        new = cls()
        for name, shape in _COLUMNS.items():
            new._table[name] = np.frombuffer(base64.b64decode(state[name]), dtype=np.float64).reshape((-1, *shape))
        return new


_COLUMNS: Mapping[str, tuple[int, ...]] = {"levels": (len(GRID),), "finals": (), "ages": (), "scores": ()}
