"""What happens beside the loop never ends a session."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Self

import pytest
from apscheduler.schedulers import base

from autoresearchd.domain.errors import StoreDamaged
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import EventKind, RunRequest
from autoresearchd.loop.session import Backoff
from autoresearchd.loop.upkeep import housekeeping as housekeeping_module
from autoresearchd.loop.upkeep.housekeeping import Housekeeping, say_that_it_stops
from autoresearchd.store import backups
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema.database import sqlite_url
from tests.fakes.executors import Script
from tests.integration.bench import Bench, job


def test_a_backup_that_takes_long_holds_no_request_and_no_heartbeat_up_and_is_finished_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, begun, released = Bench(tmp_path), threading.Event(), threading.Event()
    lab, copy = bench.laboratory(), bench.store.backup

    def slow(path: Path) -> None:
        begun.set()
        assert released.wait(30)
        copy(path)

    monkeypatch.setattr(bench.store, "backup", slow)
    with Housekeeping(lab, lambda: 0.0, tmp_path / "backups") as housekeeping:
        assert begun.wait(30)
        housekeeping._beat()
        bench.store.add_control(lab.session_id, "stop", datetime.now(UTC))
        assert lab.stop.wait(30)
        released.set()
    bench.close()
    assert len(backups.generations(tmp_path / "backups")) == 2


@pytest.mark.parametrize("hours", [-2.0, 24.0 * 365])
def test_requests_are_obeyed_when_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float
) -> None:
    """Else `stop` and the heartbeat stand still until it is as late as before; or each look missed is listed."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(hours=shift[0])

    shift, looked, bench = [0.0], threading.Semaphore(0), Bench(tmp_path)
    for module in (base, housekeeping_module):
        monkeypatch.setattr(module, "datetime", Clock)
    monkeypatch.setattr(housekeeping_module, "REQUESTS_S", 0.01)
    monkeypatch.setattr(bench.store, "take_controls", lambda session: looked.release() or [])
    with Housekeeping(bench.laboratory(), lambda: 0.0, None):
        assert looked.acquire(timeout=10)
        shift[0] = hours
        assert all(looked.acquire(timeout=10) for _ in range(9))
    bench.close()


