"""A database file for others than its daemon, at work or dead: as the JSON of commands, and for the learner."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, case, func, select

from autoresearchd.domain.confirmation import Confirmation, improvement
from autoresearchd.domain.errors import StoreDamaged
from autoresearchd.domain.experiment import Experiment, Limits, Run, limit_reached, noise_has_grown
from autoresearchd.domain.labels import LIVING, RULES, Label, Outcome, Phase, SessionState, Status
from autoresearchd.domain.proposal import ASI, Answer, Proposal
from autoresearchd.evaluator.keep.noise import mad_confidence
from autoresearchd.evaluator.re_added import Removals
from autoresearchd.store.hybrid_turns import hybrid_turns
from autoresearchd.store.journal import records
from autoresearchd.store.journal.confirmation_records import load_confirmations
from autoresearchd.store.journal.experiment_records import count_baselines, load_unsettled, role_stats
from autoresearchd.store.journal.records import AnyRow
from autoresearchd.store.journal.version_records import select_versions
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import FileReader

_OVERHEADS = 1000
_SLOTS = re.compile(r" · (\d+) slots$")
_LATELY, _GAP_S = 200, 600.0
"""Runs that utilisation is told of, and how long nothing may run before that is taken for a pause."""
_UNREADABLE = (*codec.UNREADABLE, KeyError)
_COSTS = ("usd", "tokens_in", "tokens_out", "gpu_s")
_VERDICT = ("outcome", "gain", "error", "probability", "reason")
s, e, p, r, n, k, b = t.sessions, t.experiments, t.proposals, t.runs, t.answers, t.confirmations, t.beliefs


class SessionRow(NamedTuple):
    """A session in a line."""

    tag: str
    task: str
    policy: str
    started_at: datetime


class Reader(FileReader):
    """Each answer sees one instant of the database. Unknown session or experiment: KeyError."""

    def sessions(self) -> list[SessionRow]:
        wanted = select(*(s.c["task_json" if name == "task" else name] for name in SessionRow._fields)).order_by(s.c.id)
        with self._db.read() as c:
            return [SessionRow(*row)._replace(task=_task_facts(row.task_json)["name"]) for row in c.execute(wanted)]

    def status(self, tag: str, *, alive: bool | None = None, now: datetime | None = None) -> dict[str, Any]:
        """What ``status --json`` prints. alive: whether a process holds the session; None: unknown."""
        with self._db.read() as c:
            session = find_session(c, tag)
            totals = c.execute(select(t.totals).where(t.totals.c.session_id == session.id)).one_or_none()
            if totals is None:
                raise StoreDamaged(f"{self._db.name} has lost the counters of session {tag}", hint=self._db.repair)
            task, state = _task_facts(session.task_json), session.state
            if alive is False and state in LIVING:
                state = "crashed"
            metric = _metric_block(c, session, task)
            under_way = _under_way(c, session, task, state, now or datetime.now(UTC))
            adapters = select(p.c.adapter).filter_by(session_id=session.id)
            adapter = c.execute(adapters.order_by(p.c.number.desc(), p.c.attempt.desc()).limit(1)).scalar()
            return {
                "session": _session_block(c, session, totals, task, state, measured=metric["baseline"] is not None),
                "metric": metric,
                "current": next(iter(under_way), None),
                "under_way": under_way,
                "slots": _slots_block(c, session, state, now or datetime.now(UTC)),
                "abort": {"aborted": totals.aborted, **_abort_figures(c, session.id)},
                "cost": records.pick(totals, _COSTS) | {"unpriced": _unpriced(c, session.id)},
                "overhead": _overhead_block(c, session.id),
                "policy": {"name": session.policy, "adapter": adapter or None},
                "asked": hybrid_turns(c, session),
                "roles": [
                    {"name": name, "experiments": decided, "keeps": keeps, "reward": reward / decided}
                    for name, (decided, keeps, reward) in role_stats(c, session.id).items()
                    if name and decided
                ],
            }

    def job_environment(self, tag: str) -> dict[str, str]:
        """``execution.env`` of a session's task; an imported one has none."""
        with self._db.read() as c:
            return dict(json.loads(find_session(c, tag).task_json).get("execution", {}).get("env", {}))

    def heartbeat(self, tag: str) -> datetime:
        with self._db.read() as c:
            session = find_session(c, tag)
        return session.heartbeat_at or session.started_at  # type: ignore[no-any-return]

    def experiments(
        self, tag: str, status: str | None = None, last: int | None = None, role: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """What ``experiments --json`` lists, oldest first; ``last``: of those with this status and of this role."""
        with self._db.read() as c:
            session_id = find_session(c, tag).id
            wanted = records.LISTED.where(e.c.session_id == session_id)
            if status is not None:
                wanted = wanted.where(e.c.status == status)
            if role is not None:
                wanted = wanted.where(p.c.role == role)
            newest = wanted.order_by(e.c.number.desc()).limit(None if last is None else max(0, last))
            found = records.load_experiments(c, session_id, newest)[::-1]
            return documents(c, session_id, found)

    def confirmations(self, tag: str) -> list[dict[str, Any]]:
        """The confirmations of a session, oldest first, as ``show --json`` has them."""
        with self._db.read() as c:
            session = find_session(c, tag)
            return _confirmations(c, session, k.c.session_id == session.id)

    def beliefs(self, tag: str) -> list[tuple[float, float, float]]:
        """What the tip was believed to be at: after which experiment (half a number more: verdict), ± how much."""
        with self._db.read() as c:
            of_it = select(b.c.after, b.c.value, b.c.error).filter_by(session_id=find_session(c, tag).id)
            return [(after, value, error or 0.0) for after, value, error in c.execute(of_it.order_by(b.c.after))]

    def show(self, tag: str, number: int, *, full: bool = False) -> dict[str, Any]:
        """What ``show --json`` prints of an experiment; ``full``: its answers with messages and completions.

        ``confirmations``: those that it was compared in, and, where it was kept, those of its chain.
        """
        with self._db.read() as c:
            session = find_session(c, tag)
            session_id = session.id
            found = records.load_experiment(c, session_id, number, records.ONE_LISTED)
            bodies = select(t.proposal_bodies.c.diff).join(p, records.BODY).join(e, records.CURRENT)
            diff = c.execute(bodies.where(e.c.session_id == session_id, e.c.number == number)).scalar()
            d = found.decision
            its = (k.c.experiment == number) | (k.c.against == number)
            if d and d.status is Status.KEEP:
                chain = (k.c.experiment > number, k.c.against < number, k.c.segment == found.segment)
                its |= and_(k.c.moved, *chain)
            tests = _confirmations(c, session, k.c.session_id == session_id, its)
            inside = (n["number"] for n in tests if n["moved"] and n["against"] < number <= n["experiment"])
            settled = next(inside, None)  # once it was, what lies above the same program is another chain
            tests = [n for n in tests if number in (n["experiment"], n["against"]) or n["number"] == settled]
            checks = select(t.abort_checks.c.details).join(r).filter_by(session_id=session_id, number=number)
            return {
                **_document(found, _costs(c, session_id, number, number)),
                "phase": found.phase,
                "segment": found.segment,
                "reason": d.reason if d else "",
                "sigma": d.sigma if d else None,
                "looks": list(c.execute(checks.order_by(t.abort_checks.c.id)).scalars()),
                "confirmations": tests,
                "attempts": _attempts(c, session_id, found),
                "answers": _answers(c, session_id, number, full=full),
                "diff": diff or "",
                "re_added": _re_added(c, session_id, number, diff) if diff else None,
            }

    def taken_in(self, tag: str, suggestion: int) -> int | None:
        """The experiment that a proposal from outside is in; None: it waits for one. KeyError: there is none."""
        u = t.suggestions.c
        with self._db.read() as c:
            wanted = select(u.taken_in).where(u.session_id == find_session(c, tag).id, u.id == suggestion)
            return records.require(c.execute(wanted).one_or_none(), f"no proposal {suggestion}").taken_in  # type: ignore[no-any-return]

    def versions(self) -> list[dict[str, Any]]:
        """Versions of the local policy as ``adapters list --json`` prints them, oldest first."""
        v, names = (
            t.policy_versions.c,
            ("version", "status", "algo", "parent", "reason", "metrics", "model_hash", "folder"),
        )
        rows = self._db.rows(select_versions(s.c.tag).outerjoin(s, s.c.id == v.session_id).order_by(v.id))
        return [
            records.pick(row, names)
            | {"session": row.tag, "learner_run": row.learner_run_id}
            | {"created_at": _iso(row.created_at), "promoted_at": _iso(row.promoted_at)}
            for row in rows
        ]


# ---------------------------------------------------------------------- one experiment
def _re_added(c: Connection, session_id: int, number: int, diff: str) -> dict[str, Any]:
    """What an edit brings back of what the keeps before it had removed."""
    body = t.proposal_bodies.c

    def of_keeps(column: Any) -> Select[Any]:
        kept = (e.c.session_id == session_id, e.c.status == Status.KEEP, e.c.confirmed.is_not(False))
        return select(e.c.number, column).join(p, records.CURRENT).join(t.proposal_bodies, records.BODY).where(*kept)

    def texts(keep: int) -> Iterable[str]:
        row = c.execute(of_keeps(body.files).where(e.c.number == keep)).one_or_none()
        return (row.files or {}).values() if row else ()

    removals = Removals(texts)
    for keep, its in c.execute(of_keeps(body.diff).where(e.c.number < number).order_by(e.c.number)):
        removals.keep(keep, its or "")
    return removals.look(diff).as_json()


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
        "runs": [_run_document(run) for run in experiment.runs if run.attempt >= 0],
        "expected_gain": d.delta if d and d.value is not None else None,
        "confirmed": experiment.confirmed,
        "cost_usd": costs.get(experiment.number, proposal.cost.usd if proposal else None),
        "overhead_ms": experiment.overhead_ms,
        "started_at": _iso(experiment.started_at),
        "finished_at": _iso(experiment.finished_at),
    }


