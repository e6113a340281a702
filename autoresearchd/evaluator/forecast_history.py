"""Finished runs as references for a forecast: their smoothed curves on one grid of progress, and which are one program.

A curve is kept as some hundred numbers, so a thousand runs need a few megabytes and a look at all of them is a handful
of array operations. Runs whose curves and final values differ by less than the noise of a seed count as repeats of one
program: twelve copies of the baseline are one piece of evidence, not twelve.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from autoresearchd.evaluator.forecast_curve import Array, Curve, roughness, trailing
from autoresearchd.evaluator.forecast_power import fit_power_law

CELLS = 100
GRID = np.arange(1, CELLS + 1) / CELLS
LAW_POINTS = np.arange(1, 6) / 5
SAME_FROM = 19
"""Curves are compared from 20% of the budget on: earlier, seeds of one program differ most."""

_FIELDS = ("drops", "slopes", "laws", "finals", "programs", "noises")


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
    laws = np.array([_law_at(curve, progress) for progress in LAW_POINTS])
    return Summary(
        _single(grid_levels - final), _single(grid_slopes), _single(laws - final), final, roughness(curve.losses)
    )


def _law_at(curve: Curve, progress: float) -> float:
    seen = int(np.searchsorted(curve.progress, progress + 1e-9))
    law = fit_power_law(curve.progress[:seen], curve.losses[:seen]) if seen else None
    return law.at(1.0) if law else math.nan


def _single(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(np.float32).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Programs:
    """One row for each distinct program that finished, seen at one progress.

    drops: level minus final value, the mean over its runs; ends: the same at the end of the budget (the offset between
    the logged loss and the metric); finals: its best; means: its mean; last: position of its newest run; rows: that run
    in the table; runs: how many it had.
    """

    drops: Array
    ends: Array
    finals: Array
    means: Array
    last: Array
    rows: npt.NDArray[np.intp]
    runs: Array

    def chosen(self, rows: npt.NDArray[np.intp]) -> Programs:
        """Some of the programs."""
        return Programs(*(getattr(self, field.name)[rows] for field in fields(self)))


class References:
    """The table of finished runs, growing by one row each."""

    def __init__(self) -> None:
        self._size = 0
        self._representatives: list[int] = []
        self._allocate(64)

    def _allocate(self, capacity: int) -> None:
        old = getattr(self, "_table", None)
        self._table: dict[str, Array] = {
            "drops": np.full((capacity, CELLS), math.nan),
            "slopes": np.full((capacity, CELLS), math.nan),
            "laws": np.full((capacity, len(LAW_POINTS)), math.nan),
            "finals": np.full(capacity, math.nan),
            "programs": np.zeros(capacity),
            "noises": np.zeros(capacity),
        }
        for name, values in (old or {}).items():
            self._table[name][: self._size] = values[: self._size]

    def __len__(self) -> int:
        return self._size

    @property
    def distinct(self) -> int:
        """How many distinct programs have finished."""
        return len(self._representatives)

    @property
    def finals(self) -> Array:
        """Final values of all runs, oldest first."""
        return self._table["finals"][: self._size]

    @property
    def noise(self) -> float:
        """Median noise of the logs."""
        return float(np.median(self._table["noises"][: self._size])) if self._size else 0.0

    def typical_final(self) -> float:
        """Median final value over distinct programs."""
        return float(np.median(self.finals[self._representatives])) if self._representatives else math.inf

    def add(self, run: Summary, tolerance: float, *, another: bool = False) -> None:
        """Take a finished run; it joins the program whose newest run it resembles within ``tolerance``.

        ``another``: it is known to be another program than all before, whatever it resembles.
        """
        if self._size == len(self._table["finals"]):
            self._allocate(2 * self._size)
        program = len(self._representatives) if another else self._program_of(run, tolerance)
        row = self._size
        for name, value in (
            ("drops", run.drops),
            ("slopes", run.slopes),
            ("laws", run.laws),
            ("finals", run.final),
            ("programs", program),
            ("noises", run.noise),
        ):
            self._table[name][row] = value
        self._size += 1
        if program == len(self._representatives):
            self._representatives.append(row)
        else:
            self._representatives[program] = row

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
        table = self._table[name][: self._size]
        cells = table.shape[1]
        place = min(max(progress * cells - 1, 0.0), cells - 1.0)
        low = int(place)
        high = min(low + 1, cells - 1)
        share = place - low
        if share < 1e-9:
            return np.asarray(table[rows, low])
        return np.asarray(table[rows, low] * (1 - share) + table[rows, high] * share)

    def programs_at(self, progress: float) -> Programs:
        """Every distinct program at one progress; those that logged nothing until then are left out."""
        drops = self.at("drops", progress, slice(None))
        ends = self._table["drops"][: self._size, -1]
        rows = np.flatnonzero(np.isfinite(drops) & np.isfinite(ends))
        programs = self._table["programs"][: self._size][rows].astype(np.intp)
        count = np.bincount(programs, minlength=self.distinct)
        seen = np.flatnonzero(count)
        sums = np.bincount(programs, drops[rows], minlength=self.distinct)
        end_sums = np.bincount(programs, ends[rows], minlength=self.distinct)
        final_sums = np.bincount(programs, self.finals[rows], minlength=self.distinct)
        best = np.full(self.distinct, math.inf)
        np.minimum.at(best, programs, self.finals[rows])
        newest = np.zeros(self.distinct, dtype=np.intp)
        newest[programs] = rows
        counted = count[seen]
        return Programs(
            sums[seen] / counted,
            end_sums[seen] / counted,
            best[seen],
            final_sums[seen] / counted,
            newest[seen].astype(np.float64),
            newest[seen],
            counted.astype(np.float64),
        )

    # ------------------------------------------------------------------ state
    def to_state(self) -> dict[str, Any]:
        """The table as JSON-able values; curves in base64 of single-precision floats."""
        state: dict[str, Any] = {"size": self._size, "representatives": list(self._representatives)}
        for name in _FIELDS:
            kind = np.float32 if self._table[name].ndim == 2 else np.float64
            state[name] = base64.b64encode(self._table[name][: self._size].astype(kind).tobytes()).decode("ascii")
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> References:
        """Read back what ``to_state`` gave."""
        new = cls()
        size = int(state["size"])
        new._size = size
        new._representatives = [int(row) for row in state["representatives"]]
        new._allocate_for(size)
        for name in _FIELDS:
            table = new._table[name]
            kind = np.float32 if table.ndim == 2 else np.float64
            values = np.frombuffer(base64.b64decode(state[name]), dtype=kind).astype(np.float64)
            table[:size] = values.reshape((size, *table.shape[1:]))
        return new

    def _allocate_for(self, size: int) -> None:
        capacity = 64
        while capacity < size:
            capacity *= 2
        kept, self._size = self._size, 0
        self._allocate(capacity)
        self._size = kept
