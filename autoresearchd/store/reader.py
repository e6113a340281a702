"""A fast, read-only look at the journal for ``status`` and ``experiments``: plain ``sqlite3``, no SQLAlchemy.

Importing SQLAlchemy takes longer than these commands may. The names are those of ``tables.py``, and a test holds this
reader and the repository together. It works while the daemon writes, after it died, and on a read-only disk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from autoresearchd.domain.limits import limit_reached
from autoresearchd.errors import StoreDamaged
from autoresearchd.store import figures, lineage, transcripts
from autoresearchd.store.documents import (
    EXPERIMENTS,
    ROLES,
    RUNS,
    experiment,
    iso,
    micros,
    moment,
    role_facts,
    runs_by_experiment,
    task_facts,
)
from autoresearchd.store.health import MEND
from autoresearchd.store.inflate import UNREADABLE
from autoresearchd.store.readonly import explain, open_readonly

_ALIVE_STATES = ("running", "paused", "backing_off")
_OVERHEADS = 1000
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
            task = task_facts(session["task_json"])
            totals = self._one("SELECT * FROM totals WHERE session_id = ?", session["id"])
            state = session["state"]
            if alive is False and state in _ALIVE_STATES:
                state = "crashed"
            metric, current = self._metric_block(session, task), self._current_block(session, task, state, now)
            return {
                "session": self._session_block(session, totals, task, state, metric["baseline"] is not None),
                "metric": metric,
                "current": current,
                "abort": self._abort_block(session["id"], totals["aborted"]),
                "cost": {name: totals[name] for name in ("usd", "tokens_in", "tokens_out", "gpu_s")},
                "overhead": self._overhead_block(session["id"]),
                "policy": {"name": session["policy"], "adapter": self._adapter(session["id"])},
                "roles": self._roles_block(session["id"]),
            }

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
            found = self._tuples(
                f"{EXPERIMENTS} WHERE {where} ORDER BY e.number", session_id, first, status, status, role, role
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
        """One experiment as in ``experiments``, with ``phase``, ``reason``, ``diff``, its ``attempts`` and ``answers``.

        full: the answers with their messages and completions.
        """
        with self._instant():
            session_id = self._session(tag)["id"]
            key = (session_id, number)
            row = self._tuples(f"{EXPERIMENTS} WHERE e.session_id = ? AND e.number = ?", *key).fetchone()
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

    # -- blocks of the status
    def _session_block(
        self, session: sqlite3.Row, totals: sqlite3.Row, task: Mapping[str, Any], state: str, measured: bool
    ) -> dict[str, Any]:
        """The session with its counts; baselines, one for each segment, are not counted (``measured``: the latest is).

        ``extend``: the option by which ``resume`` goes on beyond the limit that the session has reached.
        """
        segments = self._db.execute("SELECT count(*) FROM segment WHERE session_id = ?", (session["id"],)).fetchone()[0]
        baselines = segments if measured else max(0, segments - 1)
        tried = max(0, totals["experiments"] - baselines)
        block = {
            "tag": session["tag"],
            "task": task["name"],
            "branch": session["branch"],
            "state": state,
            "pid": session["pid"] if state in _ALIVE_STATES else None,
            "started_at": iso(session["started_at"]),
            "experiments": tried,
            "keeps": max(0, totals["keeps"] - baselines),
            "discards": totals["discards"],
            "crashes": totals["crashes"],
            "checks_failed": totals["checks_failed"],
        }
        over = state == "crashed" and session["state"] == "running"  # what a daemon at work waited for has died with it
        if (state == "backing_off" or session["reason"]) and not over:
            block["reason"] = session["reason"]
        reached = limit_reached(
            max_experiments=session["max_experiments"],
            max_seconds=session["max_seconds"],
            max_usd=session["max_usd"],
            experiments=tried,
            seconds=session["active_seconds"],
            usd=totals["usd"],
        )
        if state == "stopped" and measured and reached is not None:
            block["extend"] = reached.more
        return block

    def _metric_block(self, session: sqlite3.Row, task: Mapping[str, Any]) -> dict[str, Any]:
        """Baseline, best and noise of the current segment: results of another one cannot be compared with them."""
        session_id = session["id"]
        segment = self._db.execute(
            "SELECT s.number, COALESCE((SELECT MIN(e.number) FROM experiment e WHERE e.session_id = s.session_id "
            "AND e.segment = s.number AND e.status = 'keep' AND e.number >= s.first), s.first) AS first "
            "FROM segment s WHERE s.session_id = ? ORDER BY s.number DESC LIMIT 1",
            (session_id,),
        ).fetchone()
        number, first = (segment["number"], segment["first"]) if segment else (0, 0)
        baseline = self._kept_value(session_id, first)
        holder = max(session["incumbent_experiment"], first)
        best = self._kept_value(session_id, holder)
        values = self._db.execute(
            "SELECT value FROM experiment WHERE session_id = ? AND segment = ? AND value IS NOT NULL",
            (session_id, number),
        )
        return {
            "name": task["metric"],
            "direction": task["direction"],
            "baseline": baseline,
            "best": best,
            "best_experiment": holder if best is not None else None,
            "improvement_pct": figures.improvement_pct(best, baseline, task["direction"]),
            "sigma": self._sigma(session_id, first) if baseline is not None else None,
            "confidence": figures.mad_confidence(best, baseline, [row[0] for row in values]),
            "source": task["source"],
        }

    def _kept_value(self, session_id: int, number: int) -> float | None:
        row = self._db.execute(
            "SELECT value FROM experiment WHERE session_id = ? AND number = ? AND status = 'keep'", (session_id, number)
        ).fetchone()
        return row["value"] if row else None

    def _sigma(self, session_id: int, baseline: int) -> float | None:
        """As the latest decision of the segment knew it, pooled over all repeats."""
        latest = self._db.execute(
            "SELECT sigma FROM experiment WHERE session_id = ? AND number >= ? AND sigma IS NOT NULL "
            "ORDER BY number DESC LIMIT 1",
            (session_id, baseline),
        ).fetchone()
        if latest is not None:
            return float(latest["sigma"])
        runs = self._db.execute(
            "SELECT value FROM run WHERE session_id = ? AND number = ? AND label = '' AND finished_at IS NOT NULL "
            "AND value IS NOT NULL",
            (session_id, baseline),
        )
        return figures.deviation([row["value"] for row in runs])

    def _current_block(
        self, session: sqlite3.Row, task: Mapping[str, Any], state: str, now: datetime | None
    ) -> dict[str, Any] | None:
        """The experiment under way; of a daemon that died, the one it died in."""
        row = self._db.execute(
            "SELECT number, phase, started_at, overhead_ms FROM experiment WHERE session_id = ? "
            "ORDER BY number DESC LIMIT 1",
            (session["id"],),
        ).fetchone()
        settled = row is None or (row["phase"] == "decided" and (row["overhead_ms"] is not None or state == "crashed"))
        if settled or state == "stopped":
            return None
        since, look = row["started_at"], None
        if row["phase"] == "running":
            run = self._db.execute(
                "SELECT id, max(started_at) AS started_at FROM run WHERE session_id = ? AND number = ?",
                (session["id"], row["number"]),
            ).fetchone()
            since = run["started_at"] or since
            look = self._db.execute(
                "SELECT forecast, probability FROM look WHERE run_id = ? ORDER BY id DESC LIMIT 1", (run["id"],)
            ).fetchone()
        until = micros(now or datetime.now(UTC))
        if state == "crashed":
            until = session["heartbeat_at"] or since
        return {
            "experiment": row["number"],
            "phase": row["phase"],
            "elapsed_s": round(max(0.0, (until - since) / 1e6), 3),
            "budget_s": task["budget"] if row["phase"] == "running" else None,
            "forecast": look["forecast"] if look else None,
            "abort_probability": look["probability"] if look else None,
        }

    def _abort_block(self, session_id: int, aborted: int) -> dict[str, Any]:
        """Early abort; rates are of the latest segment. false_abort_limit: upper 95% limit of the rate."""
        row = self._db.execute("SELECT figures FROM abort_memory WHERE session_id = ?", (session_id,)).fetchone()
        known = json.loads(row["figures"]) if row and row["figures"] else {}
        names = ("false_abort_rate", "false_abort_limit", "throughput_gain")
        return {"aborted": aborted, "audited": known.get("audited", 0), **{name: known.get(name) for name in names}}

    def _roles_block(self, session_id: int) -> list[dict[str, Any]]:
        """How each role does, by name; empty where none takes turns."""
        return [role_facts(*row) for row in self._tuples(ROLES, session_id)]

    def _overhead_block(self, session_id: int) -> dict[str, float | None]:
        rows = self._db.execute(
            "SELECT overhead_ms FROM experiment WHERE session_id = ? AND overhead_ms IS NOT NULL "
            "ORDER BY number DESC LIMIT ?",
            (session_id, _OVERHEADS),
        )
        found = sorted(row["overhead_ms"] for row in rows)
        return {"median_ms": figures.median(found), "p95_ms": figures.quantile(found, 0.95)}

    def _adapter(self, session_id: int) -> str | None:
        row = self._db.execute(
            "SELECT adapter FROM proposal WHERE session_id = ? ORDER BY number DESC, attempt DESC LIMIT 1",
            (session_id,),
        ).fetchone()
        return (row["adapter"] or None) if row else None

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
        return runs_by_experiment(self._tuples(query, session_id, first, final))

    def _tuples(self, query: str, *values: Any) -> sqlite3.Cursor:
        cursor = self._db.cursor()
        cursor.row_factory = None
        return cursor.execute(query, values)

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
