"""What a search remembers of a session, rebuilt from the history at any time, and what it believes from that.

An effect is the improvement over the trial's own parent, so that trials on different incumbents can be compared.
Beliefs are a Gaussian process F over all constants, fitted to the effects F(new) − F(old): each constant has a function
of its own (Duvenaud et al. 2011, "Additive Gaussian Processes", first order), and one has all. Axes are in moderate
steps away from the present value, so that one length suits all.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from autoresearchd.domain.experiment import Experiment, Trial
from autoresearchd.domain.labels import FORBIDDEN, NEVER_RUN, Label, Status
from autoresearchd.domain.ports import TrialHistory
from autoresearchd.domain.task import Metric
from autoresearchd.evaluator.measure.measurement import is_simple
from autoresearchd.evaluator.rules.run_time import HELD
from autoresearchd.policy.search.parameter import PRICES, Kind, Parameter, Value

_RECENT = 64
_BEST = 24
_ANCESTORS = 300
_MISFITS = 500
_ENOUGH = 2
"""Failures of a constant alone after which it is left alone, unless it ever ran with another value."""
_LEAST = 3
"""Equal values below this are chance: many constants are 1 or 2."""
_OVERLAP = 64
"""How far back the history is read again."""

_TOO_MUCH = frozenset({Label.OOM, Label.NAN_LOSS, Label.NON_FINITE, Label.TIMEOUT, Label.BUDGET_OVERRUN})

Key = tuple[str, frozenset[tuple[str, Value]]]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a trial's changes did.

    gain: improvement over its parent, a forecast where the run was ended early, None where it has none. told: the same
    as it was decided on, which people are shown, where it was compared with its parent. failed: it must not be tried
    again; beyond: more of the same would fail, too. value, base: of the trial and of its parent, where known. start:
    how much better than the present program its parent was.
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
    start: float = 0.0


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
    _last: int = -1
    _incumbent: str = ""
    _segment: int = 0
    program: Callable[[str], str] = lambda commit: commit
    """What a commit is called here: with reverts many have the same program."""

    def refresh(self, history: TrialHistory) -> Memory:
        """This with what was decided since the last time."""
        for trial in history.trials(max(-1, self._last - _OVERLAP)):
            if trial.number not in self._seen:
                self._seen.add(trial.number)
                self._last = max(self._last, trial.number)
                self._take(trial)
        self._seen = {n for n in self._seen if n > self._last - 2 * _OVERLAP}
        self._recent.sort(key=lambda e: e.number)
        del self._recent[:-_RECENT]
        return self

    def _take(self, trial: Trial) -> None:
        if trial.segment != self._segment:
            self._begin_segment(trial.segment)
        trial = replace(trial, parent=self.program(trial.parent))
        if trial.status is Status.KEEP and trial.commit is not None:
            self.program(trial.commit)
        self._incumbent = self._incumbent or trial.parent  # the first one is made on the baseline
        compared = trial.parent == self._incumbent
        if trial.status is Status.KEEP and trial.commit is not None:
            self._incumbent = trial.commit
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

    def _begin_segment(self, number: int) -> None:
        """Values of before are none of today's, and what has run may run again; what it brought still tells."""
        told = [e for e in self._recent if e.value is None or e.base is not None]
        self._recent = [
            e if e.value is None or e.base is None
            else replace(e, gain=self.metric.improvement(e.value, e.base), value=None, base=None)
            for e in told
        ]  # fmt: skip
        self.tried, self._best, self._values, self._incumbent, self._segment = set(), [], {}, "", number

    def effects(self, values: Mapping[str, float], baseline: float | None, now: float | None = None) -> list[Effect]:
        """The latest and the best, oldest first.

        values: of parents, as they are estimated by now; baseline: of those that are not in the history. now: of the
        present program, where it is known.
        """
        chosen = {e.number: e for e in (*(e for _, _, e in self._best), *self._recent)}
        found = []
        for effect in (chosen[n] for n in sorted(chosen)):
            base = values.get(effect.parent, baseline if effect.base is None else effect.base)
            if base is not None:
                gain = effect.gain if effect.value is None else self.metric.improvement(effect.value, base)
                start = 0.0 if now is None else self.metric.improvement(base, now)
                found.append(replace(effect, gain=gain, start=start))
            elif effect.value is None:
                found.append(effect)
        return found

    def pending(self, under_way: Sequence[Experiment]) -> list[Effect]:
        """Trials that nobody knows the end of, as if they had changed nothing: others are sought elsewhere meanwhile.

        A constant liar (Ginsbourger et al. 2010, "Kriging is well-suited to parallelize optimization").
        """
        found = []
        for e in under_way:
            if e.proposal is not None and e.proposal.changes:
                self.tried.add(key(e.parent, e.proposal.changes))
                found.append(Effect(e.number, e.parent, e.proposal.changes, 0.0))
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


# ---------------------------------------------------------------------- what changes would bring
Array = NDArray[np.float64]

