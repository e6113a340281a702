"""What a task is held to by ``task check``: its documented baseline, honest edits, and cheats that must not pay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoresearchd.domain.labels import Label


@dataclass(frozen=True, slots=True)
class Replacement:
    """One step of a change in one file; ``file`` None: the first editable one.

    kind: ``replace``, ``before`` or ``after`` the place where ``search`` stands once; ``append`` or ``prepend`` to the
    file; ``text`` in place of all of it.
    """

    kind: str
    text: str
    search: str = ""
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """An edit of the program with a name; expected: the labels that a cheat may end with, empty for an honest edit."""

    name: str
    change: tuple[Replacement, ...]
    expected: frozenset[Label] = frozenset()


@dataclass(frozen=True, slots=True)
class Documented:
    """A baseline as the task's README has it.

    sigma: standard deviation of single runs; budget: seconds of training that it was measured with, None: the task's;
    within: the share of the value by which another machine may differ. text: ``value ± sigma`` as it was written.
    """

    value: float
    sigma: float
    text: str
    budget: float | None = None
    within: float = 0.0

    @property
    def margin(self) -> float:
        """The difference of a single run from this baseline that says nothing."""
        return max(SIGMAS * self.sigma, self.within * abs(self.value))


SIGMAS = 4.0
"""In σ: further from the documented baseline than chance takes a run."""


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """All of it. baseline: by profile; budget: seconds of training for edits and cheats, None: the task's."""

    baseline: Mapping[str, Documented] = field(default_factory=dict)
    budget: float | None = None
    edits: tuple[Variant, ...] = ()
    cheats: tuple[Variant, ...] = ()