def documents(c: Connection, session_id: int, found: Sequence[Experiment]) -> Iterator[dict[str, Any]]:
    """Experiments of a session, in any order, as ``experiments --json`` lists them."""
    numbers = [experiment.number for experiment in found]
    costs = _costs(c, session_id, min(numbers), max(numbers)) if numbers else {}
    return (_document(experiment, costs) for experiment in found)


def _run_document(run: Run) -> dict[str, Any]:
    return {
        "metric": run.value,
        "duration_s": None if run.open else run.duration_s,
        **records.pick(run, ("seed", "exit_code", "label", "of", "attempt", "host")),
    }


def _confirmations(c: Connection, session: AnyRow, *which: Any) -> list[dict[str, Any]]:
    """Confirmations as JSON, oldest first. path: after each pair of runs their mean difference, positive: better.

    value: mean of the tip's runs.
    """
    sign, listed = 1.0 if _task_facts(session.task_json)["direction"] == "maximize" else -1.0, []
    for one in load_confirmations(c, session.id, select(*k.c).where(*which).order_by(k.c.number)):
        good = [run for run in one.runs if run.good]
        tips, others = (
            {run.seed: run.value for run in good if (run.of is None) is own and run.value is not None}
            for own in (True, False)
        )
        pairs = [seed for seed in dict.fromkeys(run.seed for run in good) if seed in tips and seed in others]
        gains = [sign * (tips[seed] - others[seed]) for seed in pairs]
        listed.append(
            {
                **records.pick(
                    one, ("number", "segment", "experiment", "against", "after", "why", "pairs", "budget", "moved")
                ),
                "runs": [_run_document(run) for run in one.runs],
                "path": [fmean(gains[:n]) for n in range(1, len(gains) + 1)],
                "value": fmean(tips.values()) if tips else None,
                **(records.pick(one.verdict, _VERDICT) if one.verdict else dict.fromkeys(_VERDICT)),
                "started_at": _iso(one.started_at),
                "finished_at": _iso(one.finished_at),
            }
        )
    return listed


