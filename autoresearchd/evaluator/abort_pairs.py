"""The evidence against a run from the runs of the incumbent: how far above them may its loss lie, and it still wins?

The incumbent runs again beside every would-be keep, so where it stands at any progress, and where it ends, is known
better than for a program that ran once. A run's gap, its level less the incumbent's mean level at the same progress
(never at the same step), tells how far it will end above the incumbent's mean, its lead: the schedule of the learning
rate and the offset between log and metric are in both alike. The line from lead to gap, and how far off it was, come
from finished experiments, each beside the incumbent of *its* time as it was known then: errors of real forecasts.

Few runs of an incumbent may have been lucky, all the more as it was kept for them. Experiments that met it share its
luck, which the line's height contains; where they met earlier incumbents, the variance of its mean is added.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from autoresearchd.evaluator.abort_evidence import Evidence
from autoresearchd.evaluator.abort_look import MIN_DISTINCT
from autoresearchd.evaluator.forecast import Standing, good_programs
from autoresearchd.evaluator.forecast_curve import Array
from autoresearchd.evaluator.forecast_history import CELLS, Programs, References, Summary
from autoresearchd.evaluator.forecast_line import GAIN_SD, UNIT_SD, draw

MOST_PAIRS = 100
"""Older experiments are forgotten: they met other incumbents, on a machine that has drifted since."""

NOVELTY = 0.15
"""By which share of what is still to be learned a new kind of program may differ at the start; fades as (1−p)²."""

_ARRAYS = ("levels", "seen", "gaps", "leads", "reigns")
_HUGE = 1e100
"""The square of a larger number overflows; no metric is that large."""


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
        """The evidence against a run that stands here; None where too little is known of the incumbent."""
        low, high, share = _between(here.progress)
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
        sd = math.sqrt(variance + luck + _novelty(good, here.progress) ** 2)
        if not (math.isfinite(need) and math.isfinite(expected) and sd > 0 and math.isfinite(sd)):
            return None
        return Evidence(need, expected, sd, count, count)

    # ------------------------------------------------------------------ state
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


def _between(progress: float) -> tuple[int, int, float]:
    """The cells of the grid on both sides of a progress, and how far it lies towards the second."""
    place = min(max(progress * CELLS - 1, 0.0), CELLS - 1.0)
    low = int(place)
    return low, min(low + 1, CELLS - 1), place - low


def _novelty(good: Programs, progress: float) -> float:
    to_learn = max(0.0, float(good.drops.mean()) - float(good.ends.mean()))
    return NOVELTY * to_learn * (1 - progress) ** 2
