"""A guess at what each change would bring: an additive Gaussian process over the constants, fitted to past effects.

Each constant has a function of its own (Duvenaud et al. 2011, "Additive Gaussian Processes", first order); the effect
of an experiment is the sum over its changes of f(new) − f(old). Axes are in moderate steps away from the present value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoresearchd.policy.search.memory import Effect
from autoresearchd.policy.search.parameter import Parameter, Value

Array = NDArray[np.float64]

_LENGTH = 2.0
"""Length scale of a constant's function, in moderate steps."""
_SLOPE = 0.3
"""Share of the prior variance that is a straight line: what helped goes on helping for a while."""
_COST = 0.12
"""A change that nothing is known about makes things a little worse, per step."""
_TRUST = 0.5
"""How far the usual importance of a constant is believed before it has been tried."""
_STALE = 0.4
"""What was seen on an earlier incumbent may hold no more, to this share of the scale."""
_WORST = 4.0
"""Effects are cut off at so many scales below zero: how bad a disaster was tells nothing more."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that a constant might take, and what is believed of it: mean and standard deviation of its effect."""

    parameter: Parameter
    value: Value
    mean: float = 0.0
    deviation: float = 0.0


class Surrogate:
    """Beliefs about the constants of one incumbent.

    parameters: the constants by name, as they are at ``incumbent``; lineage: what they were there and at its ancestors,
    by commit. sigma: noise of one measurement, None where it is not known.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        lineage: Mapping[str, Mapping[str, Value]],
        effects: Sequence[Effect],
        incumbent: str,
        sigma: float | None,
    ) -> None:
        self._parameters, self._incumbent = parameters, incumbent
        self._touched: dict[str, list[tuple[int, float, float]]] = defaultdict(list)  # (row, place before and after)
        self._rows: list[Effect] = []
        for effect in effects:
            self._add(effect, lineage.get(effect.parent))
        self.scale, self.noise = self._scales(sigma)
        self._fit()

    def rises(self, name: str) -> list[tuple[float, float, Effect]]:
        """Where a constant was tried, in steps from its present value: (before, after, trial)."""
        return [(old, new, self._rows[row]) for row, old, new in self._touched.get(name, ())]

    def _add(self, effect: Effect, before: Mapping[str, Value] | None) -> None:
        """Take a trial whose start is known in all constants that it changed."""
        if before is None or not all(n in self._parameters and n in before for n in effect.changes):
            return
        places = self._parameters
        moves = {n: (where(places[n], before[n]), where(places[n], v)) for n, v in effect.changes.items()}
        if all(math.isfinite(a) and math.isfinite(b) for a, b in moves.values()):
            for name, (old, new) in moves.items():
                self._touched[name].append((len(self._rows), old, new))
            self._rows.append(effect)

    def _scales(self, sigma: float | None) -> tuple[float, float]:
        """Typical size of an effect, and the noise of one measurement."""
        sizes = sorted(abs(e.gain) for e in self._rows if e.gain is not None)
        middle = sizes[len(sizes) // 2] if sizes else 0.0
        noise = sigma if sigma is not None and sigma > 0 else 0.2 * middle
        scale = max(1.5 * middle if len(sizes) >= 4 else 0.0, 3.0 * noise, 1e-12)
        return scale, max(noise, 0.02 * scale)

    def _fit(self) -> None:
        count = len(self._rows)
        gains = np.array([self._gain(e) for e in self._rows])
        covariance: Array = np.zeros((count, count))
        prior: Array = np.zeros(count)
        for name in self._touched:
            parameter, (rows, old, new) = self._parameters[name], self._places(name)
            covariance[np.ix_(rows, rows)] += self._between(parameter, old, new, old, new)
            prior[rows] += self._prior(parameter, new) - self._prior(parameter, old)
        parents = {p: i for i, p in enumerate(dict.fromkeys(e.parent for e in self._rows))}
        which = np.array([parents[e.parent] for e in self._rows], dtype=int)
        covariance += (which[:, None] == which[None, :]) * (0.5 * self.noise**2)
        stale = np.array([_STALE * self.scale * (e.parent != self._incumbent) for e in self._rows])
        covariance[np.diag_indices(count)] += self.noise**2 + (0.15 * gains) ** 2 + stale**2
        self._inverse = _invert(covariance)
        self._weights: Array = (self._inverse * (gains - prior)).sum(axis=1)

    def _places(self, name: str) -> tuple[NDArray[np.int64], Array, Array]:
        """The rows that a constant was changed in, with its places before and after."""
        rows, old, new = zip(*self._touched[name], strict=True)
        return np.array(rows), np.array(old), np.array(new)

    def _gain(self, effect: Effect) -> float:
        """What a trial counts for: its gain, cut off below; failures count as worse than the worst."""
        if effect.failed:
            return -(_WORST + 1) * self.scale
        return max(-self.scale if effect.gain is None else effect.gain, -_WORST * self.scale)

    def _kernel(self, parameter: Parameter, a: Array, b: Array) -> Array:
        if not parameter.numeric:
            same: Array = np.where(a[:, None] == b[None, :], self._amplitude(parameter), 0.0)
            return same
        curve = np.exp(-((a[:, None] - b[None, :]) ** 2) / (2 * _LENGTH**2))
        line = a[:, None] * b[None, :] / _LENGTH**2
        result: Array = self._amplitude(parameter) * ((1 - _SLOPE) * curve + _SLOPE * line)
        return result

    def _amplitude(self, parameter: Parameter) -> float:
        return float((self.scale * _weight(parameter)) ** 2)

    def _between(self, parameter: Parameter, old: Array, new: Array, old2: Array, new2: Array) -> Array:
        """Covariance of f(new) − f(old) with f(new2) − f(old2)."""
        ends, ends2 = np.concatenate((new, old)), np.concatenate((new2, old2))
        full, n, m = self._kernel(parameter, ends, ends2), len(new), len(new2)
        result: Array = full[:n, :m] - full[:n, m:] - full[n:, :m] + full[n:, m:]
        return result

    def _prior(self, parameter: Parameter, place: Array) -> Array:
        size = np.abs(place) if parameter.numeric else (place != 0) * 1.0
        result: Array = -_COST * self.scale * _weight(parameter) * size
        return result

    def judge(self, parameter: Parameter, values: Sequence[Value]) -> list[Candidate]:
        """What is believed of changing one constant to each of the values."""
        new = np.array([where(parameter, v) for v in values])
        old = np.zeros(len(values))
        mean = self._prior(parameter, new)
        variance = np.diag(self._between(parameter, old, new, old, new)).copy()
        if parameter.name in self._touched:
            rows, before, after = self._places(parameter.name)
            across = self._between(parameter, old, new, before, after)
            mean = mean + (across * self._weights[rows]).sum(axis=1)
            variance -= np.einsum("ij,jk,ik->i", across, self._inverse[np.ix_(rows, rows)], across)
        deviation = np.sqrt(np.maximum(variance, 1e-18))
        return [Candidate(parameter, v, float(m), float(d)) for v, m, d in zip(values, mean, deviation, strict=True)]


def _weight(parameter: Parameter) -> float:
    """How large its effects are thought to be at first; what a name tells is not trusted fully."""
    return (1 - _TRUST) + _TRUST * parameter.range.priority


def _invert(matrix: Array) -> Array:
    """Inverse of a symmetric positive definite matrix, by Gauss-Jordan elimination row by row.

    Not by LAPACK: its threads would fight with the running job for the processor.
    """
    work: Array = matrix.copy()
    for k in range(len(work)):
        pivot = work[k, k]
        row = work[k] / pivot
        column = work[:, k].copy()
        work -= column[:, None] * row[None, :]
        work[k] = row
        work[:, k] = -column / pivot
        work[k, k] = 1.0 / pivot
    return work


def where(parameter: Parameter, value: Value) -> float:
    """How many moderate steps a value lies from the present one; for a choice, its index, the present one being 0."""
    if parameter.numeric:
        return (parameter.place(value) - parameter.home) / parameter.range.step
    if value == parameter.value:
        return 0.0
    choices = parameter.range.choices
    return float(choices.index(value) + 1) if value in choices else math.nan


def expected_gain(mean: float, deviation: float, threshold: float) -> float:
    """Expected improvement beyond a threshold (Mockus 1978, Jones et al. 1998) of a normal belief."""
    z = (mean - threshold) / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * density + (mean - threshold) * 0.5 * math.erfc(-z / math.sqrt(2))
