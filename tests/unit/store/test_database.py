"""Faults of the disk are told apart from faults of the journal and say how to fix them; backups are made whole."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged, StoreError
from autoresearchd.store import backups
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health
from autoresearchd.store.schema.database import sqlite_url
from tests.unit.store.driver import AT, Driver, execute, new_proposal, new_session, opened_at_once

BOTH = False
"""All of it is about files."""


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


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_surroundings(lab: Driver, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match="unable to open"):
        SqlStore.open(sqlite_url(tmp_path / "file" / "state.db"))
    with pytest.raises(EnvironmentFailure, match="backup"):
        backups.make(lab.store.backup, tmp_path / "file" / "backups", AT)


def test_a_fault_in_the_middle_of_a_step_leaves_nothing_of_it(lab: Driver, path: Path) -> None:
    e = lab.open()
    execute(path, "CREATE TRIGGER t BEFORE INSERT ON proposal_body BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(StoreError, match="no"):
        lab.propose(e)
    execute(path, "DROP TRIGGER t")
    assert lab.store.experiment(lab.id, e.number) == e
    assert lab.store.totals(lab.id).usd == 0.0


def test_threads_that_write_at_once_wait_for_each_other(path: Path) -> None:
    with SqlStore.open(sqlite_url(path)) as store:
        lab = Driver(store, store.create_session(new_session(), AT).id)
        assert opened_at_once(lambda _: lab.open().number) == list(range(40))


def test_a_backup_can_be_opened_and_holds_everything(lab: Driver, tmp_path: Path) -> None:
    lab.open()
    made = backups.make(lab.store.backup, tmp_path / "backups", AT)
    assert health.faults(made) == []
    with SqlStore.open(sqlite_url(made)) as copy:
        assert copy.latest(lab.id) == lab.store.latest(lab.id)
    assert backups.generations(tmp_path / "backups") == [made]


def test_three_newest_and_one_of_each_of_three_hours_and_seven_days_are_kept(lab: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    for hour in range(0, 24 * 12, 6):
        backups.make(lab.store.backup, folder, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour))
    names = [path.name[:11] for path in backups.generations(folder)]
    assert names[:3] == ["20260112T18", "20260112T12", "20260112T06"]
    assert [name[6:8] for name in names[3:]] == ["12", "11", "11", "10", "09", "08", "07", "06"]


def test_many_starts_do_not_push_out_the_copies_of_the_hours_before(lab: Driver, tmp_path: Path) -> None:
    folder, noon = tmp_path / "backups", datetime(2026, 1, 1, 12, tzinfo=UTC)
    for minutes in (0, 60, *range(120, 130)):
        backups.make(lab.store.backup, folder, noon + timedelta(minutes=minutes))
    names = [path.name[9:13] for path in backups.generations(folder)]
    assert names == ["1409", "1408", "1407", "1406", "1300", "1200"]


def test_a_damaged_database_gives_no_backup_and_costs_none(lab: Driver, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    good = backups.make(lab.store.backup, folder, AT)

    def damaged(target: Path) -> None:
        lab.store.backup(target)
        target.write_bytes(target.read_bytes()[:8192])

    with pytest.raises(StoreDamaged, match="backup"):
        backups.make(damaged, folder, AT + timedelta(hours=1))
    assert [path.name for path in folder.iterdir()] == [good.name]


def test_a_daemon_does_not_take_the_copy_that_another_one_checks(
    lab: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions of a repository share the folder: what one lost for it was its whole session, as damaged."""
    folder, refused = tmp_path / "backups", list[str]()
    monkeypatch.setattr(backups, "_PATIENCE_S", 0.0)

    def slow(target: Path) -> None:
        lab.store.backup(target)
        with pytest.raises(EnvironmentFailure, match="another daemon") as caught:
            backups.make(lab.store.backup, folder, AT + timedelta(seconds=1))
        refused.append(caught.value.what)

    made = backups.make(slow, folder, AT)
    assert refused
    assert backups.generations(folder) == [made]
    assert backups.make(lab.store.backup, folder, AT + timedelta(seconds=2)).exists()


def test_a_copy_that_cannot_be_read_now_is_no_damage(lab: Driver, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match="unable to open"):
        backups.make(lambda target: None, tmp_path / "backups", AT)


def test_a_check_that_takes_too_long_is_ended_and_says_so(lab: Driver, path: Path) -> None:
    for _ in range(300):
        lab.propose(lab.open())
    assert health.quick_check(path) == []
    assert health.quick_check(path, seconds=-1.0) is None
