"""Faults of the disk and of other programs are told apart from faults of the journal, and say how to fix them."""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from autoresearchd.domain.errors import ConfigError, EnvironmentFailure, StoreError
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema.database import Database, sqlite_url
from tests.contract.store_driver import AT, Driver, new_proposal, new_session


def test_commits_survive_a_power_cut_and_references_are_checked(lab: Driver) -> None:
    with lab.store._db.read() as c:
        found = {p: c.exec_driver_sql(f"PRAGMA {p}").scalar() for p in ("journal_mode", "synchronous", "foreign_keys")}
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_after_a_lazy_write_the_next_one_is_durable_again(lab: Driver) -> None:
    lab.store.heartbeat(lab.id, AT, 1.0)
    with pytest.raises(KeyError):
        lab.store.heartbeat(99, AT, 1.0)
    test_commits_survive_a_power_cut_and_references_are_checked(lab)


def test_a_database_held_by_another_program_is_a_fault_of_the_surroundings(lab: Driver, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(EnvironmentFailure, match="locked") as caught:
        lab.open()
    assert "another program" in caught.value.hint
    other.execute("ROLLBACK")
    other.close()
    assert lab.open().number == 0


def test_a_full_disk_is_a_fault_of_the_surroundings_and_loses_nothing(lab: Driver) -> None:
    e = lab.open()
    with lab.store._db.engine.connect() as c:
        pages = c.exec_driver_sql("PRAGMA page_count").scalar_one()
        c.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(EnvironmentFailure, match="full") as caught:
        lab.store.record_proposal(
            lab.id, e.number, new_proposal(), diff="".join(map(str, range(90_000))), code_hash="h"
        )
    assert "disk space" in caught.value.hint
    assert lab.store.experiment(lab.id, e.number) == e
    with lab.store._db.engine.connect() as c:
        c.exec_driver_sql("PRAGMA max_page_count = 1000000")
    lab.propose(e)


def test_a_read_only_database_is_a_fault_of_the_surroundings(lab: Driver) -> None:
    with lab.store._db.engine.connect() as c:
        c.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(EnvironmentFailure, match="readonly") as caught:
        lab.open()
    assert "writable" in caught.value.hint


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_surroundings(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match="unable to open"):
        SqlStore.open(sqlite_url(tmp_path / "file" / "state.db"))


def test_a_damaged_database_is_a_fault_of_the_store_and_names_the_backup(path: Path) -> None:
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreError, match="backup"):
        SqlStore.open(sqlite_url(path))


def test_a_fault_in_the_middle_of_a_step_leaves_nothing_of_it(lab: Driver, path: Path) -> None:
    e = lab.open()
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TRIGGER t BEFORE INSERT ON proposal_body BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(StoreError, match="no"):
        lab.propose(e)
    with db:
        db.execute("DROP TRIGGER t")
    db.close()
    assert lab.store.experiment(lab.id, e.number) == e
    assert lab.store.totals(lab.id).usd == 0.0


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "nonsense", "nosuchdb://host/x"])
def test_a_url_that_names_no_lasting_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Database(url)


def test_urls_are_shown_without_their_passwords() -> None:
    with pytest.raises(ConfigError) as caught:
        Database("nosuchdb://me:hunter2@host/db")
    assert "hunter2" not in str(caught.value)


def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    path = tmp_path / "q?mode=memory&x=%41 é#" / "state.db"
    with SqlStore.open(sqlite_url(path)) as store:
        store.create_session(new_session(), AT)
    assert path.is_file()


def test_a_time_without_a_zone_is_refused(lab: Driver) -> None:
    with pytest.raises(StoreError, match="time zone"):
        lab.store.add_note(lab.id, "x", datetime(2026, 1, 1))  # noqa: DTZ001


def test_threads_that_write_at_once_wait_for_each_other(path: Path) -> None:
    with SqlStore.open(sqlite_url(path)) as store:
        lab = Driver(store, store.create_session(new_session(), AT).id)
        barrier = threading.Barrier(4)

        def work(_: int) -> list[int]:
            barrier.wait()
            return [lab.open().number for _ in range(10)]

        with ThreadPoolExecutor(4) as pool:
            numbers = [n for found in pool.map(work, range(4)) for n in found]
    assert sorted(numbers) == list(range(40))


def test_controls_go_to_one_of_two_takers_only(path: Path) -> None:
    with SqlStore.open(sqlite_url(path)) as store:
        session_id = store.create_session(new_session(), AT).id
        for _ in range(20):
            store.add_control(session_id, "pause", AT)
        with ThreadPoolExecutor(4) as pool:
            taken = [c.id for found in pool.map(store.take_controls, [session_id] * 4) for c in found]
    assert len(taken) == len(set(taken)) == 20
