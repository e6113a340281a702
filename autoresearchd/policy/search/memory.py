"""What a search remembers of a session: its trials as changes with effects, rebuilt from the history at any time.

An effect is the improvement over the trial's own parent, so that trials on different incumbents can be compared.
Nothing is kept here that the history does not have: a new memory over the same history is equal to an old one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from autoresearchd.domain.experiment import Trial
from autoresearchd.domain.labels import FORBIDDEN, NEVER_RUN, Label, Status
from autoresearchd.domain.ports import TrialHistory
from autoresearchd.domain.task import Metric
from autoresearchd.evaluator.measure.measurement import is_simple
from autoresearchd.evaluator.rules.run_time import HELD
from autoresearchd.policy.search.parameter import Value

RECENT = 120
BEST = 40
_TRIED = 20_000
_ANCESTORS = 300
_MISFITS = 500
_OVERLAP = 64
"""How far back the history is read again: parallel slots decide out of order."""

_TOO_MUCH = frozenset({Label.OOM, Label.NAN_LOSS, Label.NON_FINITE, Label.TIMEOUT, Label.BUDGET_OVERRUN})

Key = tuple[str, frozenset[tuple[str, Value]]]


@dataclass(frozen=True, slots=True)
class Effect:
    """What a trial's changes did.

    gain: improvement over its parent, a forecast where the run was ended early, None where it has none (crashed,
    forbidden). told: the same as it was decided on, from runs side by side, which is what people are shown; None where
    it was not compared with its parent. failed: it must not be tried again; beyond: more of the same would fail, too
    (memory, time, divergence).
    """

    number: int
    parent: str
    changes: Mapping[str, Value]
    gain: float | None
    told: float | None = None
    kept: bool = False
    failed: bool = False
    beyond: bool = False


@dataclass(frozen=True, slots=True)
class Misfit:
    """A trial that failed with an error of shape, type or value: what it changed did not fit the rest."""

    number: int
    parent: str
    changes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class _Kept:
    parent: str
    changes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class _Judged:
    """An effect whose gain is still to be computed, from the trial's value and its parent's.

    forecast: the gain that was forecast for a run that was ended early.
    """

    effect: Effect
    value: float | None
    parent: float | None
    forecast: float | None = None


@dataclass(slots=True)
class Memory:
    """The effects that a search looks at: the best and the latest, however long the session.

    misfits: trials whose changes did not fit the rest; fits: names that were changed together and ran, with the parent.
    """

    metric: Metric
    tried: dict[Key, int] = field(default_factory=dict)
    misfits: list[Misfit] = field(default_factory=list)
    fits: dict[tuple[frozenset[str], str], int] = field(default_factory=dict)
    _recent: list[_Judged] = field(default_factory=list)
    _best: list[tuple[float, int, _Judged]] = field(default_factory=list)
    _values: dict[str, float] = field(default_factory=dict)
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)
    _keeps: set[int] = field(default_factory=set)
    _last: int = -1
    _incumbent: str = ""

    def refresh(self, history: TrialHistory) -> None:
        """Take in what was decided since the last time."""
        found = history.trials(max(-1, self._last - _OVERLAP))
        if any(trial.number in self._keeps and trial.status is not Status.KEEP for trial in found):
            self._forget()  # a keep lost its place, and what was compared with it is judged anew
            found = history.trials(-1)
        for trial in found:
            if trial.number not in self._seen:
                self._seen.add(trial.number)
                self._last = max(self._last, trial.number)
                self._take(trial)
        self._seen = {n for n in self._seen if n > self._last - 2 * _OVERLAP}
        self._recent.sort(key=lambda j: j.effect.number)
        del self._recent[:-RECENT]
        if len(self.fits) > _TRIED:
            self.fits = {k: n for k, n in self.fits.items() if n > self._last - _TRIED // 2}
        if len(self.tried) > _TRIED:
            self.tried = {k: n for k, n in self.tried.items() if n > self._last - _TRIED // 2}

    def _forget(self) -> None:
        fresh = Memory(self.metric)
        for each in fields(self):
            setattr(self, each.name, getattr(fresh, each.name))

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
                self._kept[trial.commit] = _Kept(trial.parent, changes)
        if not changes:
            return
        self.tried[key(trial.parent, changes)] = trial.number
        if trial.label in NEVER_RUN:
            return
        failed = trial.status in {Status.CRASH, Status.CHECKS_FAILED} or trial.label in FORBIDDEN
        if not failed:
            self.fits[frozenset(changes), trial.parent] = trial.number
        elif trial.label is Label.ERROR and is_simple(trial.reason):
            self.misfits.append(Misfit(trial.number, trial.parent, changes))
            del self.misfits[:-_MISFITS]
        kept = trial.status is Status.KEEP
        beyond = trial.label in _TOO_MUCH or (trial.label is Label.CONSTRAINT and HELD in trial.reason)
        told = trial.delta if compared else None
        effect = Effect(trial.number, trial.parent, changes, None, told=told, kept=kept, failed=failed, beyond=beyond)
        forecast = trial.delta if trial.label is Label.ABORTED_EARLY else None
        judged = _Judged(effect, None if failed else value, self._values.get(trial.parent), forecast)
        self._recent.append(judged)
        if judged.value is not None:
            heapq.heappush(self._best, (self.metric.improvement(judged.value, 0.0), -trial.number, judged))
            if len(self._best) > BEST:
                heapq.heappop(self._best)

    def effects(self, values: Mapping[str, float], baseline: float | None) -> list[Effect]:
        """The latest and the best, oldest first, each once.

        values, baseline: what parents that are not in the history had (by commit; all others).
        """
        chosen = {j.effect.number: j for _, _, j in self._best}
        chosen.update((j.effect.number, j) for j in self._recent)
        found = []
        for judged in (chosen[n] for n in sorted(chosen)):
            parent = judged.parent
            if parent is None:
                parent = values.get(judged.effect.parent, baseline)
            if judged.value is None:
                found.append(replace(judged.effect, gain=judged.forecast))
            elif parent is not None:
                found.append(replace(judged.effect, gain=self.metric.improvement(judged.value, parent)))
        return found

    def ancestry(self, incumbent: str) -> list[tuple[str, Mapping[str, Value]]]:
        """The incumbent and its known ancestors with the changes that made each, the oldest first (with none)."""
        chain: list[tuple[str, Mapping[str, Value]]] = []
        commit = incumbent
        while commit in self._kept and len(chain) < _ANCESTORS:
            chain.append((commit, self._kept[commit].changes))
            commit = self._kept[commit].parent
        return [(commit, {}), *reversed(chain)]


def key(parent: str, changes: Mapping[str, Value]) -> Key:
    """What makes two proposals the same."""
    return parent, frozenset(changes.items())