def _value_of(number: int, tests: Sequence[Confirmation]) -> tuple[float | None, int]:
    """The mean of a program over its runs in confirmations, and of how many; none of them had a part in keeping it."""
    runs = [run for one in tests if one.budget is None for run in one.runs if one.program_of(run) == number]
    values = [run.value for run in runs if run.good and run.value is not None]
    return (fmean(values) if values else None), len(values)


def _costs(c: Connection, session_id: int, first: int, final: int) -> dict[int, float | None]:
    """US dollars of experiments with answers, or else several proposals; None: not known in full."""
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
        if run.of is None and run.label is not Label.NONE and RULES[run.label] is not None
    }
    proposals = select(p.c.attempt, p.c.description, p.c.hypothesis).order_by(p.c.attempt)
    return [
        {"attempt": a, "description": description or hypothesis, **failed.get(a, {"label": "", "reason": ""})}
        for a, description, hypothesis in c.execute(
            proposals.filter_by(session_id=session_id, number=experiment.number)
        )
    ]


def _answers(c: Connection, session_id: int, number: int, *, full: bool) -> list[dict[str, Any]]:
    """All answers given for an experiment, oldest first; ``full``: with their messages and completions."""
    source = records.ANSWERS if full else select(*n.c)
    of_it = source.where(n.c.session_id == session_id, n.c.number == number).order_by(n.c.answer_index)
    rows, listed = c.execute(of_it).all(), []
    for row, answer in zip(rows, records.answers_of(rows) if full else [None] * len(rows), strict=True):
        facts = {"attempt": row.attempt, "at": _iso(row.at)}
        facts |= records.pick(row, ("model", "form", "error", "finish", "tokens_in", "tokens_out", "seconds"))
        facts["cost_usd"] = row.usd
        if answer is not None:
            generation = answer.generation
            facts |= {"messages": list(generation.messages), "completion": generation.completion}
        listed.append(facts)
    return listed


