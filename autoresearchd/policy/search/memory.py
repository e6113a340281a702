"""What a search remembers of a session, rebuilt from the history at any time, and what it believes from that.

An effect is the improvement over the trial's own parent, so that trials on different incumbents can be compared.
Beliefs are an additive Gaussian process over the constants, fitted to the effects: each constant has a function of its
own (Duvenaud et al. 2011, "Additive Gaussian Processes", first order), and the effect of an experiment is the sum over
its changes of f(new) − f(old). Axes are in moderate steps away from the present value, so that one length suits all.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import FORBIDDEN, NEVER_RUN, Label, Status
from autoresearchd.domain.ports import TrialHistory
from autoresearchd.domain.task import Metric
from autoresearchd.evaluator.measure.measurement import is_simple
from autoresearchd.evaluator.rules.run_time import HELD
from autoresearchd.policy.search.parameter import Kind, Parameter, Value

_RECENT = 120
_BEST = 40
_ANCESTORS = 300
_MISFITS = 500
_ENOUGH = 2
"""Failures of a constant alone after which it is left alone, unless it ever ran with another value."""
_LEAST = 3
"""Equal values below this are chance: many constants are 1 or 2."""
_OVERLAP = 64
"""How far back the history is read again: parallel slots decide out of order."""

_TOO_MUCH = frozenset({Label.OOM, Label.NAN_LOSS, Label.NON_FINITE, Label.TIMEOUT, Label.BUDGET_OVERRUN})

Key = tuple[str, frozenset[tuple[str, Value]]]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a trial's changes did.

    gain: improvement over its parent, a forecast where the run was ended early, None where it has none. told: the same
    as it was decided on, which people are shown, where it was compared with its parent. failed: it must not be tried
    again; beyond: more of the same would fail, too. value, base: of the trial and of its parent, where known.
    """

    number: int
    parent: str
    changes: Mapping[str, Value]
    gain: float | None
    told: float | None = None
    kept: bool = False
    failed: bool = False
    beyond: bool = False
    value: float | None = None
    base: float | None = None