_LENGTH = 2.0
"""Length scale of a constant's function, in moderate steps."""
_BEND = 3.0
"""Beyond about so many steps from the present value distances count by their logarithm: far away a decade is a step."""
_SLOPE, _CURVE, _JOINT = 0.3, 0.1, 0.3
"""Shares of the variance: straight lines (what helped goes on helping), parabolas, and what constants do together."""
_COST, _COST_DEVIATION = 0.12, 0.1
"""A change that nothing is known about makes things a little worse, per step; how sure that is before the history."""
_PRICED_SLOPE, _PRICED_WEIGHT = 0.6, 1.15
"""Of what sets the price of a step, where a run ends by the clock: it matters more, and goes on as it began."""
_TRUST = 0.5
"""How far the usual importance of a constant is believed before it has been tried."""
_FRESH = 2.0
"""Nobody has tuned what an edit brought: it is thought to matter so many times as much as what was there at first."""
_STALE = 0.1
"""What was seen on an earlier incumbent may hold no more, to this share of the scale."""
_INEXACT = 0.1
"""Large effects are told by the model to this share of them."""
_WORST = 4.0
"""A failure counts as so many scales below the present program."""


class Surrogate:
    """Beliefs about all constants of one incumbent together.

    parameters: the constants by name, as they are at ``incumbent``; lineage: what they were there and at its ancestors,
    by commit. sigma: noise of one measurement, None where it is not known. timed: a run ends by the clock, so that
    cheaper steps are more steps. fresh: constants that were not there at first. Recipes come from longer runs, for
    which larger models pay (Hoffmann et al. 2022).
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        lineage: Mapping[str, Mapping[str, Value]],
        effects: Sequence[Effect],
        incumbent: str,
        sigma: float | None,
        timed: bool = False,
        fresh: Collection[str] = (),
    ) -> None:
        self._parameters = dict(parameters)
        self._index = {name: i for i, name in enumerate(parameters)}
        self._numeric = np.array([p.numeric for p in parameters.values()])
        priced = [timed and p.numeric and p.range.family in PRICES for p in parameters.values()]
        self._priced = np.array(priced, dtype=bool)
        self._weight = np.array([_weight(p) for p in parameters.values()])
        self._weight *= np.where(self._priced, _PRICED_WEIGHT, 1.0)
        self._weight *= np.array([_FRESH if name in fresh else 1.0 for name in parameters])
        self._slope = np.where(self._priced, _PRICED_SLOPE, _SLOPE)
        self._own = np.where(self._numeric, 1 - _SLOPE, 1.0)
        self._rises: dict[str, list[tuple[float, float, Effect]]] = defaultdict(list)
        self._rows: list[Effect] = []
        ends: list[tuple[Array, Array]] = []
        begun: dict[str, Array] = {}
        for effect in effects:
            before = lineage.get(effect.parent)
            if before is None or not all(n in parameters and n in before for n in effect.changes):
                continue  # what it started from is not known
            if effect.parent not in begun:
                begun[effect.parent] = self.place(before)
            old = begun[effect.parent]
            new = self._moved(old, effect.changes)
            if np.isfinite(old).all() and np.isfinite(new).all():
                self._rows.append(effect)
                ends.append((old, new))
                for i, name in ((self._index[name], name) for name in effect.changes):
                    self._rises[name].append((float(old[i]), float(new[i]), effect))
        both = np.array([new for _, new in ends] + [old for old, _ in ends]).reshape(-1, len(self._parameters))
        self._programs, self._which = np.unique(both, axis=0, return_inverse=True)  # most trials share their start
        self.scale, self.noise = self._scales(sigma)
        self._fit(incumbent)

    def place(self, values: Mapping[str, Value]) -> Array:
        """Where a program lies, in moderate steps from the present one: (constants,). What is not said is as now."""
        return self._moved(np.zeros(len(self._parameters)), values)

    def _moved(self, old: Array, values: Mapping[str, Value]) -> Array:
        new = old.copy()
        for name, value in values.items():
            if name in self._index:
                new[self._index[name]] = where(self._parameters[name], value)
        return new

    def rises(self, name: str) -> list[tuple[float, float, Effect]]:
        """Where a constant was tried, in steps from its present value: (before, after, trial)."""
        return self._rises.get(name, [])

    def _scales(self, sigma: float | None) -> tuple[float, float]:
        # Where there is no noise, edits that changed nothing tell nothing of the size of the others.
        sizes = sorted(abs(e.gain) for e in self._rows if e.gain is not None and (e.gain or sigma))
        middle = sizes[len(sizes) // 2] if sizes else 0.0
        noise = sigma if sigma is not None and sigma > 0 else 0.2 * middle
        scale = max(1.5 * middle if len(sizes) >= 4 else 0.0, 3.0 * noise) or 1.0  # any unit, before the first effect
        return scale, max(noise, 0.02 * scale)

    def _fit(self, incumbent: str) -> None:
        count = len(self._rows)
        gains = np.array([self._gain(e) for e in self._rows])
        full = self._kernel(self._programs, self._programs)[np.ix_(self._which, self._which)]
        covariance = full[:count, :count] - full[:count, count:] - full[count:, :count] + full[count:, count:]
        parents = {p: i for i, p in enumerate(dict.fromkeys(e.parent for e in self._rows))}
        which = np.array([parents[e.parent] for e in self._rows], dtype=int)
        covariance += (which[:, None] == which[None, :]) * (0.5 * self.noise**2)
        stale = np.array([_STALE * self.scale * (e.parent != incumbent) for e in self._rows])
        covariance[np.diag_indices(count)] += self.noise**2 + (_INEXACT * gains) ** 2 + stale**2
        mean = self._mean(self._programs)[self._which]
        prior = mean[:count] - mean[count:]
        self._inverse = _invert(covariance)
        self._weights: Array = self._inverse @ (gains - prior)

    def _gain(self, effect: Effect) -> float:
        """What a trial counts for: how much worse than the present program something is, counts by its logarithm."""
        if effect.failed or effect.gain is None:
            return -_WORST * self.scale
        before, after = (min(v, 0.0) for v in (effect.start, effect.start + effect.gain))
        above = max(effect.start + effect.gain, 0.0) - max(effect.start, 0.0)
        return above + self.scale * (math.log1p(-before / self.scale) - math.log1p(-after / self.scale))

    def _bent(self, points: Array) -> Array:
        return np.where(self._numeric, _BEND * np.arcsinh(points / _BEND), points)

    def _far(self, points: Array) -> Array:
        """How far programs lie from the present one, weighted by what matters."""
        away: Array = np.where(self._numeric, np.abs(self._bent(points)), points != 0) @ self._weight
        return away

    def _mean(self, points: Array) -> Array:
        """What programs are thought to gain before anything was tried; steps that are cheaper cost nothing."""
        found: Array = -_COST * self.scale * self._far(np.where(self._priced, np.maximum(points, 0.0), points))
        return found

    def _kernel(self, a: Array, b: Array) -> Array:
        """Covariance of programs: (n, constants), (m, constants) → (n, m)."""
        weight = self._weight**2
        line_a, line_b = (np.where(self._numeric, self._bent(points) / _LENGTH, 0.0) for points in (a, b))
        near, apart = self._apart(a, b)
        found: Array = near + (line_a * weight * self._slope) @ line_b.T
        found += _CURVE * (line_a**2 * weight) @ (line_b**2).T
        found += _JOINT * np.exp(-0.125 * apart)  # over twice the length
        found += np.outer(_COST_DEVIATION * self._far(a), _COST_DEVIATION * self._far(b))
        return found * self.scale**2

    def _apart(self, a: Array, b: Array) -> tuple[Array, Array]:
        """How alike programs are, constant by constant, and how far apart: both (n, m), weighted sums.

        Few constants of a program are not as now: all but these are the same for all of ``a``.
        """
        count, b_bent = len(self._parameters), self._bent(b)
        rows, names = np.nonzero(np.concatenate((np.ones((1, count)), a)))  # the first row: all as now
        here = np.concatenate((np.zeros((1, count)), self._bent(a)))[rows, names]
        steps = np.where(self._numeric, 1 / _LENGTH, 1.0)[names, None] * (here[:, None] - b_bent.T[names])
        numeric, square = self._numeric[names, None], steps**2
        near = np.where(numeric, np.exp(-0.5 * square), square == 0) * (self._weight**2 * self._own)[names, None]
        square = np.where(numeric, square, 2.0 * (square != 0)) * self._weight[names, None]
        moved, first = np.unique(rows[count:] - 1, return_index=True)
        found = []
        for each in (near, square):
            every = np.repeat(each[:count].sum(axis=0, keepdims=True), len(a), axis=0)
            if len(moved):
                every[moved] += np.add.reduceat(each[count:] - each[names[count:]], first, axis=0)
            found.append(every)
        return found[0], found[1]

    def _variance(self, points: Array) -> Array:
        """The diagonal of the covariance of programs with themselves: (n,)."""
        weight, line = self._weight**2, np.where(self._numeric, self._bent(points) / _LENGTH, 0.0)
        found: Array = (weight * self._own).sum() + _JOINT + (self._slope * line**2 + _CURVE * line**4) @ weight
        return (found + (_COST_DEVIATION * self._far(points)) ** 2) * self.scale**2

    def believe(self, points: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the gain of programs, (n, constants), over the present one."""
        here, count = np.zeros((1, len(self._parameters))), len(self._rows)
        across = self._kernel(np.concatenate((points, here)), np.concatenate((self._programs, here)))
        with_gains = across[:, self._which[:count]] - across[:, self._which[count:]]
        with_gains = with_gains[:-1] - with_gains[-1:]
        mean = with_gains @ self._weights + self._mean(points)
        variance = self._variance(points) + across[-1, -1] - 2 * across[:-1, -1]
        variance -= ((with_gains @ self._inverse) * with_gains).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, (1e-9 * self.scale) ** 2))


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