# ---------------------------------------------------------------------- status, block by block
def _session_block(
    c: Connection, session: AnyRow, totals: AnyRow, task: Mapping[str, Any], state: str, *, measured: bool
) -> dict[str, Any]:
    """Without baselines. measured: the latest segment has one; confirmed: of the keeps; extend: how to ``resume``."""
    baselines = count_baselines(c, session.id)
    tried = totals.experiments - baselines
    proven = select(func.count()).where(e.c.session_id == session.id, e.c.status == Status.KEEP, e.c.confirmed)
    block = {
        "tag": session.tag,
        "task": task["name"],
        "branch": session.branch,
        "state": state,
        "pid": session.pid if state in LIVING else None,
        "started_at": _iso(session.started_at),
        "experiments": tried,
        "keeps": totals.keeps - baselines,
        "confirmed": max(0, c.execute(proven).scalar_one() - baselines),
        **records.pick(totals, ("discards", "crashes", "checks_failed")),
    }
    over = state == "crashed" and session.state == SessionState.RUNNING  # what it waited for has died with it
    if (state == SessionState.BACKING_OFF or session.reason) and not over:
        block["reason"] = session.reason
    reached = limit_reached(
        Limits(session.max_experiments, session.max_seconds, session.max_usd),
        experiments=tried,
        seconds=session.active_seconds,
        usd=totals.usd,
    )
    if state == SessionState.STOPPED and measured and reached is not None:
        block["extend"] = reached.more
    return block


def _metric_block(c: Connection, session: AnyRow, task: Mapping[str, Any]) -> dict[str, Any]:
    """Baseline, best and noise of the current segment: results of another one cannot be compared with them.

    best: of the confirmed program. tip: what the next edit is made on, which is only believed to be as good as it says.
    """
    g, of_session = t.segments.c, e.c.session_id == session.id
    latest = select(g.number, g.first).where(g.session_id == session.id).order_by(g.number.desc()).limit(1)
    number, first = c.execute(latest).first() or (0, 0)
    kept = (of_session, e.c.status == Status.KEEP)
    first_kept = select(func.min(e.c.number)).where(*kept, e.c.segment == number, e.c.number >= first)
    first = c.execute(first_kept).scalar_one() or first
    proven, tip = max(session.confirmed_experiment, first), max(session.incumbent_experiment, first)
    rows = c.execute(
        select(e.c.number, e.c.value, e.c.sigma, e.c.finished_at).where(*kept, e.c.number.in_((first, proven, tip)))
    )
    known = {row.number: row for row in rows}
    at_first = known.get(first)
    baseline = at_first.value if at_first is not None else None
    sigma = _sigma(c, session.id, first) if baseline is not None else None
    in_segment = (of_session, e.c.segment == number, e.c.value.is_not(None))
    values = c.execute(select(e.c.value).where(*in_segment)).scalars().all()
    confirmed = _confirmed_block(c, session, known[proven], first) if baseline is not None and proven in known else None
    believed = select(b.c.value, b.c.error).where(b.c.session_id == session.id, b.c.after >= first)
    estimate, error = c.execute(believed.order_by(b.c.after.desc()).limit(1)).first() or (None, None)
    best, change = confirmed["value"] if confirmed else None, None
    if confirmed is not None and best is not None and baseline is not None:
        minimize = task["direction"] != "maximize"
        change = improvement(baseline, best, confirmed["gain"], minimize=minimize).percent
    return {
        "name": task["metric"],
        "direction": task["direction"],
        "baseline": baseline,
        "baseline_experiment": first if baseline is not None else None,
        "best": best,
        "best_experiment": confirmed["experiment"] if confirmed else None,
        "improvement_pct": change,
        "sigma": sigma,
        "baseline_sigma": at_first.sigma if at_first is not None else None,
        "too_noisy": noise_has_grown(sigma, at_first.sigma if at_first is not None else None),
        "confidence": mad_confidence(values, baseline, best),
        "source": task["source"],
        "tip": {
            "experiment": tip,
            "estimate": known[tip].value if estimate is None else estimate,
            "standard_error": error,
        }
        if baseline is not None and tip in known
        else None,
        "confirmed": confirmed,
    }


