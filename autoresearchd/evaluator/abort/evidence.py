"""The evidence in one check of a curve that a run will not beat the bar, and the error budget that it may spend.

The null hypothesis is "this run ends below the bar": its loss would still drop by need = level − bar. Good finished
programs say how far a loss can drop from this progress on: the test asks whether ``need`` is too far for another draw
from them (Student's t for one new observation, so few programs make a wide bound). Regressing final values on losses
instead would bring the regression towards the mean into it.

The spread is widened by what the programs seen so far cannot tell: seed noise; a share of all that is still to be
learned, larger early; a trend, where drops grow from program to program. With few programs the threshold is raised.

The error budget is spent over the checks of a run by a spending function (Lan & DeMets 1983), in proportion to what an
abort saves: α(p) = α·(1 − (1−p)²). The union bound holds under Student's t, which real programs do not obey: α is
nominal, the promise of 5% is measured, and ``abort`` guards it.

Where the incumbent's own runs are known (``Pairs``), a run's gap, its level less the incumbent's mean level at the same
progress, tells how far it will end above the incumbent's mean, its lead. The line from lead to gap, and how far off it
was, come from finished experiments, each beside the incumbent of *its* time. Few runs of an incumbent may have been
lucky: where experiments met earlier incumbents, the variance of its mean is added.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoresearchd.evaluator.abort.forecast import (
    CELLS,
    GAIN_SD,
    UNIT_SD,
    Programs,
    References,
    Standing,
    Summary,
    cells_at,
    draw,
    good_programs,
)
from autoresearchd.evaluator.abort.learning_curve import Array

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
