"""Constants that do not fit by themselves: left alone, held to a divisor, or moved with one that has the same value.

A width that is also written elsewhere fails with an error of shape, whatever it is set to. Where another constant has
its value, both are moved together once, and again where that worked; where the values that failed broke what divided
before (heads and width), only values that keep it are tried; else two failures are enough.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from autoresearchd.policy.search.memory import Memory, Misfit
from autoresearchd.policy.search.parameter import Kind, Parameter, Value

ENOUGH = 2
"""Failures of a constant alone after which it is left alone, unless it ever ran with another value."""
_LEAST = 3
"""Equal values below this are chance: many constants are 1 or 2."""


class Coupling:
    """What the misfits of a session say of the constants of one incumbent.

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
        blamed: dict[str, list[Misfit]] = {}
        known = frozenset().union(*fits)
        for misfit in misfits:  # of a bundle the one that never ran is to blame
            names = list(misfit.changes) if len(misfit.changes) == 1 else [n for n in misfit.changes if n not in known]
            if len(names) == 1 and names[0] in parameters:
                blamed.setdefault(names[0], []).append(misfit)
        for name, found in blamed.items():
            self._look(name, found, fits, failed)

    def _look(self, name: str, misfits: list[Misfit], fits: set[frozenset[str]], failed: set[frozenset[str]]) -> None:
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
        elif len(misfits) + (both in failed) >= ENOUGH and not ran:
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
        return found if isinstance(own.value, int) and own.value >= _LEAST and len(found) <= ENOUGH else ()

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