def _confirmed_block(c: Connection, session: AnyRow, row: AnyRow, baseline: int) -> dict[str, Any]:
    """The confirmed program. runs: that its value is the mean of, since: when it was confirmed.

    gain, error: over the baseline, summed over the confirmations between them, which have both sides run in turn: the
    machine may not be what it was when the baseline was first measured. None: of a keep of older versions.

    A baseline, and what was confirmed before there were confirmations, has the value that it was kept with.
    """
    telling = (k.c.experiment == row.number) | (k.c.against == row.number) | (k.c.outcome == Outcome.CONFIRMED)
    which = (k.c.session_id == session.id, k.c.experiment > baseline, telling)
    tests = [] if row.number == baseline else load_confirmations(c, session.id, select(*k.c).where(*which))
    value, runs = _value_of(row.number, tests)
    if value is None:
        of_it = (r.c.session_id == session.id, r.c.number == row.number, r.c.program.is_(None), r.c.attempt >= 0)
        good = (r.c.label == Label.NONE, r.c.value.is_not(None))
        value, runs = row.value, c.execute(select(func.count()).where(*of_it, *good)).scalar_one()
    ended = [one.finished_at for one in tests if one.experiment == row.number and one.confirmed]
    gain, error = _gain(row.number, baseline, tests) or (None, None)
    return {
        "experiment": row.number,
        "value": value,
        "runs": runs,
        "since": _iso(ended[0] if ended else row.finished_at),
        "gain": gain,
        "error": error,
    }


def _gain(number: int, baseline: int, tests: Sequence[Confirmation]) -> tuple[float, float] | None:
    """What was gained from the baseline on, and its standard error; None where a part of it was not confirmed."""
    passed = {one.experiment: one for one in tests if one.confirmed}
    gain = square = 0.0
    while number > baseline:
        one = passed.get(number)
        if one is None or one.verdict is None or one.verdict.gain is None:
            return None
        gain, square = gain + one.verdict.gain, square + (one.verdict.error or 0.0) ** 2
        number = one.against
    return gain, math.sqrt(square)


def _sigma(c: Connection, session_id: int, baseline: int) -> float | None:
    """As the latest decision of the segment knew it; else that of the baseline's runs."""
    known = select(e.c.sigma).where(e.c.session_id == session_id, e.c.number >= baseline, e.c.sigma.is_not(None))
    sigma: float | None = c.execute(known.order_by(e.c.number.desc()).limit(1)).scalar()
    if sigma is not None:
        return sigma
    good = (r.c.label == Label.NONE, r.c.finished_at.is_not(None), r.c.value.is_not(None), r.c.attempt >= 0)
    runs = select(r.c.value).where(r.c.session_id == session_id, r.c.number == baseline, *good)
    values = c.execute(runs).scalars().all()
    return stdev(values) if len(values) > 1 else None


