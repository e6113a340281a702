"""Sessions with a change of the version that answers, simulated: what experiments earn before it and after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoresearchd.learner.versions.live_versions import RollbackOptions, judge, last_look

BEFORE, AFTER = 60, 256
"""Experiments of the version before, and of the one that is looked at."""


@dataclass(frozen=True, slots=True)
class Life:
    """How rewards go. slope: change of their mean with each experiment; decay: experiments in which what is left to
    improve (2 in the beginning) falls to a third, 0: it does not. gain, bad: of the new version; by how much it earns
    more, and how often it crashes (the one before in a fifth of its experiments)."""

    slope: float = 0.0
    decay: float = 0.0
    gain: float = 0.0
    bad: float = 0.2


def rewards(stream: np.random.Generator, means: NDArray[np.float64], bad: float = 0.2) -> list[float]:
    """As live ones are: mostly small changes around zero, some crashes, a rare large gain."""
    count = len(means)
    found = means + stream.normal(0.0, 0.5, count)
    found = np.where(stream.random(count) < 0.05, found + 3.0, np.clip(found, -1.0, 5.0))
    return [float(value) for value in np.where(stream.random(count) < bad, -2.0, found)]


def lived(stream: np.random.Generator, life: Life) -> tuple[list[float], list[float]]:
    """Rewards of the version before, and of the one after it."""
    at = np.arange(BEFORE + AFTER, dtype=np.float64)
    means = 0.2 + life.slope * at
    if life.decay:
        means = 2.0 * np.exp(-at / life.decay)
    return rewards(stream, means[:BEFORE]), rewards(stream, means[BEFORE:] + life.gain, life.bad)


def rolled_back(now: list[float], before: list[float], options: RollbackOptions) -> int:
    """After how many experiments it is rolled back; 0: never. It is looked at after each."""
    looks = {last_look(count, options): count for count in range(len(now), 0, -1)}
    for _, count in sorted(looks.items()):
        verdict = judge(now[:count], before, options)
        if verdict.fell:
            return verdict.looked
    return 0
