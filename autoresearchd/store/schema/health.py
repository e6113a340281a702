"""Whether a database file can be trusted: SQLite's own checks (https://www.sqlite.org/pragma.html#pragma_quick_check)."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, SchemaTooNew

HEAD_REVISION = "0009"
"""The newest file in ``migrations/versions``, with which this version works (a test holds the two together)."""

HINT = "autoresearchd doctor --repair rebuilds it from the newest good backup and git"
QUICK_SECONDS = 1.0
SHORTEST = 512
"""Bytes of the smallest database that SQLite makes; it takes a shorter file for one that has yet to be made."""

_AWAY = (
    "SQLITE_CANTOPEN",
    "SQLITE_IOERR",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_FULL",
    "SQLITE_NOMEM",
    "SQLITE_PERM",
)
"""Codes that say nothing of what is in a file."""
_MOST_FAULTS = 20
_STEPS = 20_000
"""Instructions of SQLite's machine between two looks at the clock: well under a millisecond."""


def too_new(where: str, revision: str) -> SchemaTooNew:
    """The error for a database whose revision this version has never heard of."""
    return SchemaTooNew(
        f"{where} is at revision {revision}, this version of autoresearchd knows revisions up to {HEAD_REVISION}: "
        "a newer version wrote it",
        hint="pip install --upgrade autoresearchd",
    )


def has_content(path: Path) -> bool:
    """Whether there is a database to speak of, in the file or still in its write-ahead log."""
    wal = path.with_name(path.name + "-wal")
    return path.is_file() and (path.stat().st_size >= SHORTEST or (wal.is_file() and wal.stat().st_size > 0))


def lack_of(path: Path) -> str:
    """In words, why there is no content in a file that is none."""
    size = path.stat().st_size if path.is_file() else None
    return "is gone" if size is None else f"is no database: {size} bytes" if size else "is empty"


def older_revision(path: Path) -> str:
    """The revision of a database that an older version wrote, and ``upgrade`` would change; empty for any other."""
    if not has_content(path):
        return ""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)) as db:
            row = db.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return ""  # what is wrong with it is said by whoever opens it
    found = str(row[0]) if row else ""
    return found if found < HEAD_REVISION else ""


def quick_check(path: Path, seconds: float = QUICK_SECONDS) -> list[str] | None:
    """Faults of the whole file, WAL included; None: the time was up. sqlite3.OperationalError: it cannot be opened."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=5.0)) as db:
        end = time.monotonic() + seconds
        db.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            found = [str(row[0]) for row in db.execute(f"PRAGMA quick_check({_MOST_FAULTS})")]
        except sqlite3.DatabaseError as error:
            if _named(error, "SQLITE_INTERRUPT"):
                return None
            if is_damage(error):
                return [str(error)]
            raise
    return [text for text in found if text != "ok"]


def faults(path: Path) -> list[str]:
    """All that is wrong with a database file that nobody writes to, however long that takes; empty: it can be used.

    EnvironmentFailure: it cannot be told, as the file cannot be read now.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5.0)) as db:
            found = [str(r[0]) for r in db.execute(f"PRAGMA integrity_check({_MOST_FAULTS})") if r[0] != "ok"]
            found += [f"{r[0]} row {r[1]} refers to a missing {r[2]}" for r in db.execute("PRAGMA foreign_key_check")]
            revision = db.execute("SELECT version_num FROM alembic_version").fetchone()
            db.execute("SELECT id, tag FROM session").fetchall()
    except sqlite3.Error as error:
        if _named(error, *_AWAY):
            raise unchecked(path, error) from error
        return [str(error)]
    if revision is None or not isinstance(revision[0], str) or revision[0] > HEAD_REVISION:
        found.append(f"revision {revision[0] if revision else 'none'} is not known here")
    return found


def unchecked(path: Path, error: sqlite3.Error) -> EnvironmentFailure:
    """The error for a file that nothing can be said of: it may be sound."""
    return EnvironmentFailure(
        f"the database {path} cannot be checked: {error}",
        hint="another program may hold it: end it, or wait; make sure that this user may write to it, and look for "
        "faults of the disk (dmesg)",
    )


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error of SQLite says that the file is damaged, rather than that it cannot be reached now."""
    return _named(error, "SQLITE_CORRUPT", "SQLITE_NOTADB") or "malformed" in str(error)


def _named(error: sqlite3.Error, *names: str) -> bool:
    return str(getattr(error, "sqlite_errorname", "")).startswith(names)