def test_a_bug_in_one_look_is_told_once_and_others_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a session could not be stopped any more, and nobody would know why."""

    def broken(session: int) -> list[str]:
        looked.release()
        raise ZeroDivisionError("a bug")

    looked, bench = threading.Semaphore(0), Bench(tmp_path)
    monkeypatch.setattr(housekeeping_module, "REQUESTS_S", 0.01)
    monkeypatch.setattr(bench.store, "take_controls", broken)
    with Housekeeping(bench.laboratory(), lambda: 0.0, None):
        assert all(looked.acquire(timeout=30) for _ in range(3))
    [fault] = [event for event in bench.events.events if event.kind is EventKind.FAULT]
    assert "a bug" in fault.message and "ZeroDivisionError" in fault.data["traceback"]
    bench.close()


def test_a_first_stop_after_the_database_was_lost_still_lets_the_running_experiment_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    lab, database = bench.laboratory(), bench.state / "state.db"
    with (
        pytest.raises(StoreDamaged, match="was moved, deleted or replaced"),
        Housekeeping(lab, lambda: 0.0, tmp_path / "backups", database) as housekeeping,
    ):
        database.rename(tmp_path / "elsewhere.db")
        housekeeping.watch_database()
        assert lab.stop.is_set()
        say_that_it_stops(lab, None)
        (said,) = [event.message for event in bench.events.events if event.kind is EventKind.STOPPING]
        assert "ask again" not in said, "nobody has asked yet"
        assert "stop --now" in said
        lab.stop.request("signal SIGTERM")
        assert not lab.stop.now.is_set()
        lab.stop.request("signal SIGTERM")
        assert lab.stop.now.is_set()
    bench.close()


def test_a_user_who_stops_is_told_of_the_confirmation_that_is_waited_for(tmp_path: Path) -> None:
    """It may take an hour, which a bare "stopping" does not tell."""
    bench = Bench(tmp_path)
    bench.run(1)
    lab, now = bench.laboratory(), datetime.now(UTC)
    bench.store.open_confirmation(lab.session_id, experiment=1, against=0, why="gain", at=now)
    bench.store.add_control(lab.session_id, "stop", now)
    Housekeeping(lab, lambda: 0.0, tmp_path / "backups")._obey()
    (said,) = [event.message for event in bench.events.events if event.kind is EventKind.STOPPING]
    assert said.startswith("stopping once experiment 1 is confirmed, or is not;")
    bench.close()


def write_over(database: Path, how: str, aside: Path) -> None:
    """As ``cp`` and ``truncate`` do: the file stays the same one."""
    text = {"truncated": lambda: database.read_bytes()[:9000], "emptied": lambda: b"", "noise": lambda: b"x" * 40960}
    content = text[how]() if how in text else (aside / how).read_bytes()
    with database.open("r+b") as file:
        file.truncate(0)
        file.write(content)


@pytest.mark.parametrize("how", ["stranger", "older", "truncated", "emptied", "noise"])
def test_a_database_that_was_written_over_ends_the_session(tmp_path: Path, how: str) -> None:
    bench, other = Bench(tmp_path / "own"), Bench(tmp_path / "other", program="SCALE = 3.0\n")
    lab, database, now = bench.laboratory(), bench.state / "state.db", datetime.now(UTC)
    other.store.backup(tmp_path / "stranger")
    bench.store.backup(tmp_path / "older")
    before: list[Path] = []
    with (
        pytest.raises(StoreDamaged, match=r"was written over while the session used it: it (is|does|ends)") as raised,
        Housekeeping(lab, lambda: 0.0, tmp_path / "backups", database, bench.store.refuse) as housekeeping,
    ):
        while not backups.generations(tmp_path / "backups"):  # the one of the start is made beside
            threading.Event().wait(0.01)
        bench.store.open_experiment(lab.session_id, parent=bench.session.base_commit, segment=1, at=now)
        housekeeping.between(lambda: False)
        with closing(sqlite3.connect(database)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        housekeeping.between(lambda: False)  # a checkpoint is no stranger's work
        housekeeping._copy()
        before = backups.generations(tmp_path / "backups")
        write_over(database, how, tmp_path)
        housekeeping.watch_database()
        assert lab.stop.is_set()
        with pytest.raises(StoreDamaged):
            bench.store.heartbeat(lab.session_id, now, 1.0)
        housekeeping.between(lambda: False)
    assert "doctor --repair" in raised.value.hint
    assert backups.generations(tmp_path / "backups") == before
    bench.close()
    other.close()


def test_a_run_that_ends_while_the_database_is_locked_is_written_down_when_it_is_free(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.store.close()
    bench.store = SqlStore.open(sqlite_url(bench.state / "state.db"), busy_timeout=0.05)
    with closing(sqlite3.connect(bench.state / "state.db", isolation_level=None, check_same_thread=False)) as other:
        refused = threading.Event()

        def locking(request: RunRequest) -> Script | str:
            if request.key == "t/1/0" and not other.in_transaction:
                other.execute("BEGIN IMMEDIATE")
            return job(request)

        class Freeing(Backoff):
            def seconds(self, failures: int) -> float:
                if other.in_transaction and failures >= 2:
                    refused.set()
                    other.execute("ROLLBACK")
                return 0.0

        bench.job = locking
        bench.loop(2, backoff=Freeing()).run()
    assert refused.is_set(), "the lock was met twice"
    first = bench.experiment(1)
    assert [run.label for run in first.runs] == [Label.NONE], "measured once, and not again"
    assert any("locked" in event.message for event in bench.events.events)
    bench.close()
