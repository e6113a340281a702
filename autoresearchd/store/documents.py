"""Rows of the journal as the JSON that commands print with ``--json``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECODE = json.JSONDecoder().raw_decode  # half the time of ``json.loads`` on what is this short
_SOURCES = {"stdout": "self-reported", "self-reported": "self-reported"}


EXPERIMENTS = """
SELECT e.number, e.status, e.label, e.value, e.metrics, e.delta, p.description, p.hypothesis, e.commit_sha, e.parent,
       p.policy, p.role, e.confidence, e.reward, p.usd, e.overhead_ms, e.started_at, e.finished_at, p.asi,
       a.hypothesis, a.arch_change, a.result, a.next_action_hint, a.extra, e.segment, p.adapter
FROM experiment e
LEFT JOIN proposal p ON p.session_id = e.session_id AND p.number = e.number AND p.attempt = e.attempt
LEFT JOIN asi a ON a.session_id = e.session_id AND a.number = e.number
"""
RUNS = "SELECT number, seed, value, duration_s, exit_code, label, finished_at, program, attempt FROM run"
ROLES = """
SELECT role, sum(decided), sum(keeps), sum(reward) FROM tally WHERE session_id = ? AND role != ''
GROUP BY role ORDER BY role
"""


def role_facts(name: str, decided: int, keeps: int, reward: float) -> dict[str, Any]:
    """How a role does, from a row of ``ROLES``; the reward is the mean, where an experiment without one counts as 0."""
    return {"name": name, "experiments": decided, "keeps": keeps, "reward": reward / decided if decided else None}


def experiment(
    row: tuple[Any, ...], runs: dict[int, list[dict[str, Any]]], costs: dict[int, float | None]
) -> dict[str, Any]:
    """An experiment as ``experiments --json`` lists it, from a row of ``EXPERIMENTS``.

    costs: of those whose cost is not that of their one proposal.

    The row is taken apart by position: a list may be long, and looking up names would take half of the time.
    """
    (number, status, label, value, metrics, delta, description, hypothesis, commit, parent) = row[:10]
    (policy, role, confidence, reward, usd, overhead_ms, started_at, finished_at) = row[10:18]
    return {
        "experiment": number,
        "segment": row[24],
        "status": status,
        "label": label or "",
        "metric": value,
        "metrics": _metrics(metrics) if metrics else {},
        "delta": delta,
        "description": description or hypothesis or "",
        "asi": _asi(*row[18:24]) if status is not None else _proposed_asi(row[18]),
        "commit": commit,
        "parent": parent,
        "policy": policy,
        "role": role,
        "adapter": row[25] or None,
        "runs": runs.get(number, []),
        "confidence": confidence,
        "reward": reward,
        "cost_usd": costs.get(number, usd),
        "overhead_ms": overhead_ms,
        "started_at": iso(started_at),
        "finished_at": iso(finished_at),
    }


def runs_by_experiment(rows: Iterable[tuple[Any, ...]]) -> dict[int, list[dict[str, Any]]]:
    """Runs of each experiment, from rows of ``RUNS``; one that has not ended has no duration."""
    found: dict[int, list[dict[str, Any]]] = {}
    for number, seed, value, duration_s, exit_code, label, finished_at, program, attempt in rows:
        run = {
            "seed": seed,
            "metric": value,
            "duration_s": None if finished_at is None else duration_s,
            "exit_code": exit_code,
            "label": label,
            "of": program,
            "attempt": attempt,
        }
        if number in found:
            found[number].append(run)
        else:
            found[number] = [run]
    return found


def _asi(
    _proposed: str | None,
    hypothesis: str | None,
    arch_change: str | None,
    result: str | None,
    next_action_hint: str | None,
    extra: str | None,
) -> dict[str, Any]:
    """As the domain has it: flat, empty fields left out."""
    found: dict[str, Any] = {}
    if hypothesis:
        found["hypothesis"] = hypothesis
    if arch_change:
        found["arch_change"] = arch_change
    if result:
        found["result"] = result
    if next_action_hint:
        found["next_action_hint"] = next_action_hint
    if extra:
        found.update(_DECODE(extra)[0])
    return found


def _proposed_asi(stored: str | None) -> dict[str, Any]:
    """Before the decision, that of the proposal."""
    if not stored:
        return {}
    found: dict[str, Any] = json.loads(stored)
    found.update(found.pop("extra", {}))
    return found


def _metrics(stored: str) -> dict[str, float | None]:
    """Metrics; those that were not finite are null, JSON has no word for them."""
    found: dict[str, Any] = _DECODE(stored)[0]
    if ':"' not in stored:
        return found
    return {name: None if isinstance(value, str) else value for name, value in found.items()}


def task_facts(task_json: str) -> dict[str, Any]:
    """What the answers need of a task, whatever its JSON lacks: name, metric, direction, source, budget."""
    try:
        task = _mapping(json.loads(task_json))
    except (ValueError, RecursionError):
        task = {}
    scoring, execution = _mapping(task.get("scoring")), _mapping(task.get("execution"))
    budget = execution.get("budget")
    if isinstance(budget, dict):
        budget = budget.get("training")
    return {
        "name": str(task.get("name") or ""),
        "metric": str(scoring.get("metric") or ""),
        "direction": "maximize" if scoring.get("direction") == "maximize" else "minimize",
        "source": _SOURCES.get(str(scoring.get("source")), "evaluator"),
        "budget": float(budget) if isinstance(budget, (int, float)) and not isinstance(budget, bool) else None,
    }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def micros(at: datetime) -> int:
    """A time as the tables have it."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def moment(stored: int) -> datetime:
    """A time of the tables."""
    return _EPOCH + timedelta(microseconds=stored)


def iso(stored: int | None) -> str | None:
    """A time of the tables as JSON has it."""
    return None if stored is None else moment(stored).isoformat()
