"""How a session stands, as ``status --json`` has it: block by block, by plain ``sqlite3``, within one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from autoresearchd.domain.limits import limit_reached, noise_has_grown
from autoresearchd.store import figures
from autoresearchd.store.documents import ROLES, iso, micros, role_facts, task_facts
from autoresearchd.store.readonly import tuples

_ALIVE_STATES = ("running", "paused", "backing_off")
_OVERHEADS = 1000


def status(
    db: sqlite3.Connection, session: sqlite3.Row, totals: sqlite3.Row, *, alive: bool | None, now: datetime
) -> dict[str, Any]:
    """What ``status --json`` prints.

    Args:
        db: the journal.
        session: its row.
        totals: its counters.
        alive: whether a process holds the session; None: not known, the stored state is believed.
        now: the time, for how long the current phase has lasted.
    """
    task, state = task_facts(session["task_json"]), session["state"]
    if alive is False and state in _ALIVE_STATES:
        state = "crashed"
    metric, current = _metric_block(db, session, task), _current_block(db, session, task, state, now)
    return {
        "session": _session_block(db, session, totals, task, state, metric["baseline"] is not None),
        "metric": metric,
        "current": current,
        "abort": _abort_block(db, session["id"], totals["aborted"]),
        "cost": {name: totals[name] for name in ("usd", "tokens_in", "tokens_out", "gpu_s")},
        "overhead": _overhead_block(db, session["id"]),
        "policy": {"name": session["policy"], "adapter": _adapter(db, session["id"])},
        "roles": _roles_block(db, session["id"]),
    }


def _session_block(
    db: sqlite3.Connection,
    session: sqlite3.Row,
    totals: sqlite3.Row,
    task: Mapping[str, Any],
    state: str,
    measured: bool,
) -> dict[str, Any]:
    """The session with its counts; baselines, one for each segment, are not counted (``measured``: the latest is).

    ``extend``: the option by which ``resume`` goes on beyond the limit that the session has reached.
    """
    segments = db.execute("SELECT count(*) FROM segment WHERE session_id = ?", (session["id"],)).fetchone()[0]
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


def _metric_block(db: sqlite3.Connection, session: sqlite3.Row, task: Mapping[str, Any]) -> dict[str, Any]:
    """Baseline, best and noise of the current segment: results of another one cannot be compared with them."""
    session_id = session["id"]
    segment = db.execute(
        "SELECT s.number, COALESCE((SELECT MIN(e.number) FROM experiment e WHERE e.session_id = s.session_id "
        "AND e.segment = s.number AND e.status = 'keep' AND e.number >= s.first), s.first) AS first "
        "FROM segment s WHERE s.session_id = ? ORDER BY s.number DESC LIMIT 1",
        (session_id,),
    ).fetchone()
    number, first = (segment["number"], segment["first"]) if segment else (0, 0)
    baseline = _kept_value(db, session_id, first)
    sigma = _sigma(db, session_id, first) if baseline is not None else None
    at_first = _first_sigma(db, session_id, first)
    holder = max(session["incumbent_experiment"], first)
    best = _kept_value(db, session_id, holder)
    values = db.execute(
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
        "sigma": sigma,
        "baseline_sigma": at_first,
        "too_noisy": noise_has_grown(sigma, at_first),
        "confidence": figures.mad_confidence(best, baseline, [row[0] for row in values]),
        "source": task["source"],
    }


def _kept_value(db: sqlite3.Connection, session_id: int, number: int) -> float | None:
    row = db.execute(
        "SELECT value FROM experiment WHERE session_id = ? AND number = ? AND status = 'keep'", (session_id, number)
    ).fetchone()
    return row["value"] if row else None


def _first_sigma(db: sqlite3.Connection, session_id: int, baseline: int) -> float | None:
    """That of the baseline when it was first measured."""
    row = db.execute(
        "SELECT sigma FROM experiment WHERE session_id = ? AND number = ? AND status = 'keep'", (session_id, baseline)
    ).fetchone()
    return row["sigma"] if row else None


def _sigma(db: sqlite3.Connection, session_id: int, baseline: int) -> float | None:
    """That of the incumbent's runs, as the latest decision of the segment knew it."""
    latest = db.execute(
        "SELECT sigma FROM experiment WHERE session_id = ? AND number >= ? AND sigma IS NOT NULL "
        "ORDER BY number DESC LIMIT 1",
        (session_id, baseline),
    ).fetchone()
    if latest is not None:
        return float(latest["sigma"])
    runs = db.execute(
        "SELECT value FROM run WHERE session_id = ? AND number = ? AND label = '' AND finished_at IS NOT NULL "
        "AND value IS NOT NULL",
        (session_id, baseline),
    )
    return figures.deviation([row["value"] for row in runs])


def _current_block(
    db: sqlite3.Connection, session: sqlite3.Row, task: Mapping[str, Any], state: str, now: datetime
) -> dict[str, Any] | None:
    """The experiment under way; of a daemon that died, the one it died in."""
    row = db.execute(
        "SELECT number, phase, started_at, overhead_ms FROM experiment WHERE session_id = ? "
        "ORDER BY number DESC LIMIT 1",
        (session["id"],),
    ).fetchone()
    settled = row is None or (row["phase"] == "decided" and (row["overhead_ms"] is not None or state == "crashed"))
    if settled or state == "stopped":
        return None
    since, look = row["started_at"], None
    if row["phase"] == "running":
        run = db.execute(
            "SELECT id, max(started_at) AS started_at FROM run WHERE session_id = ? AND number = ?",
            (session["id"], row["number"]),
        ).fetchone()
        since = run["started_at"] or since
        look = db.execute(
            "SELECT forecast, probability FROM look WHERE run_id = ? ORDER BY id DESC LIMIT 1", (run["id"],)
        ).fetchone()
    until = micros(now)
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


def _abort_block(db: sqlite3.Connection, session_id: int, aborted: int) -> dict[str, Any]:
    """Early abort; rates are of the latest segment. false_abort_limit: upper 95% limit of the rate."""
    row = db.execute("SELECT figures FROM abort_memory WHERE session_id = ?", (session_id,)).fetchone()
    known = json.loads(row["figures"]) if row and row["figures"] else {}
    names = ("false_abort_rate", "false_abort_limit", "throughput_gain")
    return {"aborted": aborted, "audited": known.get("audited", 0), **{name: known.get(name) for name in names}}


def _roles_block(db: sqlite3.Connection, session_id: int) -> list[dict[str, Any]]:
    """How each role does, by name; empty where none takes turns."""
    return [role_facts(*row) for row in tuples(db, ROLES, session_id)]


def _overhead_block(db: sqlite3.Connection, session_id: int) -> dict[str, float | None]:
    rows = db.execute(
        "SELECT overhead_ms FROM experiment WHERE session_id = ? AND overhead_ms IS NOT NULL "
        "ORDER BY number DESC LIMIT ?",
        (session_id, _OVERHEADS),
    )
    found = sorted(row["overhead_ms"] for row in rows)
    return {"median_ms": figures.median(found), "p95_ms": figures.quantile(found, 0.95)}


def _adapter(db: sqlite3.Connection, session_id: int) -> str | None:
    row = db.execute(
        "SELECT adapter FROM proposal WHERE session_id = ? ORDER BY number DESC, attempt DESC LIMIT 1",
        (session_id,),
    ).fetchone()
    return (row["adapter"] or None) if row else None
