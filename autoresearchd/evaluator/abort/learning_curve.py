"""A learning curve made fit for comparing: cleaned, on the scale of the budget, smoothed and named.

Whatever a job logged comes in here (NaN, steps that run backwards, a restart, a million points); nothing raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

MAX_POINTS = 400
"""Longer curves are thinned to the means of so many consecutive groups."""
LEAST_PROGRESS = 1e-9
"""Points before this share of the budget are no part of a curve: powers of smaller ones overflow."""
WINDOW = 0.5
"""The level at progress x is fitted to the points since (1 − WINDOW)·x: a fixed span of log progress."""
FIT_POINTS = 4
"""A level is fitted to no fewer points than this; with fewer, the last point is the level."""
DEAD_POINTS, DEAD_SHARE = 5, 0.05
"""So many losses in a row at the end that are not finite, and so large a share of the budget, mean a dead run."""
_LEAP, _LEAP_RATIO = 0.15, 8.0
_JUMP, _JUMP_SIDE = 12.0, 4
_STRANDED_SIDE = 2


class Shape(StrEnum):
    """What a curve looks like. Only ``regular`` curves are judged against others; ``dead`` ones need no comparison."""

    REGULAR = "regular"
    SHORT = "too few points"
    DEAD = "the loss is no number any more"
    RESTARTED = "the steps began anew"
    GAP = "the clock jumped"
    JUMPED = "the loss jumped as if its unit had changed"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A clean curve. progress: strictly increasing shares of the budget in (0, 1]; losses: finite, lower is better."""

    progress: Array
    losses: Array
    shape: Shape

    @property
    def last(self) -> float:
        """Progress of the last point."""
        return float(self.progress[-1])


def clean_curve(steps: Sequence[float], losses: Sequence[float], budget: float) -> Curve | None:
    """Read the losses at steps in the units of ``budget`` as a curve; None where no point of it can be used."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(losses, dtype=np.float64)
    size = min(len(x), len(y))
    if size == 0 or not (math.isfinite(budget) and budget > 0):
        return None
    with np.errstate(all="ignore"):
        x, y = x[:size] / budget, y[:size]
        placed = np.isfinite(x) & (x > LEAST_PROGRESS) & (x <= 1 + 1e-9)
        x, y = x[placed], y[placed]
        shape = Shape.DEAD if _is_dead(x, y) else Shape.REGULAR
        finite = np.isfinite(y) & (np.abs(y) < 1e100)
        x, y = x[finite], y[finite]
        if len(x) == 0:
            return None
        # Disorder explains that steps fall back by less than to half of what had been reached.
        restarted = bool(np.any(x < 0.5 * np.maximum.accumulate(x) - 0.02))
        x, y = _ordered(x, y)
        end = x[-1]
        x, y = _thinned(x, y)
        x[-1] = end
        if shape is Shape.REGULAR:
            shape = Shape.JUMPED if jumped(y) else shape
            shape = Shape.GAP if _has_gap(x) else shape
            shape = Shape.SHORT if len(x) < 2 else shape
            shape = Shape.RESTARTED if restarted else shape
    return Curve(x, y, shape)


def _is_dead(x: Array, y: Array) -> bool:
    finite = np.flatnonzero(np.isfinite(y))
    start = int(finite[-1]) + 1 if len(finite) else 0
    if len(y) - start < DEAD_POINTS:
        return False
    begun = float(x[finite[-1]]) if len(finite) else 0.0
    return float(x[-1]) - begun >= DEAD_SHARE


def _has_gap(x: Array) -> bool:
    """Whether progress leaps between two neighbours as a clock that was set, or a machine that slept, makes it leap."""
    gaps = np.diff(x)
    return bool(len(gaps) >= 3 and np.max(gaps) > max(_LEAP, _LEAP_RATIO * float(np.median(gaps))))


def _ordered(x: Array, y: Array) -> tuple[Array, Array]:
    """Points by progress; of several at the same progress, the last that was logged."""
    if np.all(np.diff(x) > 0):
        return x, y
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    keep = np.append(np.diff(x) > 0, True)
    return x[keep], y[keep]


def _thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """The means of ``MAX_POINTS`` consecutive groups."""
    if len(x) <= MAX_POINTS:
        return x, y
    edges = np.linspace(0, len(x), MAX_POINTS + 1).astype(np.intp)[:-1]
    counts = np.diff(np.append(edges, len(x)))
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def jumped(losses: Array) -> bool:
    """Whether the loss leaps up between two neighbours and then goes on as calmly as before: another unit, not noise.

    A diverging run keeps rising, becomes rough, or leaps in one step above all that it ever was and falls no more;
    after a change of unit it goes on falling, or lies below where it began.
    """
    if len(losses) < 2 * _JUMP_SIDE:
        return False
    steps = np.diff(losses)
    at = int(np.argmax(steps))
    before, after = losses[max(0, at + 1 - 8) : at + 1], losses[at + 1 : at + 9]
    if len(before) < _JUMP_SIDE or len(after) < _JUMP_SIDE:
        return False
    rough = float(np.median(np.abs(np.diff(before)))) + 1e-12 * float(np.max(np.abs(losses)))
    calm = float(np.median(np.abs(np.diff(after)))) <= 4 * rough
    leaps = steps[at] > _JUMP * rough and calm and float(after[-1]) <= float(after[0]) + 2 * rough
    return bool(leaps) and not _stranded(losses[: at + 1], losses[at + 1 :])


def _stranded(before: Array, after: Array) -> bool:
    """Whether a loss that leaped lies above all that it was before, and has fallen no further since than noise may."""
    quarter = len(after) // 4
    if quarter < _STRANDED_SIDE or not float(after.min()) > float(before.max()):
        return False
    fall = float(after[:quarter].mean() - after[-quarter:].mean())
    noise = 1.05 * float(np.median(np.abs(np.diff(after))))  # the standard deviation, were it normal
    return fall <= 3 * noise * math.sqrt(2 / quarter) + 1e-12 * float(np.max(np.abs(after)))


def levels_at(curve: Curve, grid: Array) -> Array:
    """The smoothed loss at shares of the budget, each from the points up to there alone; NaN before the first point.

    A straight line in log progress is fitted to a trailing window by least squares (by sums, all windows at once): it
    follows the fast early descent, where a mean of the same window would lag behind it.
    """
    x, raw = curve.progress, curve.losses
    centre = float(np.median(raw))
    u, y = np.log(x), raw - centre
    end = np.arange(1, len(x) + 1)
    start = np.minimum(np.searchsorted(x, x * (1 - WINDOW)), np.maximum(end - FIT_POINTS, 0))
    count = end - start

    def mean(values: Array) -> Array:
        sums = np.concatenate(([0.0], np.cumsum(values)))
        return np.asarray((sums[end] - sums[start]) / count)

    mean_u, mean_y = mean(u), mean(y)
    spread = mean(u * u) - mean_u**2
    covariance = mean(u * y) - mean_u * mean_y
    slope = np.where(spread > 1e-12, covariance / np.maximum(spread, 1e-12), 0.0)
    last = np.searchsorted(x, grid + 1e-9, side="right") - 1
    at = np.maximum(last, 0)
    ahead = np.log(np.clip(grid, x[at], x[at] * (1 + WINDOW)))
    level = np.where(count[at] < FIT_POINTS, raw[at], mean_y[at] + slope[at] * (ahead - mean_u[at]) + centre)
    return np.asarray(np.where(last < 0, math.nan, level))