@dataclass(slots=True)
class Memory:
    """The effects that a search looks at: the best and the latest, however long the session.

    misfits: trials that failed with an error of shape, type or value, so that what they changed did not fit the rest;
    fits: names that were changed together and ran, with the parent.
    """

    metric: Metric
    tried: set[Key] = field(default_factory=set)
    misfits: list[Effect] = field(default_factory=list)
    fits: set[tuple[frozenset[str], str]] = field(default_factory=set)
    _recent: list[Effect] = field(default_factory=list)
    _best: list[tuple[float, int, Effect]] = field(default_factory=list)
    _values: dict[str, float] = field(default_factory=dict)
    _made: dict[str, tuple[str, Mapping[str, Value]]] = field(default_factory=dict)  # commit → from what, by what
    _seen: set[int] = field(default_factory=set)
    _keeps: set[int] = field(default_factory=set)
    _last: int = -1
    _incumbent: str = ""

    def refresh(self, history: TrialHistory) -> Memory:
        """This with what was decided since the last time, or another one where a keep lost its place."""
        found = history.trials(max(-1, self._last - _OVERLAP))
        if any(trial.number in self._keeps and trial.status is not Status.KEEP for trial in found):
            return Memory(self.metric).refresh(history)  # what was compared with it is judged anew
        for trial in found:
            if trial.number not in self._seen:
                self._seen.add(trial.number)
                self._last = max(self._last, trial.number)
                self._take(trial)
        self._seen = {n for n in self._seen if n > self._last - 2 * _OVERLAP}
        self._recent.sort(key=lambda e: e.number)
        del self._recent[:-_RECENT]
        return self

    def _take(self, trial: Trial) -> None:
        self._incumbent = self._incumbent or trial.parent  # the first one is made on the baseline
        compared = trial.parent == self._incumbent
        if trial.status is Status.KEEP and trial.commit is not None:
            self._incumbent = trial.commit
            self._keeps.add(trial.number)
        changes = {str(k): v for k, v in trial.changes.items() if isinstance(v, (int, float, str))}
        value = trial.value if trial.value is not None and math.isfinite(trial.value) else None
        if trial.commit is not None:  # any of them may be built on, not only keeps
            if value is not None:
                self._values[trial.commit] = value
            if trial.commit != trial.parent:
                self._made[trial.commit] = trial.parent, changes
        if not changes:
            return
        self.tried.add(key(trial.parent, changes))
        if trial.label in NEVER_RUN:
            return
        failed = trial.status in {Status.CRASH, Status.CHECKS_FAILED} or trial.label in FORBIDDEN
        effect = Effect(
            trial.number,
            trial.parent,
            changes,
            trial.delta if trial.label is Label.ABORTED_EARLY else None,
            told=trial.delta if compared else None,
            kept=trial.status is Status.KEEP,
            failed=failed,
            beyond=trial.label in _TOO_MUCH or (trial.label is Label.CONSTRAINT and HELD in trial.reason),
            value=None if failed else value,
            base=self._values.get(trial.parent),
        )
        if not failed:
            self.fits.add((frozenset(changes), trial.parent))
        elif trial.label is Label.ERROR and is_simple(trial.reason):
            self.misfits.append(effect)
            del self.misfits[:-_MISFITS]
        self._recent.append(effect)
        if effect.value is not None:
            heapq.heappush(self._best, (self.metric.improvement(effect.value, 0.0), -trial.number, effect))
            if len(self._best) > _BEST:
                heapq.heappop(self._best)

    def effects(self, values: Mapping[str, float], baseline: float | None) -> list[Effect]:
        """The latest and the best, oldest first. values, baseline: of parents that are not in the history."""
        chosen = {e.number: e for e in (*(e for _, _, e in self._best), *self._recent)}
        found = []
        for effect in (chosen[n] for n in sorted(chosen)):
            base = values.get(effect.parent, baseline) if effect.base is None else effect.base
            if effect.value is None:
                found.append(effect)
            elif base is not None:
                found.append(replace(effect, gain=self.metric.improvement(effect.value, base)))
        return found

    def ancestry(self, incumbent: str) -> list[tuple[str, Mapping[str, Value]]]:
        """The incumbent and its known ancestors with the changes that made each, the oldest first (with none)."""
        chain: list[tuple[str, Mapping[str, Value]]] = []
        commit = incumbent
        while commit in self._made and len(chain) < _ANCESTORS:
            parent, changes = self._made[commit]
            chain.append((commit, changes))
            commit = parent
        return [(commit, {}), *reversed(chain)]


def key(parent: str, changes: Mapping[str, Value]) -> Key:
    """What makes two proposals the same."""
    return parent, frozenset(changes.items())


