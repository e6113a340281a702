"""The book of a day: what models cost is known to all of a user's daemons, and a crash takes no amount with it."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import signal
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from autoresearchd.store.daily_spend import DailySpend

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_each_day_has_its_own_sum_and_begins_at_midnight_utc(tmp_path: Path) -> None:
    book = DailySpend(tmp_path)
    late_in_new_york = datetime(2026, 11, 21, 20, tzinfo=timezone(timedelta(hours=-5)))  # the 22nd, 1:00 UTC
    book.add(late_in_new_york, 1.0, "a")
    assert book.spent(NOON) == 1.0
    assert book.spent(NOON - timedelta(days=1)) == 0.0


def test_an_amount_that_may_be_in_the_book_already_is_added_once(tmp_path: Path) -> None:
    book, late = DailySpend(tmp_path), NOON + timedelta(microseconds=7)
    for at, usd in ((NOON, 0.1), (late, 0.1), (NOON, 0.2)):
        for _ in range(2):
            book.add(at, usd, "a", again=True)
    assert book.entries(NOON) == {(NOON, 0.1), (late, 0.1), (NOON, 0.2)}
    assert book.spent(NOON) == pytest.approx(0.4)
    with book.path(NOON).open("ab") as file:
        file.write(b'{"at": "noon", "usd": 1}\n{"at": "2026-11-22T12:00:00", "usd": 1}\n{"usd": 1}\n7\n')
    assert len(book.entries(NOON)) == 3, "what says no time may be anybody's"


def test_a_line_that_a_crash_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    book = DailySpend(tmp_path)
    book.add(NOON, 1.0, "a")
    with book.path(NOON).open("ab") as file:
        file.write(b'{"at": "2026-11-22T12:0')
    assert book.spent(NOON) == 1.0
    book.add(NOON, 2.0, "a")
    assert book.spent(NOON) == 3.0


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"usd": "9"}', b'{"usd": -9}', b'{"usd": NaN}', b'{"usd": true}',
                                  b'{"usd": 1e300}', b"\xff\xfe", b"[" * 100_000])  # fmt: skip
def test_what_is_no_amount_counts_nothing(line: bytes, tmp_path: Path) -> None:
    book = DailySpend(tmp_path)
    book.add(NOON, 1.0, "a")
    with book.path(NOON).open("ab") as file:
        file.write(line + b"\n")
    assert book.spent(NOON) == 1.0


def test_a_link_or_a_pipe_in_its_place_is_neither_written_nor_waited_for(tmp_path: Path) -> None:
    book, victim = DailySpend(tmp_path), tmp_path / "victim"
    victim.write_text("mine\n")
    book.path(NOON).symlink_to(victim)
    with pytest.raises(OSError):
        book.add(NOON, 1.0, "a")
    book.path(NOON).unlink()
    os.mkfifo(book.path(NOON))
    with pytest.raises(OSError):
        book.add(NOON, 1.0, "a")
    assert book.spent(NOON) == 0.0
    assert victim.read_text() == "mine\n"


def test_only_the_user_can_read_it(tmp_path: Path) -> None:
    book = DailySpend(tmp_path / "state")
    book.add(NOON, 1.0, "a")
    assert book.path(NOON).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state").stat().st_mode & 0o077 == 0


def test_a_daemon_that_was_stopped_with_the_lock_in_its_hand_holds_up_no_other(tmp_path: Path) -> None:
    DailySpend(tmp_path).add(NOON, 1.0, "a")
    book = DailySpend(tmp_path, patience=0.02)
    with book.path(NOON).open("ab") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="is locked by another program"):
            book.add(NOON, 2.0, "b")
        assert book.spent(NOON) == 1.0
    book.add(NOON, 2.0, "b")
    assert book.spent(NOON) == 3.0


def test_what_a_full_disk_took_in_part_does_not_count_and_does_when_it_is_added_again(tmp_path: Path) -> None:
    book = DailySpend(tmp_path)
    book.add(NOON, 1.0, "a")
    size = book.path(NOON).stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        with pytest.raises(OSError, match="takes no more"):
            book.add(NOON, 2.0, "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert book.path(NOON).stat().st_size == size, "nothing of it is left"
    book.add(NOON, 2.0, "a")
    assert book.spent(NOON) == 3.0


def _spend(folder: Path) -> None:
    for _ in range(50):
        DailySpend(folder).add(NOON, 0.01, "x" * 400)


def test_daemons_that_write_at_the_same_time_lose_no_amount(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    daemons = [context.Process(target=_spend, args=(tmp_path,)) for _ in range(3)]
    for daemon in daemons:
        daemon.start()
    for daemon in daemons:
        daemon.join(60)
        assert daemon.exitcode == 0
    assert DailySpend(tmp_path).spent(NOON) == pytest.approx(1.5)
