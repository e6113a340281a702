"""What an edit that is not run would probably earn: an average over the edits that were, weighted by their likeness.

Kernel regression over the nearest neighbours (Nadaraya 1964, Watson 1964), drawn towards the mean of the session where
nothing near was tried. How good that is, is measured by leaving each run out in turn. A shuffle of the rewards tells
what chance alone reaches (Phipson & Smyth 2010): a prediction that is no better falls back to the mean, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoresearchd.domain.quantities import counted
from autoresearchd.evaluator.reward import changed_lines, novelty
from autoresearchd.policy.derived import changes
from autoresearchd.policy.parameter import Value

MOST = 300
"""Of a session's runs, the latest that are compared with."""
LEAST = 12
"""Runs below which nothing is predicted but the mean."""
CHANCE = 0.05
"""The largest probability, with which shuffled rewards are predicted as well, of a prediction that is believed."""

_CHARACTERS = 1000
"""Of the lines of an edit that are compared; the time is quadratic in them."""
_NEAREST = 16
_WIDTHS = (0.05, 0.1, 0.2, 0.4)
_PRIOR = 1.0
"""How many neighbours of no distance the mean stands for."""
_SHUFFLES = 199
_OCTAVES = 2.0
"""Factor between two values of a constant, as a logarithm, from which on they have nothing in common."""

Array = NDArray[np.float64]
Move = tuple[Value, Value]
"""A constant's value before and after."""


@dataclass(frozen=True, slots=True)
class Change:
    """What an edit does. lines: those that it adds and removes; moves: its constants, where it changes nothing else."""

    lines: str
    moves: Mapping[str, Move] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tried:
    """An edit that was run, and what it earned, its novelty bonus left out."""

    change: Change
    reward: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """How well runs are predicted by the others of their session.

    runs: how many. missed: sum of the squared errors; by_mean: that of the mean of the others. chance: probability that
    shuffled rewards are predicted as well.
    """

    runs: int = 0
    missed: float = 0.0
    by_mean: float = 0.0
    chance: float = 1.0

    @property
    def r2(self) -> float:
        """The share of the variance that is foretold, out of sample: 0 for the mean, below 0 for worse."""
        return 1.0 - self.missed / self.by_mean if self.by_mean > 0 else 0.0

    @property
    def error(self) -> float:
        """The root of the mean squared error, in units of the reward."""
        return math.sqrt(self.missed / self.runs) if self.runs else math.inf

    @property
    def useful(self) -> bool:
        """Whether the prediction is better than the mean, and not by chance."""
        return self.runs >= LEAST and self.chance <= CHANCE and self.missed < self.by_mean

    @property
    def words(self) -> str:
        """The same for people."""
        if not self.runs:
            return "nothing was run to learn from"
        mean = math.sqrt(self.by_mean / self.runs)
        runs = counted(self.runs, "run")
        return f"R² {self.r2:.2f}, error {self.error:.2f} (of the mean alone {mean:.2f}) over {runs}"


def change_of(before: Mapping[str, str], after: Mapping[str, str], diff: str) -> Change:
    """What an edit does, from the files that it changes and their unified diff.

    Args:
        before: text of the editable files at the parent.
        after: text of the files that it changes.
        diff: between the two.
    """
    now = changes(before, after)
    then = changes(after, {path: before.get(path, "") for path in after}) if now else {}
    moves = {name: (then[name], value) for name, value in now.items() if name in then}
    return Change(changed_lines(diff)[:_CHARACTERS], moves if len(moves) == len(now) else {})


def distance(a: Change, b: Change) -> float:
    """How far two edits are from each other, 0 to 1.

    Of two that change nothing but constants: how far their moves are apart, name by name; else the edit distance of
    their lines.
    """
    if a.moves and b.moves:
        names = a.moves.keys() | b.moves.keys()
        return math.fsum(_apart(a.moves.get(name), b.moves.get(name)) for name in names) / len(names)
    return novelty(a.lines, [b.lines])


