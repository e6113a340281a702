"""What becomes of a run, by its curve so far: its final value with its uncertainty, and the evidence against it.

Finished runs are the references: their smoothed curves on one grid of progress. Runs that differ by less than the noise
of a seed count as one program. The forecast is that of several models, each with the bias and the error that it showed
on good programs, weighed by the inverse mean squared error (Bates & Granger 1969):

- ``drop``: the loss now, less what good programs still lost from here on, in the unit of the metric: the drop contains
  what a power law cannot see, the cool-down of the learning rate and the offset between training loss and metric.
- ``slope``: the same drop, scaled by how fast this run is falling compared with them.
- ``law``: the power law a·t^−b + c of arXiv:2603.07300; without finished runs it stands alone, its interval wide.
- ``incumbent``: the incumbent's final value plus the gap to its curve at the same progress.

The evidence in one check is against "this run ends below the bar": its loss would still drop by need = level − bar.
Is that too far for another draw from good finished programs (Student's t for one new observation)? Their spread is
widened by what they cannot tell: seed noise; a share of all that is still to be learned, larger early; a trend. Where
the incumbent's own runs are known (``Pairs``), a run's gap to their mean level tells how far it will end above their
mean, its lead, by a line from lead to gap over finished experiments, each beside the incumbent of *its* time.

The error budget is spent over the checks of a run by a spending function (Lan & DeMets 1983), in proportion to what an
abort saves: α(p) = α·(1 − (1−p)²). The union bound holds under Student's t, which real programs do not obey: α is
nominal, the promise of 5% is measured, and ``abort_policy`` guards it.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from autoresearchd.evaluator.abort.learning_curve import Array, Curve, end_of_power_law, roughness, trailing

CELLS = 100
GRID = np.arange(1, CELLS + 1) / CELLS
LAW_POINTS = np.arange(1, 6) / 5
SAME_FROM = 19
"""Curves are compared from 20% of the budget on: earlier, seeds of one program differ most."""
UNIT_SD = 3.0
"""Prior standard deviation of the slope at the end: units may well differ by such a factor."""
GAIN_SD = 0.3
"""And of the slope at a progress around the one at the end, as a share of the units' ratio."""
MOST, FEWEST, BEST_SHARE = 20, 8, 0.5
"""Compared with are the best programs, this share of all, but no more and no fewer than so many."""
Z90 = 1.645
_FLATTEST = -0.8
_ROUNDS = 3
_COLUMNS: Mapping[str, tuple[int, ...]] = {
    "drops": (CELLS,), "slopes": (CELLS,), "laws": (len(LAW_POINTS),), "finals": (), "programs": (), "noises": ()
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """A finished run; everything is measured from its final value, so that adding a constant to it changes nothing.

    drops: level minus final value on GRID (NaN before its first point); slopes: steepness on GRID; laws: power-law
    forecast minus final value, made at LAW_POINTS.
    """

    drops: Array
    slopes: Array
    laws: Array
    final: float
    noise: float


def summarise(curve: Curve, final: float) -> Summary:
    """Reduce a finished run to what forecasts need of it; rounded to single precision, in which it is stored."""
    levels, slopes = trailing(curve)
    grid_levels = np.interp(GRID, curve.progress, levels)
    grid_slopes = np.interp(GRID, curve.progress, slopes)
    unseen = curve.progress[0] - 1e-9 > GRID
    grid_levels[unseen] = math.nan
    grid_slopes[unseen] = math.nan
    seen = [int(np.searchsorted(curve.progress, point + 1e-9)) for point in LAW_POINTS]
    ends = [end_of_power_law(curve.progress[:end], curve.losses[:end]) for end in seen]
    laws = np.array([math.nan if end is None else end for end in ends])
    with np.errstate(over="ignore"):
        drops, slopes, laws = (
            x.astype(np.float32).astype(np.float64) for x in (grid_levels - final, grid_slopes, laws - final)
        )
    return Summary(drops, slopes, laws, final, roughness(curve.losses))


@dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """One row for each distinct program that finished, seen at one progress.

    drops: level minus final value, the mean over its runs; ends: the same at the end of the budget; finals: its best;
    means: its mean; last: position of its newest run; rows: that run in the table; runs: how many it had.
    """

    drops: Array
    ends: Array
    finals: Array
    means: Array
    last: Array
    rows: npt.NDArray[np.intp]
    runs: Array


def cells_at(progress: float, cells: int) -> tuple[int, int, float]:
    """The cells of a grid on both sides of a progress, and how far it lies towards the second."""
    place = min(max(progress * cells - 1, 0.0), cells - 1.0)
    low = int(place)
    return low, min(low + 1, cells - 1), place - low


class References:
    """The table of finished runs, growing by one row each."""

    def __init__(self) -> None:
        self._representatives: list[int] = []
        self._table: dict[str, Array] = {name: np.empty((0, *shape)) for name, shape in _COLUMNS.items()}

    def __len__(self) -> int:
        return len(self._table["finals"])

    @property
    def distinct(self) -> int:
        """How many distinct programs have finished."""
        return len(self._representatives)

    @property
    def finals(self) -> Array:
        """Final values of all runs, oldest first."""
        return self._table["finals"]

    @property
    def noise(self) -> float:
        """Median noise of the logs."""
        return float(np.median(self._table["noises"])) if len(self) else 0.0

    def typical_final(self) -> float:
        """Median final value over distinct programs."""
        return float(np.median(self.finals[self._representatives])) if self._representatives else math.inf

    def add(self, run: Summary, tolerance: float, *, another: bool = False) -> None:
        """Take a finished run; it joins the program whose newest run it resembles, unless it is known to be another."""
        program = len(self._representatives) if another else self._program_of(run, tolerance)
        row = len(self)
        new = {"drops": run.drops, "slopes": run.slopes, "laws": run.laws, "finals": run.final, "noises": run.noise}
        for name, value in (new | {"programs": program}).items():
            self._table[name] = np.append(self._table[name], np.asarray([value], dtype=np.float64), axis=0)
        self._representatives[program : program + 1] = [row]

    def _program_of(self, run: Summary, tolerance: float) -> int:
        new = len(self._representatives)
        if not new:
            return new
        rows = np.array(self._representatives)
        apart = self.finals[rows] - run.final
        gaps = self._table["drops"][rows, SAME_FROM:] - run.drops[SAME_FROM:] + apart[:, None]
        known = np.isfinite(gaps)
        squares = np.where(known, gaps, 0.0) ** 2
        distance = np.sqrt(squares.sum(axis=1) / np.maximum(known.sum(axis=1), 1))
        same = known.any(axis=1) & (distance <= tolerance) & (np.abs(apart) <= tolerance)
        return int(np.argmin(np.where(same, distance, np.inf))) if same.any() else new

    def at(self, name: str, progress: float, rows: npt.NDArray[np.intp] | slice) -> Array:
        """A column of ``drops``, ``slopes`` or ``laws`` at any progress, linear between the cells of the grid."""
        table = self._table[name]
        low, high, share = cells_at(progress, table.shape[1])
        if share < 1e-9:
            return np.asarray(table[rows, low])
        return np.asarray(table[rows, low] * (1 - share) + table[rows, high] * share)

    def programs_at(self, progress: float) -> Programs:
        """Every distinct program at one progress; those that logged nothing until then are left out."""
        drops = self.at("drops", progress, slice(None))
        ends = self._table["drops"][:, -1]
        rows = np.flatnonzero(np.isfinite(drops) & np.isfinite(ends))
        programs = self._table["programs"][rows].astype(np.intp)
        count = np.bincount(programs, minlength=self.distinct)
        seen = np.flatnonzero(count)
        values = (drops, ends, self.finals)
        drop, end, mean = (np.bincount(programs, x[rows], minlength=self.distinct)[seen] / count[seen] for x in values)
        best = np.full(self.distinct, math.inf)
        np.minimum.at(best, programs, self.finals[rows])
        newest = np.zeros(self.distinct, dtype=np.intp)
        newest[programs] = rows
        last, runs = newest[seen].astype(np.float64), count[seen].astype(np.float64)
        return Programs(drop, end, best[seen], mean, last, newest[seen], runs)

    def to_state(self) -> dict[str, Any]:
        """The table as JSON-able values; curves in base64 of single-precision floats."""
        state: dict[str, Any] = {"size": len(self), "representatives": list(self._representatives)}
        for name, values in self._table.items():
            kind = np.float32 if values.ndim == 2 else np.float64
            state[name] = base64.b64encode(values.astype(kind).tobytes()).decode("ascii")
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> References:
        """Read back what ``to_state`` gave."""
        new = cls()
        new._representatives = [int(row) for row in state["representatives"]]
        for name, shape in _COLUMNS.items():
            values = np.frombuffer(base64.b64decode(state[name]), dtype=np.float32 if shape else np.float64)
            new._table[name] = values.astype(np.float64).reshape((int(state["size"]), *shape))
        return new


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A program that ends at ``final`` drops by mean + gain · (final − centre); errors: how far each lies above."""

    mean: float
    centre: float
    gain: float
    errors: Array


def draw(drops: Array, finals: Array, gain: float, sd: float) -> Line:
    """A line by least squares, its slope held at ``gain`` by a prior of standard deviation ``sd``."""
    count, mean, centre = len(drops), float(drops.mean()), float(finals.mean())
    x = finals - centre
    rest = drops - mean - gain * x
    square, variance = float(x @ x), float(rest @ rest) / (count - 1)
    if count < 4 or not (square > 0 and variance > 0):
        return Line(mean, centre, gain, rest)
    slope = 0.0
    for _ in range(_ROUNDS):
        weight = square + variance / sd**2
        slope = max(float(x @ rest) / weight, _FLATTEST - gain)
        errors = rest - slope * x
        variance = float(errors @ errors) / (count - 1 - square / weight)
    return Line(mean, centre, gain + slope, rest - slope * x)


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of the final value, lower is better; [low, high] holds it nine times in ten if the past is a guide."""

    mean: float
    low: float
    high: float

    @classmethod
    def around(cls, mean: float, sd: float) -> Forecast:
        return cls(mean, mean - Z90 * sd, mean + Z90 * sd)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands: its progress, smoothed loss, and fall per unit of log progress."""

    progress: float
    level: float
    slope: float


def standing(curve: Curve) -> Standing:
    """The smoothed end of a curve."""
    levels, slopes = trailing(curve)
    return Standing(curve.last, float(levels[-1]), float(slopes[-1]))


def good_programs(programs: Programs) -> Programs:
    """The better half of the distinct programs: what an improvement will resemble most."""
    size = len(programs.finals)
    count = min(MOST, max(FEWEST, math.ceil(BEST_SHARE * size)))
    best = np.argsort(programs.finals, kind="stable")[:count]
    return programs if size <= count else Programs(*(getattr(programs, f.name)[best] for f in fields(programs)))


def forecast(curve: Curve, references: References) -> Forecast | None:
    """Forecast a run's final value; None where the curve has too few points and there is nothing to compare with."""
    here = standing(curve)
    good = good_programs(references.programs_at(here.progress)) if references.distinct >= 2 else None
    law = end_of_power_law(curve.progress, curve.losses)
    if good is None or len(good.finals) < 2:
        if law is None:
            return None
        return Forecast.around(law, abs(float(curve.losses[-1]) - law) + float(np.std(curve.losses[-8:])))
    models = _models(here, law, good, references)
    return _combine([m for m in models if math.isfinite(m[0]) and np.isfinite(m[1]).sum() >= 2])


def _models(here: Standing, law: float | None, good: Programs, references: References) -> Iterator[tuple[float, Array]]:
    """What each model forecasts, and its errors on the good programs."""
    units = draw(good.ends, good.means, 0.0, UNIT_SD)
    line = draw(good.drops, good.means, units.gain, GAIN_SD * (1 + units.gain))
    end = line.centre + (here.level - line.mean - line.centre) / (1 + line.gain)
    yield end, _left_out(line.errors) / (1 + line.gain)
    slopes = references.at("slopes", here.progress, good.rows)
    falling = slopes > 0
    if falling.sum() >= 2 and here.slope > 0:
        drops = good.drops[falling]
        ratio = float(np.median(drops / slopes[falling]))
        yield here.level - here.slope * ratio, _left_out(drops - slopes[falling] * ratio)
    biases = references.at("laws", here.progress, good.rows)
    biases = biases[np.isfinite(biases)]
    if law is not None and len(biases) >= 2:
        bias = float(np.median(biases))
        yield law - bias, _left_out(biases - bias)
    best = int(np.argmin(good.finals))
    yield here.level - float(good.drops[best]), np.delete(good.drops, best) - good.drops[best]


def _left_out(errors: Array) -> Array:
    """Errors as they would have been had each program been left out of the mean that judges it."""
    return errors * (len(errors) / max(len(errors) - 1, 1))


def _combine(models: Sequence[tuple[float, Array]]) -> Forecast | None:
    if not models:
        return None
    squares = [float(np.nanmean(errors**2)) for _, errors in models]
    least = max(squares) * 1e-9
    raw = [1.0 / max(square, least) if square > 0 or least > 0 else 1.0 for square in squares]
    weights = [weight / sum(raw) for weight in raw]
    mean = sum(weight * value for weight, (value, _) in zip(weights, models, strict=True))
    parts = zip(weights, squares, models, strict=True)
    variance = sum(weight * (square + (value - mean) ** 2) for weight, square, (value, _) in parts)
    return Forecast.around(mean, math.sqrt(variance))


# ---------------------------------------------------------------------- the evidence
MIN_DISTINCT = 10
"""Nothing is aborted before so many distinct programs have finished."""
NOISE_SHARE = 0.7
"""Seed noise that means over the runs of a program hide, as a share of delta (which is two standard deviations)."""
NOISE_LEAST = 0.35
"""And what is added in any case: drops of single runs show the noise, but few may be alike by luck."""
NOVELTY, PAIRED_NOVELTY = 0.2, 0.15
"""By which share of what is still to be learned a new kind of program may differ at the start; fades as (1−p)²."""
YOUTH = 2.0
"""Thresholds are raised by this over the number of distinct programs: with few, the spread's tails are unseen."""
TREND_ERRORS = 0.5
"""A trend in the drops counts from so many of its standard errors on."""
MOST_PAIRS = 100
"""Older experiments are forgotten: they met other incumbents, on a machine that has drifted since."""
_ARRAYS = ("levels", "seen", "gaps", "leads", "reigns")
_HUGE = 1e100
"""The square of a larger number overflows; no metric is that large."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How many standard deviations the needed drop lies beyond the expected one, by how many programs."""

    score: float
    programs: int
    distinct: int


def _evidence(need: float, expected: float, sd: float, programs: int, distinct: int) -> Evidence | None:
    if not (math.isfinite(need) and math.isfinite(expected) and sd > 0 and math.isfinite(sd)):
        return None
    return Evidence((need - expected) / sd, programs, distinct)


def spent(alpha: float, progress: float) -> float:
    """How much of the error budget ``alpha`` may have been spent by this progress."""
    left = 1.0 - min(max(progress, 0.0), 1.0)
    return alpha * (1.0 - left * left)


def threshold(allowance: float, programs: int, distinct: int) -> float:
    """The score that a check must exceed: the upper quantile of Student's t, raised while few programs are known.

    allowance: what the check may spend; programs: good ones that are compared with, of ``distinct`` ones.
    """
    if programs < 2 or not 0 < allowance < 1:
        return math.inf
    from scipy.special import stdtrit  # slow to import, and only needed while a job runs

    return float(stdtrit(programs - 1, 1.0 - allowance)) * (1.0 + YOUTH / max(distinct, 1))


def _by_programs(here: Standing, bar: float, references: References, delta: float) -> Evidence | None:
    programs = references.programs_at(here.progress)
    distinct = len(programs.finals)
    if distinct < 3:
        return None
    good = good_programs(programs)
    expected, sd = expectation(good, here.progress, len(references), delta)
    return _evidence(here.level - bar, expected, sd, len(good.finals), distinct)


def expectation(good: Programs, progress: float, position: int, delta: float) -> tuple[float, float]:
    """Mean and standard deviation of the drop of one more good program, at the ``position``-th run of the history."""
    drops, count = good.drops, len(good.drops)
    mean = float(drops.mean())
    variance = float(drops.var(ddof=1)) * (1 + 1 / count)
    averaged = 1 - float(np.mean(1 / good.runs))
    noise = math.sqrt(NOISE_SHARE**2 * averaged + NOISE_LEAST**2) * delta
    sd = math.sqrt(variance + noise**2 + _novelty(good, progress, NOVELTY) ** 2)
    return mean + _trend(drops, good.last, position), sd


def _trend(drops: Array, last: Array, position: int) -> float:
    """How much further than on average the next drop will go if drops have grown with time; 0 where they have not."""
    age = last - last.mean()
    spread = float(age @ age)
    if spread <= 0:
        return 0.0
    centred = drops - drops.mean()
    growth = float(age @ centred) / spread
    errors = centred - growth * age
    error = math.sqrt(float(errors @ errors) / max(len(drops) - 2, 1) / spread)
    return growth * (position - float(last.mean())) if growth > TREND_ERRORS * error else 0.0


def tolerance(references: References, delta: float) -> float:
    """How close two curves of one program lie: delta, or, where it is not known, what the logs' noise suggests."""
    if delta > 0:
        return delta
    finals = references.finals
    spread = float(np.subtract(*np.percentile(finals, [75, 25]))) if len(finals) >= 4 else 0.0
    return max(2 * references.noise, 0.02 * spread)


class Pairs:
    """The incumbent's mean curve, and how finished experiments compared with the incumbent of their time."""

    def __init__(self) -> None:
        self._gaps: Array = np.empty((0, CELLS))
        self._leads: Array = np.empty(0)
        self._reigns: Array = np.empty(0)
        self._reign = -1
        self.succeed()

    def succeed(self) -> None:
        """Another program is the incumbent; nothing is known of its runs yet."""
        self._reign += 1
        self._runs = 0
        self._final = 0.0
        self._levels: Array = np.zeros(CELLS)
        self._seen: Array = np.zeros(CELLS)

    @property
    def final(self) -> float | None:
        """The mean metric of the incumbent's runs; None where none is known."""
        return self._final if self._runs else None

    def add(self, run: Summary) -> None:
        """Take a run of the incumbent into its means."""
        levels = run.drops + run.final
        known = np.isfinite(levels)
        self._seen = self._seen + known
        self._levels = self._levels + np.where(known, levels - self._levels, 0.0) / np.maximum(self._seen, 1)
        self._runs += 1
        self._final += (run.final - self._final) / self._runs

    def learn(self, run: Summary) -> None:
        """Compare a finished run of another program with the incumbent as it is known by now."""
        if self._runs == 0:
            return
        gaps = np.where(self._seen > 0, run.drops + (run.final - self._levels), math.nan)
        self._gaps = np.vstack((self._gaps, gaps))[-MOST_PAIRS:]
        self._leads = np.append(self._leads, run.final - self._final)[-MOST_PAIRS:]
        self._reigns = np.append(self._reigns, float(self._reign))[-MOST_PAIRS:]

    def weigh(self, here: Standing, bar: float, references: References, delta: float) -> Evidence | None:
        """The evidence against a run, by the incumbent's own runs where enough is known; None: too little is."""
        return self._paired(here, bar, references, delta) or _by_programs(here, bar, references, delta)

    def _paired(self, here: Standing, bar: float, references: References, delta: float) -> Evidence | None:
        low, high, share = cells_at(here.progress, CELLS)
        if self._runs == 0 or not (self._seen[low] and self._seen[high]) or len(self._leads) < MIN_DISTINCT:
            return None
        gaps = self._gaps[:, low] * (1 - share) + self._gaps[:, high] * share
        known = (np.abs(gaps) < _HUGE) & (np.abs(self._leads) < _HUGE)  # of NaN neither holds
        gaps, leads, count = gaps[known], self._leads[known], int(known.sum())
        programs = references.programs_at(here.progress)
        if count < MIN_DISTINCT or len(programs.finals) < 3:
            return None
        good = good_programs(programs)
        units = draw(good.ends, good.means, 0.0, UNIT_SD).gain
        line = draw(gaps - leads, leads, units, GAIN_SD * (1 + units))
        lead = bar - self._final
        level = self._levels[low] * (1 - share) + self._levels[high] * share
        need = here.level - float(level)
        expected = lead + line.mean + line.gain * (lead - line.centre)
        variance = float(line.errors @ line.errors) / (count - 2) * (1 + 1 / count)
        strangers = float(np.mean(self._reigns[known] != self._reign))
        luck = strangers * ((1 + line.gain) * delta / 2) ** 2 / self._runs
        sd = math.sqrt(variance + luck + _novelty(good, here.progress, PAIRED_NOVELTY) ** 2)
        return _evidence(need, expected, sd, count, count)

    def to_state(self) -> dict[str, Any]:
        """As JSON-able values; arrays in base64."""
        arrays = {name: base64.b64encode(getattr(self, f"_{name}").tobytes()).decode("ascii") for name in _ARRAYS}
        return {"reign": self._reign, "runs": self._runs, "final": self._final, **arrays}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Pairs:
        """Read back what ``to_state`` gave."""
        new = cls()
        new._reign, new._runs, new._final = int(state["reign"]), int(state["runs"]), float(state["final"])
        for name in _ARRAYS:
            values = np.frombuffer(base64.b64decode(state[name]), dtype=np.float64)
            setattr(new, f"_{name}", values.reshape(-1, CELLS) if name == "gaps" else values)
        return new


def _novelty(good: Programs, progress: float, share: float) -> float:
    """By how much a new kind of program may differ: a share of what is still to be learned, less and less of it."""
    return share * max(0.0, float(good.drops.mean()) - float(good.ends.mean())) * (1 - progress) ** 2
