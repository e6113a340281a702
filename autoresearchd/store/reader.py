"""The journal as the JSON that commands print: ``status``, ``experiments``, ``show``, ``sessions``, ``adapters list``.

It reads while the daemon writes, after it died, and on a read-only disk; it writes nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from statistics import median, stdev
from typing import Any, NamedTuple

from sqlalchemy import Connection, case, func, select

from autoresearchd.domain.errors import StoreDamaged
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import RULES, Label, Phase, SessionState, Status
from autoresearchd.domain.limits import limit_reached, noise_has_grown
from autoresearchd.domain.proposal import ASI
from autoresearchd.evaluator.keep.noise import mad_confidence
from autoresearchd.store.journal import records
from autoresearchd.store.journal.experiment_records import role_stats
from autoresearchd.store.journal.records import AnyRow
from autoresearchd.store.journal.version_records import select_versions
from autoresearchd.store.schema import health
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import FileReader

_ALIVE = (SessionState.RUNNING, SessionState.PAUSED, SessionState.BACKING_OFF)
_OVERHEADS = 1000
_COSTS = ("usd", "tokens_in", "tokens_out", "gpu_s")
s, e, p, r, n = t.sessions, t.experiments, t.proposals, t.runs, t.answers


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


class Reader(FileReader):
    """Each answer sees one instant of the database. Unknown session or experiment: KeyError."""

    def sessions(self) -> list[SessionRow]:
        wanted = select(*(s.c["task_json" if name == "task" else name] for name in SessionRow._fields)).order_by(s.c.id)
        with self._db.read() as c:
            return [SessionRow(*row)._replace(task=_task_facts(row.task_json)["name"]) for row in c.execute(wanted)]

    def status(self, tag: str, *, alive: bool | None = None, now: datetime | None = None) -> dict[str, Any]:
        """What ``status --json`` prints.

        alive: whether a process holds the session; None: not known, the stored state is believed. now: the time, for
        how long the current phase has lasted.
        """
        with self._db.read() as c:
            session = _session(c, tag)
            totals = c.execute(select(t.totals).where(t.totals.c.session_id == session.id)).one_or_none()
            if totals is None:
                raise StoreDamaged(f"{self._db.name} has lost the counters of session {tag}", hint=health.HINT)
            task, state = _task_facts(session.task_json), session.state
            if alive is False and state in _ALIVE:
                state = "crashed"
            metric = _metric_block(c, session, task)
            return {
                "session": _session_block(c, session, totals, task, state, metric["baseline"] is not None),
                "metric": metric,
                "current": _current_block(c, session, task, state, now or datetime.now(UTC)),
                "abort": _abort_block(c, session.id, totals.aborted),
                "cost": {name: getattr(totals, name) for name in _COSTS},
                "overhead": _overhead_block(c, session.id),
                "policy": {"name": session.policy, "adapter": _adapter(c, session.id)},
                "roles": [
                    {"name": name, "experiments": decided, "keeps": keeps, "reward": reward / decided}
                    for name, (decided, keeps, reward) in role_stats(c, session.id).items()
                    if name and decided
                ],
            }

    def heartbeat(self, tag: str) -> datetime:
        with self._db.read() as c:
            session = _session(c, tag)
        at: datetime = session.heartbeat_at or session.started_at
        return at

    def experiments(
        self, tag: str, status: str | None = None, last: int | None = None, role: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """What ``experiments --json`` lists, oldest first; ``last``: of those with this status and of this role."""
        with self._db.read() as c:
            session_id = _session(c, tag).id
            wanted = records.LISTED.where(e.c.session_id == session_id)
            if status is not None:
                wanted = wanted.where(e.c.status == status)
            if role is not None:
                wanted = wanted.where(p.c.role == role)
            newest = wanted.order_by(e.c.number.desc()).limit(None if last is None else max(0, last))
            found = records.load_experiments(c, session_id, newest)[::-1]
            costs = _costs(c, session_id, found[0].number, found[-1].number) if found else {}
        return (_document(experiment, costs) for experiment in found)

    def show(self, tag: str, number: int, *, full: bool = False) -> dict[str, Any]:
        """What ``show --json`` prints of an experiment; ``full``: its answers with messages and completions."""
        with self._db.read() as c:
            session_id = _session(c, tag).id
            found = records.load_experiment(c, session_id, number, records.LISTED)
            bodies = select(t.proposal_bodies.c.diff).join(p, records.BODY).join(e, records.CURRENT)
            diff = c.execute(bodies.where(e.c.session_id == session_id, e.c.number == number)).scalar()
            d = found.decision
            checks = select(t.abort_checks.c.details).join(r, r.c.id == t.abort_checks.c.run_id)
            of_it = (r.c.session_id == session_id, r.c.number == number)
            return {
                **_document(found, _costs(c, session_id, number, number)),
                "phase": found.phase,
                "segment": found.segment,
                "reason": d.reason if d else "",
                "sigma": d.sigma if d else None,
                "looks": list(c.execute(checks.where(*of_it).order_by(t.abort_checks.c.id)).scalars()),
                "attempts": _attempts(c, session_id, found),
                "answers": _answers(c, session_id, number, full=full),
                "diff": diff or "",
            }

    def versions(self) -> list[dict[str, Any]]:
        """Versions of the local policy as ``adapters list --json`` prints them, oldest first."""
        v = t.policy_versions.c
        told = ("version", "status", "algo", "parent", "reason", "metrics", "model_hash", "folder")
        rows = self._db.rows(select_versions(s.c.tag).outerjoin(s, s.c.id == v.session_id).order_by(v.id))
        return [
            {
                **records.pick(row, told),
                "session": row.tag,
                "learner_run": row.learner_run_id,
                "created_at": _iso(row.created_at),
                "promoted_at": _iso(row.promoted_at),
            }
            for row in rows
        ]


# ---------------------------------------------------------------------- one experiment
def _document(experiment: Experiment, costs: Mapping[int, float | None]) -> dict[str, Any]:
    """An experiment as ``experiments --json`` lists it. costs: where they are not those of its one proposal."""
    proposal = experiment.proposal
    d, names = experiment.decision, ("status", "label", "delta", "confidence", "reward")
    decided = records.pick(d, names) if d else {**dict.fromkeys(names), "label": ""}
    finite = {name: value if math.isfinite(value) else None for name, value in d.metrics.items()} if d else {}
    asi = experiment.asi if d else proposal.asi if proposal else ASI()
    return {
        "experiment": experiment.number,
        "segment": experiment.segment,
        **decided,
        "metric": d.value if d else None,
        "metrics": finite,  # JSON has no word for what is not
        "description": proposal.description or proposal.hypothesis if proposal else "",
        "asi": asi.as_dict(),
        "commit": experiment.commit,
        "parent": experiment.parent,
        "policy": proposal.policy if proposal else None,
        "role": proposal.role if proposal else None,
        "adapter": proposal.adapter or None if proposal else None,
        "runs": [
            {
                "metric": run.value,
                "duration_s": None if run.open else run.duration_s,
                **records.pick(run, ("seed", "exit_code", "label", "of", "attempt")),
            }
            for run in experiment.runs
        ],
        "cost_usd": costs.get(experiment.number, proposal.cost.usd if proposal else None),
        "overhead_ms": experiment.overhead_ms,
        "started_at": _iso(experiment.started_at),
        "finished_at": _iso(experiment.finished_at),
    }


def _costs(c: Connection, session_id: int, first: int, final: int) -> dict[int, float | None]:
    """US dollars by experiment: of its answers where there are any, else of its proposals; None: not known in full.

    Left out are experiments with one proposal and no answer: their cost is the proposal's.
    """
    costs: dict[int, float | None] = {}
    for table, more in ((p, [func.max(p.c.attempt) > 0]), (n, [])):
        known = case((func.count(table.c.usd) == func.count(), func.sum(table.c.usd)))
        of_these = (table.c.session_id == session_id, table.c.number.between(first, final))
        grouped = select(table.c.number, known).where(*of_these).group_by(table.c.number).having(*more)
        costs.update(dict(c.execute(grouped).all()))
    return costs


def _attempts(c: Connection, session_id: int, experiment: Experiment) -> list[dict[str, Any]]:
    """Proposals of an experiment in order, each with how its run failed (empty where none did)."""
    failed = {
        run.attempt: {"label": run.label, "reason": run.detail}
        for run in experiment.runs
        if run.of is None and run.label is not Label.NONE and RULES[run.label].status is not None
    }
    proposals = select(p.c.attempt, p.c.description, p.c.hypothesis).order_by(p.c.attempt)
    of_it = (p.c.session_id == session_id, p.c.number == experiment.number)
    return [
        {"attempt": a, "description": description or hypothesis, **failed.get(a, {"label": "", "reason": ""})}
        for a, description, hypothesis in c.execute(proposals.where(*of_it))
    ]


def _answers(c: Connection, session_id: int, number: int, *, full: bool) -> list[dict[str, Any]]:
    """All answers given for an experiment, oldest first; ``full``: with their messages and completions."""
    of_it = (n.c.session_id == session_id, n.c.number == number)
    names = ("attempt", "at", "model", "form", "error", "finish", "usd", "tokens_in", "tokens_out", "seconds")
    listed = select(*(n.c[name] for name in names)).where(*of_it).order_by(n.c.answer_index)
    told = [dict(row._mapping) for row in c.execute(listed)]
    for answer in told:
        answer["at"] = _iso(answer["at"])
        answer["cost_usd"] = answer.pop("usd")
    if full:
        rows = c.execute(records.ANSWERS.where(*of_it).order_by(n.c.answer_index)).all()
        for answer, whole in zip(told, records.answers_of(rows), strict=True):
            if whole is not None:
                answer["messages"] = list(whole.generation.messages)
                answer["completion"] = whole.generation.completion
    return told


# ---------------------------------------------------------------------- status, block by block
def _session_block(
    c: Connection, session: AnyRow, totals: AnyRow, task: Mapping[str, Any], state: str, measured: bool
) -> dict[str, Any]:
    """The session with its counts; baselines, one for each segment, are not counted (``measured``: the latest is).

    ``extend``: the option by which ``resume`` goes on beyond the limit that the session has reached.
    """
    segments = c.execute(select(func.count()).where(t.segments.c.session_id == session.id)).scalar_one()
    baselines = segments if measured else max(0, segments - 1)
    tried = max(0, totals.experiments - baselines)
    block = {
        "tag": session.tag,
        "task": task["name"],
        "branch": session.branch,
        "state": state,
        "pid": session.pid if state in _ALIVE else None,
        "started_at": _iso(session.started_at),
        "experiments": tried,
        "keeps": max(0, totals.keeps - baselines),
        **records.pick(totals, ("discards", "crashes", "checks_failed")),
    }
    over = state == "crashed" and session.state == SessionState.RUNNING  # what it waited for has died with it
    if (state == SessionState.BACKING_OFF or session.reason) and not over:
        block["reason"] = session.reason
    reached = limit_reached(
        **records.pick(session, ("max_experiments", "max_seconds", "max_usd")),
        experiments=tried,
        seconds=session.active_seconds,
        usd=totals.usd,
    )
    if state == SessionState.STOPPED and measured and reached is not None:
        block["extend"] = reached.more
    return block


def _metric_block(c: Connection, session: AnyRow, task: Mapping[str, Any]) -> dict[str, Any]:
    """Baseline, best and noise of the current segment: results of another one cannot be compared with them."""
    g, of_session = t.segments.c, e.c.session_id == session.id
    latest = select(g.number, g.first).where(g.session_id == session.id).order_by(g.number.desc()).limit(1)
    number, first = c.execute(latest).first() or (0, 0)
    first_kept = select(func.min(e.c.number)).where(
        of_session, e.c.segment == number, e.c.status == Status.KEEP, e.c.number >= first
    )
    first = c.execute(first_kept).scalar_one() or first
    holder = max(session.incumbent_experiment, first)
    kept = select(e.c.number, e.c.value, e.c.sigma).where(of_session, e.c.status == Status.KEEP)
    kept_rows = {row.number: row for row in c.execute(kept.where(e.c.number.in_((first, holder))))}
    baseline, at_first = (kept_rows[first].value, kept_rows[first].sigma) if first in kept_rows else (None, None)
    best = kept_rows[holder].value if holder in kept_rows else None
    sigma = _sigma(c, session.id, first) if baseline is not None else None
    in_segment = (of_session, e.c.segment == number, e.c.value.is_not(None))
    values = c.execute(select(e.c.value).where(*in_segment)).scalars().all()
    change = None
    if best is not None and baseline:
        better = best - baseline if task["direction"] == "maximize" else baseline - best
        change = 100.0 * better / abs(baseline)
    return {
        "name": task["metric"],
        "direction": task["direction"],
        "baseline": baseline,
        "best": best,
        "best_experiment": holder if best is not None else None,
        "improvement_pct": change,
        "sigma": sigma,
        "baseline_sigma": at_first,
        "too_noisy": noise_has_grown(sigma, at_first),
        "confidence": mad_confidence(values, baseline, best),
        "source": task["source"],
    }


def _sigma(c: Connection, session_id: int, baseline: int) -> float | None:
    """That of the incumbent's runs, as the latest decision of the segment knew it; else of the baseline's runs."""
    known = select(e.c.sigma).where(e.c.session_id == session_id, e.c.number >= baseline, e.c.sigma.is_not(None))
    sigma: float | None = c.execute(known.order_by(e.c.number.desc()).limit(1)).scalar()
    if sigma is not None:
        return sigma
    good = (r.c.label == Label.NONE, r.c.finished_at.is_not(None), r.c.value.is_not(None))
    runs = select(r.c.value).where(r.c.session_id == session_id, r.c.number == baseline, *good)
    values = c.execute(runs).scalars().all()
    return stdev(values) if len(values) > 1 else None


def _current_block(
    c: Connection, session: AnyRow, task: Mapping[str, Any], state: str, now: datetime
) -> dict[str, Any] | None:
    """The experiment under way; of a daemon that died, the one it died in."""
    latest = select(e.c.number, e.c.phase, e.c.started_at, e.c.overhead_ms).where(e.c.session_id == session.id)
    row = c.execute(latest.order_by(e.c.number.desc()).limit(1)).first()
    if row is None or state == SessionState.STOPPED:
        return None
    if row.phase == Phase.DECIDED and (row.overhead_ms is not None or state == "crashed"):
        return None
    since, check = row.started_at, None
    if row.phase == Phase.RUNNING:
        runs = select(r.c.id, r.c.started_at).where(r.c.session_id == session.id, r.c.number == row.number)
        run = c.execute(runs.order_by(r.c.run_index.desc()).limit(1)).first()
        if run is not None:
            k = t.abort_checks.c
            since = run.started_at
            checks = select(k.forecast, k.probability).where(k.run_id == run.id)
            check = c.execute(checks.order_by(k.id.desc()).limit(1)).first()
    until = (session.heartbeat_at or since) if state == "crashed" else now
    return {
        "experiment": row.number,
        "phase": row.phase,
        "elapsed_s": round(max(0.0, (until - since).total_seconds()), 3),
        "budget_s": task["budget"] if row.phase == Phase.RUNNING else None,
        "forecast": check.forecast if check else None,
        "abort_probability": check.probability if check else None,
    }


def _abort_block(c: Connection, session_id: int, aborted: int) -> dict[str, Any]:
    """Early abort; rates are of the latest segment. false_abort_limit: upper 95% limit of the rate."""
    m = t.abort_memories.c
    known = c.execute(select(m.figures).where(m.session_id == session_id)).scalar() or {}
    names = ("false_abort_rate", "false_abort_limit", "throughput_gain")
    return {"aborted": aborted, "audited": known.get("audited", 0), **{name: known.get(name) for name in names}}


def _overhead_block(c: Connection, session_id: int) -> dict[str, float | None]:
    there = select(e.c.overhead_ms).where(e.c.session_id == session_id, e.c.overhead_ms.is_not(None))
    times = sorted(c.execute(there.order_by(e.c.number.desc()).limit(_OVERHEADS)).scalars())
    p95 = times[max(0, math.ceil(0.95 * len(times)) - 1)] if times else None  # nearest rank
    return {"median_ms": median(times) if times else None, "p95_ms": p95}


def _adapter(c: Connection, session_id: int) -> str | None:
    latest = select(p.c.adapter).where(p.c.session_id == session_id).order_by(p.c.number.desc(), p.c.attempt.desc())
    return c.execute(latest.limit(1)).scalar() or None


# ---------------------------------------------------------------------- values
def _session(c: Connection, tag: str) -> AnyRow:
    return records.require(c.execute(select(s).where(s.c.tag == tag)).one_or_none(), f"no session {tag!r}")


def _task_facts(task_json: str) -> dict[str, Any]:
    """What the answers need of a task (an imported one says little of itself)."""
    task = json.loads(task_json)
    scoring, budget = task.get("scoring", {}), task.get("execution", {}).get("budget")
    return {
        "name": task.get("name", ""),
        "metric": scoring.get("metric", ""),
        "direction": scoring.get("direction", "minimize"),
        "source": "self-reported" if scoring.get("source") in ("stdout", "self-reported") else "evaluator",
        "budget": budget.get("training") if isinstance(budget, dict) else budget,
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
