"""Who rents machines out: a small port, and the names by which a session finds its own again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autoresearchd.domain.experiment import Session
from autoresearchd.domain.ports import Cancel, EventKind
from autoresearchd.domain.task import Cloud

PREFIX = "autoresearchd-"
NAME = re.compile(PREFIX + r"(?P<tag>.+)-(?P<key>[0-9a-f]{6})-(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Rented:
    """A machine as its provider tells of it. id: another one for each machine that has had this name.

    up: whether it can be used; state: the provider's word for that. usd: an hour, None: unknown. since: it was launched
    (seconds of the epoch). ssh: options of its ssh configuration.
    """

    name: str
    id: str
    up: bool
    state: str
    what: str
    usd: float | None
    since: float
    ssh: Mapping[str, str] = field(default_factory=dict)


class Rental(Protocol):
    """Rents machines out. Called from several threads.

    Raises MissingCapability where waiting changes nothing (no account, no such GPU), EnvironmentFailure for the rest.
    """

    def check(self, want: Cloud) -> str:
        """Whether such a machine could be rented, without renting it: by whom."""

    def launch(self, name: str, want: Cloud, cancel: Cancel) -> Rented:
        """Have a machine of this name up, which takes minutes; one that is there is used, or repaired.

        It ends by itself ``want.idle_minutes`` after nobody has kept it. Raises Interrupted once ``cancel`` is set.
        Whoever gets an error calls ``down``: part of it may be there.
        """

    def look(self, prefix: str, keep: int | None = None) -> Sequence[Rented]:
        """What is there now of this user's machines whose names begin so. keep: minutes to put off the end of each."""

    def down(self, names: Sequence[str]) -> None:
        """End machines for good, also while they are launched; those that are not there are none to speak of."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a session lends to its executor. prefix: of its machines' names; folder: its own, for keys and the ledger.

    charge: counts US dollars of a bill, once; left: how many may still be spent; broke: called when none are.
    cancel: no more launches.
    """

    prefix: str
    folder: Path
    cancel: Cancel
    tell: Callable[[EventKind, str], None]
    waits: Callable[[str], None] = lambda reason: None
    charge: Callable[[float, str], None] = lambda usd, bill: None
    left: Callable[[], float] = lambda: float("inf")
    broke: Callable[[], None] = lambda: None


def prefix_of(session: Session) -> str:
    """How the names of a session's machines begin: the same after a crash, and another's in no other repository."""
    known = f"{session.tag} {session.seed} {session.base_commit} {int(session.started_at.timestamp())}"
    return f"{PREFIX}{session.tag}-{hashlib.sha256(known.encode()).hexdigest()[:6]}-"
