"""How a difference in the metric shows in the log: a straight line through finished programs, drawn with caution.

A drop is the level of the log less the final metric. Were log and metric of one unit, and did programs keep their
distance from here to the end, all would drop alike. Neither holds: the log of karpathy/autoresearch's ``train.py`` is
in nats per token and its metric in bits per byte, so whoever is better by 1 in the end is better by 3 in the log; and
programs lie further apart early than late. Taken for one unit, the two differ by a drop that seems to scatter as
widely as the programs themselves, and no forecast is sharper than that.

The line is drawn in two steps, each a regression with a normal prior on the slope (a hierarchical linear model, Lindley
& Smith 1972), so that few or nearly equal programs leave it flat: at the end of the budget for the ratio of the units;
then at the progress in question, around that. The drop is regressed on the final value and not the other way round: the
programs are chosen by how they ended, which bends no line of this kind, and forecasts drawn towards the mean would be
too kind to bad runs and too hard on the best.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoresearchd.evaluator.forecast_curve import Array
from autoresearchd.evaluator.forecast_history import Programs

UNIT_SD = 3.0
"""Prior standard deviation of the slope at the end: units may well differ by such a factor."""

GAIN_SD = 0.3
"""And of the slope at a progress around the one at the end, as a share of the units' ratio."""

_FLATTEST = -0.8
_ROUNDS = 3


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """The drop of a program that ends at ``final`` is mean + gain · (final − centre).

    errors: how far each program lies above it.
    """

    mean: float
    centre: float
    gain: float
    errors: Array

    def final(self, level: float) -> float:
        """Where a program at ``level`` ends."""
        return self.centre + (level - self.mean - self.centre) / (1 + self.gain)


def line_through(programs: Programs) -> Line:
    """The line through programs seen at one progress; at least two."""
    units = draw(programs.ends, programs.means, 0.0, UNIT_SD)
    return draw(programs.drops, programs.means, units.gain, GAIN_SD * (1 + units.gain))


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
