"""A cap on a day is the user's: it holds over all repositories, and never for less than is known to be spent."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from autoresearchd.app.models.spending import SessionAnswers, UsersDay, daily_spend
from autoresearchd.domain.errors import SpendCapReached, StoreError
from autoresearchd.domain.ports import Store
from autoresearchd.domain.proposal import Answer, Cost, Generation
from autoresearchd.models.spend import Caps
from autoresearchd.store.daily_spend import DailySpend

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
        self.day = UsersDay(book, self, clock, self.told.append, name)
        self.log = SessionAnswers(cast(Store, self), 1, clock, self.day.spent)
        self.caps = Caps(session_usd=lambda: 0.0, day_usd=self.day.usd, day_cap=1.0)

    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime) -> None:
        if self.fails:
            raise RuntimeError("killed")
        self.answers.append((at, answer.cost.usd or 0.0))

    def spent_since(self, at: datetime) -> float:
        return sum(usd for when, usd in self.answers if when >= at)

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


def test_answers_that_cost_nothing_or_nobody_knows_what_leave_no_trace(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "state", "one", Clock())
    for usd in (None, 0.0, float("nan"), -1.0):
        repository.spend(usd)
    assert not (tmp_path / "state").exists()


def broken_folder(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "state"


def broken_file(tmp_path: Path) -> Path:
    DailySpend(tmp_path).path(MORNING).mkdir()
    return tmp_path


@pytest.mark.parametrize("breaks", [broken_folder, broken_file])
def test_where_the_book_cannot_be_kept_the_repository_counts_alone_and_the_user_is_told_once(
    breaks: Callable[[Path], Path], tmp_path: Path
) -> None:
    repository = Repository(breaks(tmp_path), "one", Clock())
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


def test_what_the_book_did_not_take_twice_is_in_it_afterwards_and_counted_all_the_while(tmp_path: Path) -> None:
    clock, book = Clock(), Failing(tmp_path)
    one, other = (Repository(book, name, clock) for name in ("one", "other"))
    other.spend(0.25)
    book.failures = 2
    one.spend(0.5)
    assert book.failures == 1
    assert one.day.usd() == pytest.approx(0.75), "0.25 of the other in the book, 0.5 that it does not take"
    assert book.failures == 0
    assert DailySpend(tmp_path).spent(MORNING) == pytest.approx(0.25)
    one.spend(0.125)
    assert DailySpend(tmp_path).spent(MORNING) == pytest.approx(0.875), "each amount once, whatever failed before"
    assert other.day.usd() == one.day.usd() == pytest.approx(0.875)
    assert len(one.told) == 1


def test_what_a_killed_journal_never_knew_still_counts_while_the_book_fails(tmp_path: Path) -> None:
    book = Failing(tmp_path)
    repository = Repository(book, "one", Clock(), fails=True)
    book.failures = 3
    with pytest.raises(RuntimeError):
        repository.spend(1.0)
    with pytest.raises(SpendCapReached):
        repository.caps.check()


def test_an_amount_of_yesterday_goes_into_the_book_of_yesterday(tmp_path: Path) -> None:
    clock, book = Clock(), Failing(tmp_path)
    repository = Repository(book, "one", clock)
    book.failures = 1
    repository.spend(0.5)
    clock.time += timedelta(days=1)
    assert repository.day.usd() == 0.0
    assert book.spent(MORNING) == 0.5


def test_the_end_of_a_session_is_a_chance_to_write_down_what_the_book_did_not_take(tmp_path: Path) -> None:
    book = Failing(tmp_path)
    repository = Repository(book, "one", Clock())
    book.failures = 1
    repository.spend(0.5)
    repository.day.close()
    repository.day.close()
    assert DailySpend(tmp_path).spent(MORNING) == 0.5
    assert len(repository.told) == 1


def test_the_next_session_of_the_repository_writes_down_what_was_missing_when_the_last_one_ended(
    tmp_path: Path,
) -> None:
    clock, book = Clock(), Failing(tmp_path)
    one, other = (Repository(book, name, clock) for name in ("one", "other"))
    one.spend(0.125)
    clock.time += timedelta(seconds=1, microseconds=3)
    book.failures = 3
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


def test_a_book_that_cannot_be_read_when_a_session_begins_is_caught_up_with_later(tmp_path: Path) -> None:
    repository = Repository(broken_file(tmp_path), "one", Clock())
    repository.answers.append((MORNING, 0.5))
    repository.day.catch_up()
    assert len(repository.told) == 1
    DailySpend(tmp_path).path(MORNING).rmdir()
    repository.day.close()
    assert DailySpend(tmp_path).spent(MORNING) == 0.5


def test_a_session_that_ends_because_its_journal_was_lost_ends_all_the_same(tmp_path: Path) -> None:
    repository = Repository(tmp_path, "one", Clock())
    repository.lost = True
    repository.day.close()
    assert len(repository.told) == 1
    assert "the database is gone" in repository.told[0]


def test_a_book_that_cannot_be_read_any_more_is_remembered(tmp_path: Path) -> None:
    clock = Clock()
    one, other = (Repository(tmp_path, name, clock) for name in ("one", "other"))
    other.spend(0.75)
    one.caps.check()
    one.spend(0.125)
    DailySpend(tmp_path).path(MORNING).unlink()
    DailySpend(tmp_path).path(MORNING).mkdir()
    assert one.day.usd() == pytest.approx(0.875)
    one.spend(0.25)
    with pytest.raises(SpendCapReached):
        one.caps.check()


def test_what_the_journal_knows_counts_though_the_book_was_deleted(tmp_path: Path) -> None:
    repository = Repository(tmp_path, "one", Clock())
    repository.spend(0.6)
    DailySpend(tmp_path).path(MORNING).unlink()
    assert repository.day.usd() == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/home/me"}, "/home/me/.local/state/autoresearchd"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": "/state"}, "/state/autoresearchd"),
        ({"HOME": "/home/me", "XDG_STATE_HOME": "state"}, "/home/me/.local/state/autoresearchd"),
        ({}, None),
        ({"HOME": "here"}, None),
    ],
)
def test_the_book_lies_with_the_users_state(environment: dict[str, str], expected: Any) -> None:
    book = daily_spend(environment)
    assert (book and str(book.path(MORNING).parent)) == expected