def _under_way(
    c: Connection, session: AnyRow, task: Mapping[str, Any], state: str, now: datetime
) -> list[dict[str, Any]]:
    """The experiments, oldest first, and the confirmation under way; of a daemon that died, those that it died in.

    confirmation: against: the confirmed experiment; why: as in the journal; runs: how many have ended.
    """
    if state == SessionState.STOPPED:
        return []
    until = (session.heartbeat_at or session.started_at) if state == "crashed" else now

    def facts(experiment: int, phase: Phase, since: datetime, check: AnyRow | None = None) -> dict[str, Any]:
        return {
            "experiment": experiment,
            "phase": phase,
            "elapsed_s": round(max(0.0, (until - since).total_seconds()), 3),
            "budget_s": task["budget"] if phase is Phase.RUNNING else None,
            "forecast": check.forecast if check else None,
            "abort_probability": check.probability if check else None,
        }

    found = []
    for one in load_unsettled(c, session.id, records.LISTED):
        if one.phase is Phase.DECIDED and state == "crashed":
            continue
        since, check = one.started_at, None
        if one.phase is Phase.RUNNING and one.runs:
            looks, run = t.abort_checks.c, one.runs[-1]
            since = run.started_at
            checks = select(looks.forecast, looks.probability).where(looks.run_id == run.id)
            check = c.execute(checks.order_by(looks.id.desc()).limit(1)).first()
        found.append(facts(one.number, one.phase, since, check))
    unfinished = select(*k.c).where(k.c.session_id == session.id, k.c.finished_at.is_(None))
    for test in load_confirmations(c, session.id, unfinished)[-1:]:
        last = test.last_run
        at = last.started_at if last and last.open else last.finished_at if last else None
        ended = {"against": test.against, "why": test.why, "runs": sum(run.counts for run in test.runs)}
        begun = facts(test.experiment, Phase.RUNNING, at or test.started_at)
        found.append(begun | {"budget_s": test.budget or task["budget"], "confirmation": ended})
    return found


def _slots_block(c: Connection, session: AnyRow, state: str, now: datetime) -> dict[str, Any]:
    """How many slots, how many of them run something, the part of their time that runs took lately, and the hosts.

    Times when nothing ran for long (a pause, a stop, an owner's question) are left out of it.
    """
    g, names = t.segments.c, ("started_at", "finished_at", "duration_s", "label", "host")
    latest = select(g.hardware, g.first).where(g.session_id == session.id).order_by(g.number.desc()).limit(1)
    hardware, first = c.execute(latest).first() or ("", 0)
    count = int(told[1]) if (told := _SLOTS.search(hardware)) else 1
    of_segment = (r.c.session_id == session.id, r.c.number >= first)
    rows = c.execute(select(*(r.c[name] for name in names)).where(*of_segment).order_by(r.c.id.desc()).limit(_LATELY))
    used, busy, spans = 0.0, 0, list[tuple[datetime, datetime]]()
    hosts: dict[str, dict[str, Any]] = {}
    for row in reversed(rows.all()):
        ended = row.finished_at
        if ended is None:
            if state in ("stopped", "crashed"):
                continue
            busy, ended = busy + 1, now
            used += (now - row.started_at).total_seconds()
        else:
            failed = row.label in (Label.HOST_LOST, Label.DISK_FULL)
            if row.host:
                host = hosts.setdefault(row.host, {"host": row.host, "runs": 0, "failed": 0})
                host["failed" if failed else "runs"] += 1
            used += 0.0 if failed else row.duration_s
        spans.append((row.started_at, ended))
    span = seconds_at_work(spans)
    return {
        "count": count,
        "busy": busy,
        "utilisation": min(1.0, used / (span * count)) if span else None,
        "hosts": [hosts[name] for name in sorted(hosts)],
    }


def seconds_at_work(runs: Iterable[tuple[datetime, datetime]]) -> float:
    """How long there were runs, from when to when, and between them, but for pauses and stops."""
    total, until = 0.0, None
    for begun, ended in sorted(runs):
        if until is not None and (gap := (begun - until).total_seconds()) < _GAP_S:
            total += max(0.0, gap)
        total += max(0.0, (ended - (begun if until is None else max(until, begun))).total_seconds())
        until = ended if until is None else max(until, ended)
    return total


def _abort_figures(c: Connection, session_id: int) -> dict[str, Any]:
    """Of the latest segment. false_abort_limit: upper 95% limit of the rate."""
    known = c.execute(select(t.abort_memories.c.figures).filter_by(session_id=session_id)).scalar() or {}
    rates = {name: known.get(name) for name in ("false_abort_rate", "false_abort_limit", "throughput_gain")}
    return {"audited": known.get("audited", 0), **rates}


def _unpriced(c: Connection, session_id: int) -> bool:
    """Whether an answer, or a proposal, has cost what is not known."""
    unknown = (select(x.c.number).filter_by(session_id=session_id, usd=None).limit(1) for x in (n, p))
    return any(c.execute(one).first() is not None for one in unknown)


