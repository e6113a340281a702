"""Whether somebody has written over the journal's file, which stays the same file then, while a session writes to it.

Connections that are open keep pages in memory and in the write-ahead log, and do not notice. So a look is taken through
a connection of its own, and only where the file has changed: SQLite itself changes it at a checkpoint only.

The file is never opened by other means than SQLite: closing it would give up the locks that this process holds on it
(https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoresearchd.domain.errors import StoreDamaged
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health

HINT = (
    "end the daemons that use it, move {path} (with its -wal and -shm) elsewhere, and `autoresearchd doctor --repair` "
    "restores it from the newest backup and git"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What the journal must still tell: the session, and its newest experiment that was seen (−1: none yet)."""

    tag: str
    seed: int
    base_commit: str
    newest: int = -1


def stamp(path: Path) -> tuple[int, int]:
    """What changes whenever somebody writes into a file. Raises OSError."""
    facts = path.stat()
    return facts.st_ctime_ns, facts.st_size


def traces(path: Path, mark: Mark) -> str:
    """In words, what shows that the file was written over; empty: nothing does.

    Raises StoreError or sqlite3.OperationalError where it cannot be told now.
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
    newest = None if latest is None else latest.number
    if mark.newest >= 0 and (newest is None or newest < mark.newest):
        return f"ends with experiment {'none' if newest is None else newest}, and had {mark.newest}"
    return ""
