"""Opening the journal for reading with ``sqlite3``: while the daemon writes, after it died, on a read-only disk."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from autoresearchd.errors import StoreDamaged, StoreError
from autoresearchd.store.health import MEND, has_content, is_damage, lack_of
from autoresearchd.store.revision import HEAD_REVISION, too_new


def open_readonly(path: Path, *, threads: bool = False) -> sqlite3.Connection:
    """Open the journal for reading; StoreError with what is wrong, SchemaTooNew when a newer version wrote it.

    Args:
        path: the database file.
        threads: whether another thread than this one may use the connection.
    """
    if not path.is_file():
        raise StoreError(f"there is no database at {path}", mend="autoresearchd start begins a session")
    if not has_content(path):
        raise StoreDamaged(f"{path} {lack_of(path)}", mend=MEND)
    uri = path.resolve().as_uri()
    try:
        try:
            return _connect(path, f"{uri}?mode=ro", threads)
        except sqlite3.OperationalError:
            # On a read-only disk SQLite cannot make the index of the WAL. Without a WAL, all is in the file itself.
            if path.with_name(path.name + "-wal").exists():
                raise
            return _connect(path, f"{uri}?mode=ro&immutable=1", threads)
    except sqlite3.Error as error:
        raise explain(path, error) from error


def _connect(path: Path, uri: str, threads: bool) -> sqlite3.Connection:
    db = sqlite3.connect(uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=not threads)
    try:
        db.row_factory = sqlite3.Row
        _check_revision(path, db)
    except BaseException:
        db.close()
        raise
    return db


def _check_revision(path: Path, db: sqlite3.Connection) -> None:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone() is None:
        if db.execute("SELECT 1 FROM sqlite_master").fetchone() is None:  # a start was killed while it made it
            raise StoreError(f"{path} holds nothing yet", mend="autoresearchd start begins a session in it")
        raise StoreError(f"{path} is no database of autoresearchd", mend="autoresearchd start makes one")
    row = db.execute("SELECT version_num FROM alembic_version").fetchone()
    found = row[0] if row else ""
    if found == HEAD_REVISION:
        return
    # Revisions are numbered, so that this module knows the direction without reading the migrations.
    if found and found < HEAD_REVISION:
        raise StoreError(
            f"{path} was written by an older version (revision {found}, this one reads {HEAD_REVISION})",
            mend="autoresearchd resume in its repository upgrades it, after a backup",
        )
    raise too_new(str(path), found or "none")


def tuples(db: sqlite3.Connection, query: str, *values: Any) -> sqlite3.Cursor:
    """The rows of a query as plain tuples, which cost less where there are many."""
    cursor = db.cursor()
    cursor.row_factory = None
    return cursor.execute(query, values)


def explain(path: Path, error: sqlite3.Error) -> StoreError:
    """What an error of SQLite means for a user, and how to mend it."""
    what = f"{path} cannot be read: {error}"
    if is_damage(error) or "decode to UTF-8" in str(error):
        return StoreDamaged(what, mend=MEND)
    if "locked" in str(error):
        return StoreError(what, mend="another program holds the database: end it, or wait")
    if isinstance(error, sqlite3.OperationalError) and "no such" in str(error):
        return StoreDamaged(what, mend=MEND)
    return StoreError(what, mend="make sure that this user may read the file and its folder")