def _overhead_block(c: Connection, session_id: int) -> dict[str, float | None]:
    there = select(e.c.overhead_ms).where(e.c.session_id == session_id, e.c.overhead_ms.is_not(None))
    times = sorted(c.execute(there.order_by(e.c.number.desc()).limit(_OVERHEADS)).scalars())
    p95 = times[max(0, math.ceil(0.95 * len(times)) - 1)] if times else None  # nearest rank
    return {"median_ms": median(times) if times else None, "p95_ms": p95}


# ---------------------------------------------------------------------- parts of both
def find_session(c: Connection, tag: str) -> AnyRow:
    """The row of a session; KeyError where there is none."""
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


# ---------------------------------------------------------------------- for the learner
class SessionFacts(NamedTuple):
    """A session in a line. decided: without baselines; answers: of models; identity: the same wherever it lies."""

    id: int
    tag: str
    policy: str
    task_json: str
    decided: int
    answers: int
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Transcript:
    """An experiment (None where it cannot be read) and all that models said for it; without file texts.

    proposals: by attempt, without generations. answers: oldest first, None in the place of one that cannot be read.
    """

    number: int
    experiment: Experiment | None
    proposals: tuple[Proposal, ...]
    answers: tuple[Answer | None, ...]


class Corpus(FileReader):
    """Experiments that models answered. A row that cannot be read any more loses itself alone, whatever is in it."""

    def sessions(self) -> list[SessionFacts]:
        of_it = (p.c.session_id == s.c.id, p.c.number == e.c.number)
        baseline = select(p.c.number).where(*of_it, p.c.policy == "baseline")
        decided = select(func.count()).where(e.c.session_id == s.c.id, e.c.status.is_not(None), ~baseline.exists())
        answers = select(func.count()).where(n.c.session_id == s.c.id)
        facts = [s.c[name] for name in ("id", "tag", "policy", "task_json")]
        counts = [decided.scalar_subquery(), answers.scalar_subquery()]
        with self._db.read() as c:
            rows = c.execute(select(*facts, *counts, s.c.base_commit, s.c.seed).order_by(s.c.id)).all()
        # A tag alone is that of the day on which somebody began; the seed is drawn for each session.
        known = (sha256(f"{row.tag}\0{row.base_commit}\0{row.seed}".encode()).hexdigest()[:32] for row in rows)
        return [SessionFacts(*row[:6], identity) for row, identity in zip(rows, known, strict=True)]

    def transcripts(self, session_id: int) -> Iterator[Transcript]:
        """The experiments of a session that have answers, in order of number, all as of one instant."""
        numbers = select(n.c.number).where(n.c.session_id == session_id).distinct().order_by(n.c.number)
        with self._db.read() as c:
            for number in c.execute(numbers).scalars().all():
                answers = _readable_answers(c, session_id, number)
                try:
                    experiment = records.load_experiment(c, session_id, number, records.ONE_LISTED)
                    yield Transcript(number, experiment, _proposals(c, session_id, number), answers)
                except _UNREADABLE:
                    yield Transcript(number, None, (), answers)


def _proposals(c: Connection, session_id: int, number: int) -> tuple[Proposal, ...]:
    proposals = select(*(column.label(f"p_{column.name}") for column in p.c)).order_by(p.c.attempt)
    rows = c.execute(proposals.filter_by(session_id=session_id, number=number)).all()
    return tuple(records.proposal_of(row, row.p_attempt) for row in rows)


def _readable_answers(c: Connection, session_id: int, number: int) -> tuple[Answer | None, ...]:
    """The answers of an experiment; one goes with another's row where its messages are stored with that."""
    indices = select(n.c.answer_index).filter_by(session_id=session_id, number=number).order_by(n.c.answer_index)
    answers = records.answers_of([_readable(c, session_id, number, i) for i in c.execute(indices).scalars().all()])
    return tuple(None if a is None or records.LOST in a.generation.messages else a for a in answers)


def _readable(c: Connection, session_id: int, number: int, index: int) -> AnyRow | None:
    """The row of an answer; None where it cannot be read."""
    key = (n.c.session_id == session_id, n.c.number == number, n.c.answer_index == index)
    try:
        row = c.execute(records.ANSWERS.where(*key)).one()
        list(records.conversations([(index, row.shared, ())]))
    except _UNREADABLE:
        return None
    return row
