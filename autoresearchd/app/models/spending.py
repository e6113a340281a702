"""What a session's models may cost: its answers are charged in its journal and in its user's book of the day."""

from __future__ import annotations

import math
import shutil
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure
from autoresearchd.domain.ports import Cancel, Clock, Purse
from autoresearchd.domain.proposal import Answer
from autoresearchd.loop.upkeep.housekeeping import LOW_DISK_BYTES
from autoresearchd.store.daily_spend import DailySpend
from autoresearchd.store.repository import SqlStore

AWAY_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""How long, time after time, an answer waits for a store that is away: it has been paid for."""


@dataclass(frozen=True, slots=True)
class SessionAnswers:
    """The answers of models in one session, in its store; ``spent`` is told of each first. now: nothing is waited for.

    In this order: a daemon that dies in between has the cap of the day count too much rather than too little.
    """

    store: SqlStore
    session_id: int
    clock: Clock
    spent: Callable[[datetime, float], None] = lambda at, usd: None
    away: Sequence[float] = ()
    now: Cancel = field(default_factory=threading.Event)

    def record(self, number: int, answer: Answer) -> None:
        at, usd = self.clock.now(), answer.cost.usd
        if usd is not None and math.isfinite(usd) and usd > 0:
            self.spent(at, usd)
        for tried, seconds in enumerate((*self.away, 0.0)):
            try:
                self.store.record_answer(self.session_id, number, answer, at, again=tried > 0)
                return
            except EnvironmentFailure:
                if tried == len(self.away) or self.now.wait(seconds):
                    raise


@dataclass(frozen=True, slots=True)
class Roomy:
    """A purse that is closed while the disk is full: an answer that cannot be written down is paid for in vain."""

    purse: Purse
    place: Path

    def check(self) -> None:
        if shutil.disk_usage(self.place).free < LOW_DISK_BYTES:
            raise EnvironmentFailure(
                f"less than {LOW_DISK_BYTES // 2**20} MB are free on the disk of {self.place}: no model is asked",
                hint="free some space; it goes on by itself",
            )
        self.purse.check()


class UsersDay:
    """What all sessions of a user have cost today (UTC), in whatever repository.

    An amount that the book does not take is kept and added at the next chance, the last of which is the end of the
    session; until then it counts for this session. What is still missing then is in the journal, and the repository's
    next session adds it. Where the book cannot be read, what it said last counts, and at least the journal.

    book: None where there is no place for one; what: how it calls the session.
    """

    def __init__(
        self, book: DailySpend | None, journal: SqlStore, clock: Clock, warn: Callable[[str], None], what: str
    ) -> None:
        self._book, self._journal, self._clock, self._warn, self._what = book, journal, clock, warn, what
        self._told = False
        self._pending: deque[tuple[datetime, float]] = deque()
        self._known: tuple[datetime, float] | None = None
        self._lock = threading.Lock()

    def catch_up(self) -> None:
        """Add what this repository has spent today and could not write into the book."""
        if self._book is None:
            return
        now = self._clock.now()
        with self._lock:
            try:
                known = {*self._book.entries(now), *self._pending}
            except OSError as error:
                self._complain(error)
                return
            self._pending.extend(each for each in self._journal.charges_since(_midnight(now)) if each not in known)
            self._write(self._book)

    def close(self) -> None:
        """The last chance to write down what is not in the book; the session may end for want of its journal."""
        try:
            self.catch_up()
        except AutoresearchdError as error:
            self._warn(f"what models cost today may be missing in the book of the day: {error}")
        if left := math.fsum(usd for _, usd in self._pending):
            self._warn(
                f"${left:.4f} that models cost is not in the book of the day, which cannot be written: the next "
                "session of this repository with a model adds what was spent on its day"
            )

    def spent(self, at: datetime, usd: float) -> None:
        if self._book is not None:
            with self._lock:
                self._pending.append((at, usd))
                self._write(self._book)

    def usd(self) -> float:
        today = _midnight(self._clock.now())
        here = math.fsum(usd for _, usd in self._journal.charges_since(today))
        if self._book is None:
            return here
        with self._lock:
            self._write(self._book)
            try:
                self._known = today, self._book.spent(today)
            except OSError as error:
                self._complain(error)
            known = self._known[1] if self._known is not None and self._known[0] == today else 0.0
            return max(here, known + math.fsum(usd for at, usd in self._pending if _midnight(at) == today))

    def _write(self, book: DailySpend) -> None:
        """Add what is not in the book yet, oldest first, as long as it takes it."""
        while self._pending:
            at, usd = self._pending[0]
            try:
                book.add(at, usd, self._what, again=True)  # another session may have found it in the journal
            except OSError as error:
                self._complain(error)
                return
            self._pending.popleft()

    def _complain(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            self._warn(
                f"the book of what models cost in all of your repositories cannot be kept: {error}. It is tried again "
                "with each answer; until then spend.per_day of other repositories does not count what this session "
                "spends, and here it may not count what they do"
            )


def _midnight(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def state_home(environment: Mapping[str, str]) -> Path | None:
    """Our folder of state of a user, None: there is no place; see the XDG Base Directory Specification."""
    state, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if not state.startswith("/"):
        state = f"{home}/.local/state"
    return Path(state) / "autoresearchd" if state.startswith("/") else None


def daily_spend(environment: Mapping[str, str]) -> DailySpend | None:
    """The user's book; None where there is no place for it."""
    folder = state_home(environment)
    return None if folder is None else DailySpend(folder)
