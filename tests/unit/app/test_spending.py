"""A cap on a day is the user's: it holds over all repositories, and never for less than is known to be spent."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from autoresearchd.app.models.spending import SessionAnswers, UsersDay
from autoresearchd.domain.errors import EnvironmentFailure, SpendCapReached, StoreError
from autoresearchd.domain.proposal import Answer, Cost, Generation
from autoresearchd.models.spend import Caps
from autoresearchd.store.daily_spend import DailySpend
from autoresearchd.store.repository import SqlStore

MORNING = datetime(2026, 11, 22, 9, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.time = MORNING

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0


class Repository:
    """A journal in memory with a session that spends."""

    def __init__(self, state: Path | DailySpend | None, name: str, clock: Clock, fails: bool = False) -> None:
        self.answers: list[tuple[datetime, float]] = []
        self.fails, self.told, self.lost = fails, list[str](), False
        book = DailySpend(state) if isinstance(state, Path) else state
        store = cast(SqlStore, self)
        self.day = UsersDay(book, store, clock, self.told.append, name)
        self.log = SessionAnswers(store, 1, clock, self.day.spent)
        self.caps = Caps(session_usd=lambda: 0.0, day_usd=self.day.usd, day_cap=1.0)

    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime, *, again: bool = False) -> None:
        if self.fails:
            raise RuntimeError("killed")
        self.answers.append((at, answer.cost.usd or 0.0))

    def charges_since(self, at: datetime) -> list[tuple[datetime, float]]:
        if self.lost:
            raise StoreError("the database is gone")
        return [(when, usd) for when, usd in self.answers if when >= at and usd > 0]

    def spend(self, usd: float | None) -> None:
        self.log.record(1, Answer("m", Cost(usd=usd), Generation()))


def test_two_repositories_spend_out_of_one_purse(tmp_path: Path) -> None:
    clock = Clock()
    one, other = (Repository(tmp_path, name, clock) for name in ("one", "other"))
    one.spend(0.6)
    other.caps.check()
    other.spend(0.5)
    for repository in (one, other):
        with pytest.raises(SpendCapReached, match=r"a day is reached: your sessions together spent \$1\.10"):
            repository.caps.check()
    clock.time += timedelta(days=1)
    one.caps.check()


def test_a_daemon_that_dies_before_its_journal_is_written_has_spent_the_money(tmp_path: Path) -> None:
    clock = Clock()
    with pytest.raises(RuntimeError):
        Repository(tmp_path, "one", clock, fails=True).spend(0.7)
    assert Repository(tmp_path, "other", clock).day.usd() == pytest.approx(0.7)


def test_where_the_book_cannot_be_kept_the_repository_counts_alone_and_the_user_is_told_once(tmp_path: Path) -> None:
    DailySpend(tmp_path).path(MORNING).mkdir()
    repository = Repository(tmp_path, "one", Clock())
    repository.spend(0.6)
    repository.spend(0.5)
    with pytest.raises(SpendCapReached):
        repository.caps.check()
    assert len(repository.told) == 1
    assert "cannot be kept" in repository.told[0]


class Failing(DailySpend):
    """A book on a disk that is full for a while."""

    failures = 0

    def add(self, at: datetime, usd: float, what: str, *, again: bool = False) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        super().add(at, usd, what, again=again)


def test_the_next_session_of_the_repository_writes_down_what_was_missing_when_the_last_one_ended(
    tmp_path: Path,
) -> None:
    clock, book = Clock(), Failing(tmp_path)
    one, other = (Repository(book, name, clock) for name in ("one", "other"))
    one.spend(0.125)
    clock.time += timedelta(seconds=1, microseconds=3)
    book.failures = 2
    one.spend(0.5)
    one.day.close()
    assert book.failures == 0
    assert "$0.5000" in one.told[-1]
    assert other.day.usd() == pytest.approx(0.125)
    following = Repository(book, "one", clock)
    following.answers = one.answers
    for _ in range(2):
        following.day.catch_up()
        assert other.day.usd() == pytest.approx(0.625), "each amount once"
    one.day.close()
    assert other.day.usd() == pytest.approx(0.625), "nor again by who could not write it then"


def test_what_the_journal_knows_counts_though_the_book_was_deleted(tmp_path: Path) -> None:
    repository = Repository(tmp_path, "one", Clock())
    repository.spend(0.6)
    DailySpend(tmp_path).path(MORNING).unlink()
    assert repository.day.usd() == pytest.approx(0.6)


class Away:
    """A journal on a server that is away for some time; each try: when the answer came, and whether it was the first.

    tried: called at each try.
    """

    def __init__(self, tries: int, tried: Callable[[], None] = lambda: None) -> None:
        self.tries, self.tried, self.asked = tries, tried, list[tuple[datetime, bool]]()

    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime, *, again: bool = False) -> None:
        self.asked.append((at, again))
        self.tried()
        if len(self.asked) <= self.tries:
            raise EnvironmentFailure("the server does not answer")


def test_a_paid_answer_waits_for_a_store_that_is_away_and_for_nobody_who_is_to_stop_at_once() -> None:
    back, answer = Away(2), Answer("m", Cost(usd=0.5), Generation())
    SessionAnswers(cast(SqlStore, back), 1, Clock(), away=(0.0, 0.0)).record(1, answer)
    assert back.asked == [(MORNING, False), (MORNING, True), (MORNING, True)], "it may have been taken before"
    now = Event()
    gone = Away(9, now.set)
    with pytest.raises(EnvironmentFailure, match="does not answer"):
        SessionAnswers(cast(SqlStore, gone), 1, Clock(), away=(1e6,), now=now).record(1, answer)
    assert len(gone.asked) == 1
