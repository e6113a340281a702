"""The evidence in one look at a curve that a run will not beat the bar, and the error budget that the look may spend.

The null hypothesis is "this run ends below the bar". Were it true, its loss would still drop by need = level − bar.
Good finished programs say how far a loss can drop from this progress on: the test asks whether ``need`` is too far for
another draw from them (Student's t for one new observation, so few programs make a wide bound). Turning the question
round like this, instead of regressing final values on losses, keeps the regression towards the mean out of it. Where
log and metric have different units the drops scatter more, so the test is slower to say no; that it does not say no too
soon there is the forecast's part (``forecast_line``), which must be beyond the bar as well.

The spread is widened by what the programs seen so far cannot tell: seed noise; a share of all that is still to be
learned, larger early, because a new kind of program may have another shape; and a trend, where drops have been growing
from program to program. With few programs the threshold is raised: the tails of their spread have not been seen.

The error budget is spent over the looks of a run by a spending function (Lan & DeMets 1983). It spends in proportion to
what an abort saves: α(p) = α·(1 − (1−p)²), hardly anything near the end. The union bound makes the sum over looks hold
whatever their dependence, but only under Student's t, which real programs do not obey: α is nominal, the promise of 5%
is measured, and ``abort_caution`` guards it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoresearchd.evaluator.forecast import Standing, good_programs
from autoresearchd.evaluator.forecast_curve import Array
from autoresearchd.evaluator.forecast_history import Programs, References

NOISE_SHARE = 0.7
"""Seed noise that means over the runs of a program hide, as a share of delta (which is two standard deviations)."""

NOISE_LEAST = 0.35
"""And what is added in any case: drops of single runs show the noise, but few may be alike by luck."""

NOVELTY = 0.2
"""By which share of what is still to be learned a new kind of program may differ at the start; fades as (1−p)²."""

YOUTH = 2.0
"""Thresholds are raised by this over the number of distinct programs: with few, the spread's tails are unseen."""

TREND_ERRORS = 0.5
"""A trend in the drops counts from so many of its standard errors on."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One look. need: what the loss must still drop to reach the bar; expected, sd: what good programs let one expect.

    score: (need − expected) / sd; programs: how many good ones were compared; distinct: of how many.
    """

    need: float
    expected: float
    sd: float
    programs: int
    distinct: int

    @property
    def score(self) -> float:
        """How many standard deviations the needed drop lies beyond the expected one."""
        return (self.need - self.expected) / self.sd if self.sd > 0 else math.nan


def spent(alpha: float, progress: float) -> float:
    """How much of the error budget ``alpha`` may have been spent by this progress."""
    left = 1.0 - min(max(progress, 0.0), 1.0)
    return alpha * (1.0 - left * left)


def threshold(allowance: float, programs: int, distinct: int) -> float:
    """The score that a look must exceed: the upper quantile of Student's t, raised while few programs are known.

    Args:
        allowance: what the look may spend.
        programs: how many good ones are compared with; degrees of freedom are one fewer.
        distinct: how many distinct ones have finished.
    """
    if programs < 2 or not 0 < allowance < 1:
        return math.inf
    from scipy.special import stdtrit  # slow to import, and only needed while a job runs

    return float(stdtrit(programs - 1, 1.0 - allowance)) * (1.0 + YOUTH / max(distinct, 1))


def p_value(score: float, programs: int) -> float:
    """Chance of a score at least this high if the run were to reach the bar, before caution."""
    if programs < 2 or not math.isfinite(score):
        return 1.0
    from scipy.special import stdtr

    return float(stdtr(programs - 1, -score))


def weigh(here: Standing, bar: float, references: References, delta: float) -> Evidence | None:
    """The evidence against a run that stands here; None where there is too little to compare it with."""
    programs = references.programs_at(here.progress)
    distinct = len(programs.finals)
    if distinct < 3:
        return None
    good = good_programs(programs)
    expected, sd = expectation(good, here.progress, len(references), delta)
    need = here.level - bar
    if not (math.isfinite(need) and math.isfinite(expected) and sd > 0 and math.isfinite(sd)):
        return None
    return Evidence(need, expected, sd, len(good.finals), distinct)


def expectation(good: Programs, progress: float, position: int, delta: float) -> tuple[float, float]:
    """Mean and standard deviation of the drop of one more good program, at the ``position``-th run of the history."""
    drops, count = good.drops, len(good.drops)
    mean = float(drops.mean())
    variance = float(drops.var(ddof=1)) * (1 + 1 / count)
    to_learn = max(0.0, mean - float(good.ends.mean()))
    novelty = NOVELTY * to_learn * (1 - progress) ** 2
    averaged = 1 - float(np.mean(1 / good.runs))
    noise = math.sqrt(NOISE_SHARE**2 * averaged + NOISE_LEAST**2) * delta
    sd = math.sqrt(variance + noise**2 + novelty**2)
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
