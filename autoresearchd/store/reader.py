"""A fast, read-only look at the journal for ``status`` and ``experiments``: plain ``sqlite3``, no SQLAlchemy.

Importing SQLAlchemy takes longer than these commands may. The names are those of ``tables.py``, and a test holds this
reader and the repository together. It works while the daemon writes, after it died, and on a read-only disk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from autoresearchd.errors import StoreDamaged
from autoresearchd.store import figures, lineage, session_status, transcripts
from autoresearchd.store.documents import (
    EXPERIMENTS,
    RUNS,
    experiment,
    moment,
    runs_by_experiment,
    task_facts,
)
from autoresearchd.store.health import MEND
from autoresearchd.store.inflate import UNREADABLE
from autoresearchd.store.readonly import explain, open_readonly, tuples

_LAST = 1 << 62


class SessionRow(NamedTuple):
    """A session in a line. state: as stored, so ``running`` may be a daemon that died."""

    id: int
    tag: str
    branch: str
    folder: str
    task: str
    policy: str
    state: str
    pid: int | None
    started_at: datetime


class Reader:
    """Reads a database file; each answer sees one instant of it.

    Raises StoreError when there is no database or it cannot be read, SchemaTooNew when a newer version wrote it.
    Unknown session or experiment: KeyError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = open_readonly(path)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def sessions(self) -> list[SessionRow]:
        """All sessions, oldest first."""
        with self._instant():
            return [
                SessionRow(
                    id=row["id"],
                    tag=row["tag"],
                    branch=row["branch"],
                    folder=row["folder"],
                    task=task_facts(row["task_json"])["name"],
                    policy=row["policy"],
                    state=row["state"],
                    pid=row["pid"],
                    started_at=moment(row["started_at"]),
                )
                for row in self._db.execute("SELECT * FROM session ORDER BY id")
            ]

    def status(self, tag: str, *, alive: bool | None = None, now: datetime | None = None) -> dict[str, Any]:
        """What ``status --json`` prints.

        Args:
            tag: the session.
            alive: whether a process holds the session; None: not known, the stored state is believed.
            now: the time, for how long the current phase has lasted.
        """
        with self._instant():
            session = self._session(tag)
            totals = self._one("SELECT * FROM totals WHERE session_id = ?", session["id"])
            return session_status.status(self._db, session, totals, alive=alive, now=now or datetime.now(UTC))

    def heartbeat(self, tag: str) -> datetime:
        """When a daemon of the session last wrote."""
        with self._instant():
            row = self._session(tag)
            return moment(row["heartbeat_at"] or row["started_at"])

    def experiments(
        self, tag: str, status: str | None = None, last: int | None = None, role: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """What ``experiments --json`` lists, oldest first; one that is not decided yet has status null.

        Args:
            tag: the session.
            status: only those with this status.
            last: only so many of the newest (of those with the status and the role).
            role: only those that this role proposed.
        """
        with self._instant():
            session_id = self._session(tag)["id"]
            first = self._first(session_id, status, last) if role is None else 0
            where = "e.session_id = ? AND e.number >= ? AND (? IS NULL OR e.status = ?) AND (? IS NULL OR p.role = ?)"
            found = tuples(
                self._db,
                f"{EXPERIMENTS} WHERE {where} ORDER BY e.number",
                session_id,
                first,
                status,
                status,
                role,
                role,
            ).fetchall()
            if role is not None and last is not None:
                found = found[max(0, len(found) - last) :]
            runs = self._runs(session_id, first)
            costs = transcripts.costs(self._db, session_id, first, _LAST)
        return self._each(found, runs, costs)

    def _each(
        self, found: list[tuple[Any, ...]], runs: dict[int, list[dict[str, Any]]], costs: dict[int, float | None]
    ) -> Iterator[dict[str, Any]]:
        with self._understood():
            for row in found:
                yield experiment(row, runs, costs)

    def show(self, tag: str, number: int, *, full: bool = False) -> dict[str, Any]:
        """One experiment as in ``experiments``, with its phase, reason, σ, diff, attempts and answers.

        full: the answers with their messages and completions.
        """
        with self._instant():
            session_id = self._session(tag)["id"]
            key = (session_id, number)
            row = tuples(self._db, f"{EXPERIMENTS} WHERE e.session_id = ? AND e.number = ?", *key).fetchone()
            if row is None:
                raise KeyError(f"session {tag!r} has no experiment {number}")
            more = self._one("SELECT * FROM experiment WHERE session_id = ? AND number = ?", *key)
            diff = self._db.execute(
                "SELECT diff FROM proposal_body WHERE session_id = ? AND number = ? AND attempt = ?",
                (*key, more["attempt"]),
            ).fetchone()
            return {
                **experiment(
                    row,
                    self._runs(session_id, number, number),
                    transcripts.costs(self._db, session_id, number, number),
                ),
                "phase": more["phase"],
                "segment": more["segment"],
                "reason": more["reason"] or "",
                "sigma": more["sigma"],
                "looks": self._looks(session_id, number),
                "attempts": transcripts.attempts(self._db, session_id, number),
                "answers": transcripts.answers(self._db, session_id, number, full=full),
                "diff": figures.unpack_text(diff["diff"]) if diff else "",
            }

    def versions(self) -> list[dict[str, Any]]:
        """Versions of the local policy as ``adapters list --json`` prints them, oldest first."""
        with self._instant():
            return lineage.versions(self._db)

    def _looks(self, session_id: int, number: int) -> list[dict[str, Any]]:
        """What early abort saw at each look at the experiment's runs."""
        found = self._db.execute(
            "SELECT details FROM look JOIN run ON run.id = look.run_id WHERE session_id = ? AND number = ? "
            "ORDER BY look.id",
            (session_id, number),
        )
        return [json.loads(row["details"] or "{}") for row in found]

    # -- queries
    def _session(self, tag: str) -> sqlite3.Row:
        row: sqlite3.Row | None = self._db.execute("SELECT * FROM session WHERE tag = ?", (tag,)).fetchone()
        if row is None:
            raise KeyError(f"no session {tag!r}")
        return row

    def _one(self, query: str, *values: Any) -> sqlite3.Row:
        row: sqlite3.Row | None = self._db.execute(query, values).fetchone()
        if row is None:
            raise StoreDamaged(f"{self._path} is damaged: no row for {query}", mend=MEND)
        return row

    def _first(self, session_id: int, status: str | None, last: int | None) -> int:
        """Number of the oldest experiment that ``last`` asks for."""
        if last is None:
            return 0
        if last <= 0:
            return _LAST
        row = self._db.execute(
            "SELECT min(number) FROM (SELECT number FROM experiment WHERE session_id = ? AND (? IS NULL OR status = ?) "
            "ORDER BY number DESC LIMIT ?)",
            (session_id, status, status, last),
        ).fetchone()
        return row[0] or 0

    def _runs(self, session_id: int, first: int, final: int = _LAST) -> dict[int, list[dict[str, Any]]]:
        query = f"{RUNS} WHERE session_id = ? AND number BETWEEN ? AND ? ORDER BY number, run_index"
        return runs_by_experiment(tuples(self._db, query, session_id, first, final))

    # -- the connection
    @contextmanager
    def _instant(self) -> Iterator[None]:
        try:
            self._db.execute("BEGIN")
            try:
                with self._understood():
                    yield
            finally:
                self._db.rollback()
        except sqlite3.Error as error:
            raise explain(self._path, error) from error

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """A value that was not written like that has been changed on the disk, which SQLite does not notice."""
        try:
            yield
        except UNREADABLE as error:
            raise StoreDamaged(f"{self._path} holds a value that cannot be read: {error}", mend=MEND) from error
