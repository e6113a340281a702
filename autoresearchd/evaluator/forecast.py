"""A run's final value, with its uncertainty, forecast from its curve so far: several models, weighed by past errors.

The models, each with the bias and the error that it showed on good finished programs at the same progress:

- ``drop``: the loss now, less what good programs still lost from here on, in the unit of the metric: the drop contains
  what a power law cannot see, the cool-down of the learning rate and the offset between training loss and metric.
- ``slope``: the same drop, scaled by how fast this run is falling compared with them.
- ``law``: the power law a·t^−b + c of arXiv:2603.07300.
- ``incumbent``: the incumbent's final value plus the gap to its curve at the same progress.

Weights are the inverse mean squared errors (Bates & Granger 1969); the variance of the mixture includes how far the
models disagree. Without finished runs the power law stands alone, with an honest, wide interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from autoresearchd.evaluator.forecast_curve import Array, Curve, trailing
from autoresearchd.evaluator.forecast_history import Programs, References
from autoresearchd.evaluator.forecast_line import line_through
from autoresearchd.evaluator.forecast_power import fit_power_law

MOST = 20
"""No more than so many of the best programs are compared with."""
FEWEST = 8
"""And no fewer than so many, even if that is more than the better half."""
BEST_SHARE = 0.5
Z90 = 1.645


@dataclass(frozen=True, slots=True)
class Forecast:
    """A forecast of the final value, lower is better; [low, high] holds it nine times in ten if the past is a guide.

    parts: what each model forecast; weights: how much it counted.
    """

    mean: float
    sd: float
    parts: Mapping[str, float]
    weights: Mapping[str, float]

    @property
    def low(self) -> float:
        """Lower end of the 90% interval."""
        return self.mean - Z90 * self.sd

    @property
    def high(self) -> float:
        """Upper end of the 90% interval."""
        return self.mean + Z90 * self.sd


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
    if size <= count:
        return programs
    best = np.argsort(programs.finals, kind="stable")[:count]
    return programs.chosen(best)


def forecast(curve: Curve, references: References) -> Forecast | None:
    """Forecast a run's final value; None where the curve has too few points and there is nothing to compare with."""
    here = standing(curve)
    good = good_programs(references.programs_at(here.progress)) if references.distinct >= 2 else None
    law = _law(curve)
    if good is None or len(good.finals) < 2:
        return _law_alone(curve, law)
    models: dict[str, tuple[float, Array]] = {}
    for name, model in _MODELS.items():
        got = model(here, law, good, references)
        if got is not None and math.isfinite(got[0]) and np.isfinite(got[1]).sum() >= 2:
            models[name] = got
    return _combine(models)


def _law(curve: Curve) -> float | None:
    fitted = fit_power_law(curve.progress, curve.losses)
    return fitted.at(1.0) if fitted else None


def _law_alone(curve: Curve, law: float | None) -> Forecast | None:
    if law is None:
        return None
    to_come = abs(float(curve.losses[-1]) - law) + float(np.std(curve.losses[-8:]))
    return Forecast(law, to_come, {"law": law}, {"law": 1.0})


def _drop(here: Standing, law: float | None, good: Programs, references: References) -> tuple[float, Array]:
    line = line_through(good)
    return line.final(here.level), _left_out(line.errors) / (1 + line.gain)


def _slope(here: Standing, law: float | None, good: Programs, references: References) -> tuple[float, Array] | None:
    slopes = references.at("slopes", here.progress, good.rows)
    falling = slopes > 0
    if falling.sum() < 2 or here.slope <= 0:
        return None
    drops = good.drops[falling]
    ratio = float(np.median(drops / slopes[falling]))
    return here.level - here.slope * ratio, _left_out(drops - slopes[falling] * ratio)


def _power(here: Standing, law: float | None, good: Programs, references: References) -> tuple[float, Array] | None:
    biases = references.at("laws", here.progress, good.rows)
    biases = biases[np.isfinite(biases)]
    if law is None or len(biases) < 2:
        return None
    bias = float(np.median(biases))
    return law - bias, _left_out(biases - bias)


def _incumbent(here: Standing, law: float | None, good: Programs, references: References) -> tuple[float, Array]:
    best = int(np.argmin(good.finals))
    return here.level - float(good.drops[best]), np.delete(good.drops, best) - good.drops[best]


_Model = Callable[[Standing, float | None, Programs, References], tuple[float, Array] | None]
_MODELS: Mapping[str, _Model] = {"drop": _drop, "slope": _slope, "law": _power, "incumbent": _incumbent}


def _left_out(errors: Array) -> Array:
    """Errors as they would have been had each program been left out of the mean that judges it."""
    return errors * (len(errors) / max(len(errors) - 1, 1))


def _combine(models: Mapping[str, tuple[float, Array]]) -> Forecast | None:
    if not models:
        return None
    squares = {name: float(np.nanmean(errors**2)) for name, (_, errors) in models.items()}
    least = max(squares.values()) * 1e-9
    raw = {name: 1.0 / max(square, least) if square > 0 or least > 0 else 1.0 for name, square in squares.items()}
    total = sum(raw.values())
    weights = {name: weight / total for name, weight in raw.items()}
    parts = {name: value for name, (value, _) in models.items()}
    mean = sum(weights[name] * parts[name] for name in parts)
    variance = sum(weights[name] * (squares[name] + (parts[name] - mean) ** 2) for name in parts)
    return Forecast(mean, math.sqrt(variance), parts, weights)
