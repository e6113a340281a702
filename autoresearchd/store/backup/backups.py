"""Copies of the database, several generations of them: made whole, checked, brought to the disk, and only then kept.

Their names say when they were made (``20261121T135713Z.db``). The newest three are kept, and the newest of each of the
three hours and the seven days before, so that damage which is noticed late still finds a copy from before it, also
where a daemon is started again and again. Here, too: whether a file is still the journal of a session.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health

NEWEST = 3
HOURS = 3
DAYS = 7
OVERWRITTEN = (
    "end the daemons that use it, move {path} (with its -wal and -shm) elsewhere, and `autoresearchd doctor --repair` "
    "restores it from the newest backup and git"
)
_NAME = re.compile(r"(\d{8})T\d{6}(?:\d{6})?Z\.db")


def generations(folder: Path) -> list[Path]:
    """The backups of a folder, newest first; anything else in it is none of ours."""
    try:
        return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []


def make(copy: Callable[[Path], None], folder: Path, at: datetime) -> Path:
    """Take a backup, named after ``at`` (UTC), and drop old ones. StoreDamaged: it fails its check; none is dropped."""
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
        older = generations(folder)[NEWEST:]
        kept: set[Path] = set()
        for length, most in (len("20261121T13"), HOURS), (len("20261121"), DAYS):
            newest = {path.name[:length]: path for path in reversed(older)}  # of each hour or day
            kept |= set(sorted(newest.values(), reverse=True)[:most])
        for path in older:
            if path not in kept:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"no backup of the database can be made in {folder}: {error.strerror}",
            hint="free some disk space, or make the folder writable; it is tried again",
        ) from error
    finally:
        with suppress(OSError):
            unchecked.unlink(missing_ok=True)
    return target


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------- has somebody written over the journal?
@dataclass(frozen=True, slots=True)
class Mark:
    """What the journal must still tell: the session, and its newest experiment that was seen (−1: none yet)."""

    tag: str
    seed: int
    base_commit: str
    newest: int = -1


def traces(path: Path, mark: Mark) -> str:
    """In words, what shows that the file was written over; empty: nothing does.

    Connections that are open keep pages in memory and in the write-ahead log, and do not notice: the look is taken
    through a new one, and never by other means than SQLite, as closing the file would give up the locks that this
    process holds on it (https://www.sqlite.org/howtocorrupt.html, 2.2). Raises StoreError or sqlite3.OperationalError
    where it cannot be told now.
    """
    if path.stat().st_size < health.SHORTEST:
        return health.lack_of(path)
    found = health.quick_check(path)
    if found.faults:
        return f"is damaged: {found.faults[0]}"
    try:
        with SqlStore.open_readonly(path) as store:
            session = store.session(mark.tag)
            latest = store.latest(session.id)
    except KeyError:
        return f"does not know session {mark.tag}"
    except StoreDamaged as error:
        return f"is not a journal: {error.what}"
    if (session.seed, session.base_commit) != (mark.seed, mark.base_commit):
        return f"does not know session {mark.tag}"
    newest = -1 if latest is None else latest.number
    return f"ends with experiment {newest}, and had {mark.newest}" if newest < mark.newest else ""
