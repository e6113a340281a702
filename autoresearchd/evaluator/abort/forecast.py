"""A run's final value, with its uncertainty, forecast from its curve so far: several models, weighed by past errors.

Finished runs are the references: their smoothed curves on one grid of progress. Runs that differ by less than the noise
of a seed count as one program. The models, each with the bias and the error that it showed on good programs:

- ``drop``: the loss now, less what good programs still lost from here on, in the unit of the metric: the drop contains
  what a power law cannot see, the cool-down of the learning rate and the offset between training loss and metric.
- ``slope``: the same drop, scaled by how fast this run is falling compared with them.
- ``law``: the power law a·t^−b + c of arXiv:2603.07300.
- ``incumbent``: the incumbent's final value plus the gap to its curve at the same progress.

Weights are the inverse mean squared errors (Bates & Granger 1969); the variance of the mixture includes how far the
models disagree. Without finished runs the power law stands alone, with an honest, wide interval.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from autoresearchd.evaluator.abort.learning_curve import Array, Curve, fit_power_law, roughness, trailing

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
    fitted = [fit_power_law(curve.progress[:end], curve.losses[:end]) if end else None for end in seen]
    laws = np.array([law.at(1.0) if law else math.nan for law in fitted])
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
    fitted = fit_power_law(curve.progress, curve.losses)
    law = fitted.at(1.0) if fitted else None
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
