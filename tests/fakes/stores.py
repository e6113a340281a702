"""New journals in a tenth of their time: to make the tables by all migrations is most of it."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema.database import sqlite_url


@cache
def _empty() -> bytes:
    """A database without rows, made once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.db")
        SqlStore.open(sqlite_url(path)).close()
        return path.read_bytes()


def open_store(path: Path, **options: Any) -> SqlStore:
    """The store of a file, as `SqlStore.open` gives it; a new one is a copy."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_empty())
    return SqlStore.open(sqlite_url(path), **options)