# ---------------------------------------------------------------------- constants that do not fit by themselves
class Coupling:
    """What the misfits of a session say of the constants of one incumbent (docs/policies.md has the rules).

    dropped: names that are left alone; together: names that are moved with others, and which; untried: what a first
    move together would be, oldest first; doubtful: names that failed and never ran, which are put beside nothing else.
    """

    def __init__(self, parameters: Mapping[str, Parameter], memory: Memory, lineage: Container[str]) -> None:
        self._parameters = parameters
        self.dropped: dict[str, int] = {}
        self.together: dict[str, tuple[str, ...]] = {}
        self.untried: list[dict[str, Value]] = []
        self.doubtful: set[str] = set()
        self._divided: dict[str, frozenset[tuple[bool, int]]] = {}
        misfits = [m for m in memory.misfits if m.parent in lineage]
        fits = {names for names, parent in memory.fits if parent in lineage}
        failed = {frozenset(m.changes) for m in misfits if len(m.changes) > 1}
        blamed: dict[str, list[Effect]] = defaultdict(list)
        known = frozenset().union(*fits)
        for misfit in misfits:  # of a bundle the one that never ran is to blame
            names = list(misfit.changes) if len(misfit.changes) == 1 else [n for n in misfit.changes if n not in known]
            if len(names) == 1 and names[0] in parameters:
                blamed[names[0]].append(misfit)
        for name, found in blamed.items():
            self._look(name, found, fits, failed)

    def _look(self, name: str, misfits: list[Effect], fits: set[frozenset[str]], failed: set[frozenset[str]]) -> None:
        own = self._parameters[name]
        same = tuple(p.name for p in self._whole(own) if p.value == own.value)
        equal = same if isinstance(own.value, int) and own.value >= _LEAST and len(same) <= _ENOUGH else ()
        both = frozenset((name, *equal))
        ran = any(name in names and not names & set(equal) for names in fits)
        if not ran:
            self.doubtful.add(name)
        if equal and both not in failed and not ran:
            self.together[name] = equal
            value = misfits[-1].changes[name]
            if both not in fits and isinstance(value, int):
                self.untried.append(dict.fromkeys((name, *equal), value))
            return
        broken = [self._broken(own, m.changes[name]) for m in misfits]
        divided = frozenset.intersection(*broken)
        if divided:
            self._divided[name] = divided
        elif len(misfits) + (both in failed) >= _ENOUGH and not ran:
            self.dropped[name] = misfits[-1].number

    @property
    def explained(self) -> frozenset[str]:
        """Names whose failures alone say nothing about other values."""
        return frozenset((*self.together, *self._divided))

    def fits(self, parameter: Parameter, value: Value) -> bool:
        """Whether a value keeps what divided before, where that is what failed."""
        return not self._divided.get(parameter.name, frozenset()) & self._broken(parameter, value)

    def nearby(self, parameter: Parameter, values: list[Value]) -> list[Value]:
        """Values beside some that keep what divided before; none where nothing is known to."""
        divided, own = self._divided.get(parameter.name), parameter.value
        if not divided or not isinstance(own, int):
            return []
        low, high = parameter.range.low, parameter.range.high
        factor = math.lcm(*(n for multiple, n in divided if multiple))
        found = [2 * own, own // 2, *(factor * round(v / factor) for v in values if isinstance(v, int))]
        return [v for v in dict.fromkeys(found) if low <= v <= high and self.fits(parameter, v)]

    def _broken(self, parameter: Parameter, value: Value) -> frozenset[tuple[bool, int]]:
        """What a value would break: (True, n): it was a multiple of n; (False, n): it divided n."""
        own = parameter.value
        if not isinstance(own, int) or not isinstance(value, int) or own < 1 or value < 1:
            return frozenset()
        others = {p.value for p in self._whole(parameter) if isinstance(p.value, int) and p.value > 1}
        multiples = {(True, n) for n in others if n < own and own % n == 0 and value % n}
        return frozenset(multiples | {(False, n) for n in others if n > own and n % own == 0 and n % value})

    def _whole(self, but: Parameter) -> list[Parameter]:
        return [p for p in self._parameters.values() if p.kind is Kind.INT and p.name != but.name]


# ---------------------------------------------------------------------- what each change would bring
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
        rows, old, new = zip(*self._touched[name], strict=True)
        return np.array(rows), np.array(old), np.array(new)

    def _gain(self, effect: Effect) -> float:
        """What a trial counts for: its gain, cut off below; failures count as worse than the worst."""
        if effect.failed:
            return -(_WORST + 1) * self.scale
        return max(-self.scale if effect.gain is None else effect.gain, -_WORST * self.scale)

    def _kernel(self, parameter: Parameter, a: Array, b: Array) -> Array:
        amplitude = (self.scale * _weight(parameter)) ** 2
        if not parameter.numeric:
            return np.where(a[:, None] == b[None, :], amplitude, 0.0)
        curve: Array = np.exp(-((a[:, None] - b[None, :]) ** 2) / (2 * _LENGTH**2))
        line: Array = a[:, None] * b[None, :] / _LENGTH**2
        return amplitude * ((1 - _SLOPE) * curve + _SLOPE * line)

    def _between(self, parameter: Parameter, old: Array, new: Array, old2: Array, new2: Array) -> Array:
        """Covariance of f(new) − f(old) with f(new2) − f(old2)."""
        ends, ends2 = np.concatenate((new, old)), np.concatenate((new2, old2))
        full, n, m = self._kernel(parameter, ends, ends2), len(new), len(new2)
        return full[:n, :m] - full[:n, m:] - full[n:, :m] + full[n:, m:]

    def _prior(self, parameter: Parameter, place: Array) -> Array:
        size: Array = np.abs(place) if parameter.numeric else (place != 0) * 1.0
        return -_COST * self.scale * _weight(parameter) * size

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
    """Inverse by Gauss-Jordan elimination: the threads of LAPACK would fight with the running job for the processor."""
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