class Predictor:
    """Foretells what edits of one session would earn.

    Args:
        tried: the edits that were run in it, oldest first.
        seed: of the shuffles.
    """

    def __init__(self, tried: Sequence[Tried] = (), *, seed: int = 0) -> None:
        self._changes = tuple(each.change for each in tried[-MOST:])
        self._rewards: Array = np.array([each.reward for each in tried[-MOST:]], dtype=np.float64)
        self._width, self._calibration = _calibrated(self._changes, self._rewards, seed)

    @property
    def calibration(self) -> Calibration:
        """How well it foretells."""
        return self._calibration

    @property
    def mean(self) -> float:
        """What an edit that was run earned on average; 0 where none was."""
        return float(self._rewards.mean()) if len(self._rewards) else 0.0

    def predict(self, change: Change) -> float:
        """What an edit would earn, its novelty bonus left out; the mean where no better is known."""
        if not self._calibration.useful:
            return self.mean
        apart = np.array([[distance(change, other) for other in self._changes]])
        return float(_smoothed(_weights(apart, self._width), self._rewards, np.array([self.mean]))[0])


def together(calibrations: Iterable[Calibration]) -> Calibration:
    """Of several sessions; one whose predictions are not believed counts with those that take their place, the mean."""
    found = list(calibrations)
    return Calibration(
        runs=sum(c.runs for c in found),
        missed=math.fsum(c.missed if c.useful else c.by_mean for c in found),
        by_mean=math.fsum(c.by_mean for c in found),
        chance=min((c.chance for c in found if c.useful), default=1.0),
    )


# ---------------------------------------------------------------------- distances
def _apart(a: Move | None, b: Move | None) -> float:
    """How far two moves of one constant are apart: by what they do to it, and by where they leave it, in equal parts.

    Steps are compared as by the Canberra metric (Lance & Williams 1967): of opposite ones the distance is 1.
    """
    if a is None or b is None:
        return 1.0
    numbers = [x for x in (*a, *b) if isinstance(x, (int, float)) and not isinstance(x, bool)]
    if len(numbers) < 4:
        return 0.0 if type(a[1]) is type(b[1]) and a[1] == b[1] else 1.0
    if min(numbers) > 0:
        logs = [math.log2(x) for x in numbers]
        return 0.5 * _canberra(logs[1] - logs[0], logs[3] - logs[2]) + 0.5 * min(1.0, abs(logs[1] - logs[3]) / _OCTAVES)
    return 0.5 * _canberra(numbers[1] - numbers[0], numbers[3] - numbers[2]) + 0.5 * _canberra(numbers[1], numbers[3])


def _canberra(x: float, y: float) -> float:
    return 0.0 if x == y else abs(x - y) / (abs(x) + abs(y))


# ---------------------------------------------------------------------- the average
def _weights(apart: Array, width: float) -> Array:
    """The weight of each run [M, N], 0 but for the nearest."""
    weights: Array = np.exp(-0.5 * (apart / width) ** 2)
    if apart.shape[1] > _NEAREST:
        last = np.partition(apart, _NEAREST - 1, axis=1)[:, _NEAREST - 1 : _NEAREST]
        weights[apart > last] = 0.0
    return weights


def _smoothed(weights: Array, rewards: Array, means: Array) -> Array:
    """Weighted averages of rewards [N] or [N, S], drawn towards the means [M] or [M, S]."""
    total = weights.sum(axis=1) + _PRIOR
    summed: Array = weights @ rewards + _PRIOR * means
    return np.asarray((summed.T / total).T)


def _calibrated(edits: Sequence[Change], rewards: Array, seed: int) -> tuple[float, Calibration]:
    """The best width of the kernel, and how well each run is predicted by the others with it.

    The shuffled rewards are given the same choice of widths, so that choosing gains nothing by itself.
    """
    count = len(rewards)
    if count < LEAST:
        return _WIDTHS[0], Calibration(count)
    apart = np.full((count, count), np.inf)
    for i, own in enumerate(edits):
        for j in range(i):
            apart[i, j] = apart[j, i] = distance(own, edits[j])
    random = np.random.default_rng(seed)
    columns = np.column_stack([rewards, *(random.permutation(rewards) for _ in range(_SHUFFLES))])
    others = (columns.sum(axis=0) - columns) / (count - 1)
    by_mean = ((columns - others) ** 2).sum(axis=0)
    missed = np.array(
        [((columns - _smoothed(_weights(apart, width), columns, others)) ** 2).sum(axis=0) for width in _WIDTHS]
    )
    best = missed.min(axis=0)
    # All columns hold the same rewards, so that their errors by the mean are equal and errors can be compared as such.
    chance = float(1 + (best[1:] <= best[0]).sum()) / (1 + _SHUFFLES)
    width = _WIDTHS[int(missed[:, 0].argmin())]
    return width, Calibration(count, float(best[0]), float(by_mean[0]), chance)
