"""Sessions of a bench, opened for judging, and trajectories that are enough to find their states again."""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from alembic import command

from autoresearchd.domain.labels import Label
from autoresearchd.learner.data.read_sessions import ReadSession
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.gate.held_out_states import HeldOut
from autoresearchd.learner.gate.held_out_states import opened as open_sessions
from autoresearchd.resources import bundled
from autoresearchd.store.schema.database import Database, alembic_config, sqlite_url
from tests.integration.bench import Bench


def opened(bench: Bench) -> AbstractContextManager[HeldOut]:
    """The session of a bench, for judging."""
    return open_sessions([session("t", bench.root)], ["t"], bench.store)


def session(name: str, root: Path, tag: str = "t", *, foreign: bool = False) -> ReadSession:
    return ReadSession(name, root, tag, "scripted", None, 3, 3, foreign)


def older(database: Path) -> bytes:
    """Make a database one of an older version, as a backup leaves it: without a WAL; what is then in the file."""
    store = Database(sqlite_url(database))
    config = alembic_config(bundled("migrations"))
    with store.write() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "-1")
    store.close()
    return without_wal(database)


def without_wal(database: Path) -> bytes:
    """Put a database as a backup leaves it; what is then in the file."""
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode=DELETE")
    return database.read_bytes()


def trajectory(number: int, session: str = "t", **changed: Any) -> Trajectory:
    """An answer that was given for experiment ``number``."""
    given: dict[str, Any] = {
        "session": session,
        "number": number,
        "attempt": 0,
        "group": f"{session}/{number}",
        "state_id": f"{session}/{number}",
        "at": datetime(2026, 11, 1, tzinfo=UTC) + timedelta(minutes=number),
        "policy_version": "",
        "messages": ({"role": "user", "content": f"Propose experiment {number}."},),
        "completion": "x",
        "token_ids": None,
        "logprobs": None,
        "reward": 0.0,
        "censored": False,
        "label": Label.NO_GAIN,
        "feedback": "",
    }
    return Trajectory(**(given | changed))


def block(search: str, replace: str, path: str = "train.py") -> str:
    return f"Try this.\n\n{path}\n```python\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```\n"
