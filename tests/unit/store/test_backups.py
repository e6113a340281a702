"""Backups are whole or not there, several generations are kept, and one of a damaged database replaces none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged
from autoresearchd.store import backups
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health
from autoresearchd.store.schema.database import sqlite_url
from tests.contract.store_driver import AT, Driver


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


def test_a_daemon_that_is_started_again_and_again_does_not_push_out_the_copies_of_the_hours_before(
    lab: Driver, tmp_path: Path
) -> None:
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


def test_a_folder_that_cannot_be_made_is_a_fault_of_the_surroundings(lab: Driver, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match="backup"):
        backups.make(lab.store.backup, tmp_path / "file" / "backups", AT)


def test_a_check_that_takes_too_long_is_ended_and_says_so(lab: Driver, path: Path) -> None:
    for _ in range(300):
        lab.propose(lab.open())
    assert health.quick_check(path) == health.Health(())
    assert not health.quick_check(path, seconds=-1.0).complete
