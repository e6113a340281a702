"""Ranges and choices that a person has given: they bound the search, and nothing outside of them is legal."""

from __future__ import annotations

import math
from dataclasses import replace

from autoresearchd.policy.parameter import Kind, Parameter, Range, Scale, Value
from autoresearchd.policy.ranges import choice

_DECADE = 10.0
_STEPS = 5
"""At least so many moderate steps lie between the ends."""


def bounded(usual: Range | None, value: int | float, low: float, high: float) -> Range:
    """The range from ``low`` to ``high``, on the axis that the constant has anyway where that can be.

    usual: what its name and value give, None where they give nothing. Over a decade or more the axis is logarithmic.
    """
    low, high = float(low), float(high)
    whole = isinstance(value, int) and low.is_integer() and high.is_integer()
    kind = Kind.INT if whole else Kind.FLOAT
    usual = usual or Range(kind, Scale.LINEAR)
    scale = _scale(usual.scale, whole=whole, low=low, high=high)
    quantum = usual.quantum if whole and usual.quantum < high - low else 1
    found = replace(usual, kind=kind, scale=scale, low=low, high=high, hard=True, quantum=quantum)
    if scale is Scale.LOG1P:
        found = replace(found, pivot=min(usual.pivot, high / 10))
    ends = Parameter("", "", value, found, 0, 0, "").bounds()
    across = (ends[1] - ends[0]) / _STEPS
    step = usual.step if scale is usual.scale else math.log(1.5) if scale is Scale.LOG else across
    step = min(step, across)
    if whole and scale is Scale.LINEAR:
        step = float(max(1, round(step)))
    elif whole and scale is Scale.LOG:
        step = max(step, math.log1p(1 / low))
    return replace(found, step=step)


def _scale(usual: Scale, *, whole: bool, low: float, high: float) -> Scale:
    if usual is Scale.OCTAVE and whole and low >= 1 and math.floor(math.log2(high)) - math.ceil(math.log2(low)) >= 2:
        return Scale.OCTAVE
    if usual is Scale.COMPLEMENT and not whole and low >= 0 and high < 1:
        return Scale.COMPLEMENT
    if low > 0 and (high / low >= _DECADE or usual in (Scale.LOG, Scale.OCTAVE)):
        return Scale.LOG
    return Scale.LOG1P if usual is Scale.LOG1P and low >= 0 else Scale.LINEAR


def listed(value: Value, options: tuple[Value, ...]) -> Range | None:
    """The choice among ``options``, in the kind that ``value`` has; None where they are of another kind, or too few."""
    if isinstance(value, float):
        options = tuple(float(o) if isinstance(o, int) and not isinstance(o, bool) else o for o in options)
    options = tuple(dict.fromkeys(options))
    return choice(options) if len(options) > 1 and all(type(o) is type(value) for o in options) else None
