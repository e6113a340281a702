"""Copies of the database, several generations of them: made whole, checked, brought to the disk, and only then kept.

Their names say when they were made (``20261121T135713Z.db``). The newest three are kept, and the newest of each of the
seven days before, so that damage which is noticed late still finds a copy from before it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged, StoreError
from autoresearchd.domain.experiment import Limits
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health

NEWEST = 3
DAYS = 7
_NAME = re.compile(r"(\d{8})T\d{6}(?:\d{6})?Z\.db")


def generations(folder: Path) -> list[Path]:
    """The backups of a folder, newest first; anything else in it is none of ours."""
    try:
        return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []


def make(copy: Callable[[Path], None], folder: Path, at: datetime) -> Path:
    """Take a backup and drop those that have had their time; the new one.

    Args:
        copy: writes a consistent copy of the database to a path (``Store.backup``).
        folder: where backups lie; made when it is missing.
        at: the time that the new one is named after, UTC.

    Raises:
        StoreDamaged: the copy fails its check, so the database is damaged; older backups are left alone.
    """
    target = folder / f"{at:%Y%m%dT%H%M%S%f}Z.db"
    unchecked = target.with_suffix(".unchecked")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*.unchecked*"):  # by a daemon that died while it copied
            left.unlink(missing_ok=True)
        copy(unchecked)
        found = health.faults(unchecked)
        if found:
            raise StoreDamaged(f"a backup of the database fails its check: {found[0]}", hint=health.HINT)
        sync(unchecked)
        unchecked.replace(target)
        sync(folder)
        for old in superseded(generations(folder)):
            old.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"no backup of the database can be made in {folder}: {error.strerror}",
            hint="free some disk space, or make the folder writable; it is tried again",
        ) from error
    finally:
        if folder.is_dir():
            unchecked.unlink(missing_ok=True)
    return target


def knows(backup: Path, tag: str, seed: int, limits: Limits) -> bool:
    """Whether a backup holds a session with the limits that it has now."""
    try:
        with SqlStore.open_readonly(backup) as store:
            session = store.session(tag)
    except (StoreError, KeyError):
        return False
    return (session.seed, session.limits) == (seed, limits)


def superseded(found: Sequence[Path]) -> list[Path]:
    """Which of the backups (newest first) are not kept."""
    days: set[str] = set()
    kept = set(found[:NEWEST])
    for path in found[NEWEST:]:
        day = path.name[:8]
        if day not in days and len(days) < DAYS:
            days.add(day)
            kept.add(path)
    return [path for path in found if path not in kept]


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
