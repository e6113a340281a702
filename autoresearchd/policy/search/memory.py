"""What a search remembers of a session: its trials as changes with effects, rebuilt from the history at any time.

An effect is the improvement over the trial's own parent, so that trials on different incumbents can be compared.
Nothing is kept here that the history does not have: a new memory over the same history is equal to an old one.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, fields, replace

from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import FORBIDDEN, NEVER_RUN, Label, Status
from autoresearchd.domain.ports import TrialHistory
from autoresearchd.domain.task import Metric
from autoresearchd.evaluator.measure.measurement import is_simple
from autoresearchd.evaluator.rules.run_time import HELD
from autoresearchd.policy.search.parameter import Kind, Parameter, Value

_RECENT = 120
_BEST = 40
_TRIED = 20_000
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
    as it was decided on, which people are shown; None where it was not compared with its parent. failed: it must not be
    tried again; beyond: more of the same would fail, too. value, base: of the trial and of its parent, where known.
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
    tried: dict[Key, int] = field(default_factory=dict)
    misfits: list[Effect] = field(default_factory=list)
    fits: dict[tuple[frozenset[str], str], int] = field(default_factory=dict)
    _recent: list[Effect] = field(default_factory=list)
    _best: list[tuple[float, int, Effect]] = field(default_factory=list)
    _values: dict[str, float] = field(default_factory=dict)
    _made: dict[str, tuple[str, Mapping[str, Value]]] = field(default_factory=dict)  # commit → from what, by what
    _seen: set[int] = field(default_factory=set)
    _keeps: set[int] = field(default_factory=set)
    _last: int = -1
    _incumbent: str = ""

    def refresh(self, history: TrialHistory) -> None:
        """Take in what was decided since the last time."""
        found = history.trials(max(-1, self._last - _OVERLAP))
        if any(trial.number in self._keeps and trial.status is not Status.KEEP for trial in found):
            fresh = Memory(self.metric)  # a keep lost its place, and what was compared with it is judged anew
            for each in fields(self):
                setattr(self, each.name, getattr(fresh, each.name))
            found = history.trials(-1)
        for trial in found:
            if trial.number not in self._seen:
                self._seen.add(trial.number)
                self._last = max(self._last, trial.number)
                self._take(trial)
        self._seen = {n for n in self._seen if n > self._last - 2 * _OVERLAP}
        self._recent.sort(key=lambda e: e.number)
        del self._recent[:-_RECENT]
        if max(len(self.fits), len(self.tried)) > _TRIED:
            self.fits = {k: n for k, n in self.fits.items() if n > self._last - _TRIED // 2}
            self.tried = {k: n for k, n in self.tried.items() if n > self._last - _TRIED // 2}

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
        self.tried[key(trial.parent, changes)] = trial.number
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
            self.fits[frozenset(changes), trial.parent] = trial.number
        elif trial.label is Label.ERROR and is_simple(trial.reason):
            self.misfits.append(effect)
            del self.misfits[:-_MISFITS]
        self._recent.append(effect)
        if effect.value is not None:
            heapq.heappush(self._best, (self.metric.improvement(effect.value, 0.0), -trial.number, effect))
            if len(self._best) > _BEST:
                heapq.heappop(self._best)

    def effects(self, values: Mapping[str, float], baseline: float | None) -> list[Effect]:
        """The latest and the best, oldest first, each once.

        values, baseline: what parents that are not in the history had, by commit, and all others.
        """
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
    """What the misfits of a session say of the constants of one incumbent: which do not fit by themselves.

    A width that is also written elsewhere fails, whatever it is set to. Where another constant has its value, both are
    moved together once, and again where that worked; where the values that failed broke what divided before (heads and
    width), only values that keep it are tried; else two failures are enough.

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
        equal = self._equal(name)
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
        broken = [self._broken(self._parameters[name], m.changes[name]) for m in misfits]
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

    def _equal(self, name: str) -> tuple[str, ...]:
        """The other whole numbers that have a constant's value, if these are few."""
        own = self._parameters[name]
        found = tuple(p.name for p in self._whole(own) if p.value == own.value)
        return found if isinstance(own.value, int) and own.value >= _LEAST and len(found) <= _ENOUGH else ()

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
