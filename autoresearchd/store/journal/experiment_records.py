"""Experiments in the journal: their steps, each one transaction, and what they add up to for whoever asks.

``proposing → proposed → committed → running → measured → decided``; ``running`` goes back to ``committed`` while more
runs follow, and a repair takes it from ``measured`` back to ``proposed``. A step out of order raises StoreError; the
same step with the same data may be repeated, as recovery does not know whether the daemon died before or after it.
What is asked with every proposal costs the same in a long session: tallies are counters, and lists have an end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

from sqlalchemy import Connection, Select, bindparam, case, delete, func, insert, select, update

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import (
    CurvePoint,
    Decision,
    Experiment,
    Measurement,
    Node,
    Run,
    RunResult,
    StageResult,
    Totals,
    Trial,
)  # fmt: skip
from autoresearchd.domain.labels import FORBIDDEN, RULES, Label, Phase, Status
from autoresearchd.domain.proposal import ASI, Answer, Cost, Proposal
from autoresearchd.store.journal import records
from autoresearchd.store.journal.records import AnyRow, load_experiment
from autoresearchd.store.journal.session_records import change_session
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database

_COUNTERS = {
    Status.KEEP: "keeps", Status.DISCARD: "discards", Status.CRASH: "crashes", Status.CHECKS_FAILED: "checks_failed",
}  # fmt: skip
_BILL = "bill"
"""Kind of the one event of a session that tells which bill for machines was counted last."""
_UNDER_WAY = 2048
"""How far back experiments are looked for that are not settled: more than ever are under way in all slots."""
e, p, r, n, y, v = t.experiments, t.proposals, t.runs, t.answers, t.tallies, t.visits
_STANDING = (
    "session_id", "number", "segment", "phase", "attempt", "parent", "commit_sha", "status", "label", "value",
    "confirmed",
)  # fmt: skip
_STANDS = select(*(e.c[name] for name in _STANDING)).where(*records.THIS)
_CHANGE = update(e).where(*records.THIS)
_SPEND = _CHANGE.values(gpu_s=e.c.gpu_s + bindparam("more"))
_parent = e.alias("parent")

# A sum is no column to a planner: it keeps it from indices that would have to be walked through (that on values, for
# a maximum that on numbers), where the keys of experiments and the index on commits lead to the few rows asked for.
_PARENT_NUMBER = (
    select(func.max(_parent.c.number + 0))
    .where(
        _parent.c.session_id == e.c.session_id,
        _parent.c.commit_sha == e.c.parent,
        _parent.c.segment + 0 == e.c.segment,
        _parent.c.number + 0 < e.c.number,
        _parent.c.value.is_not(None),
    )
    .correlate(e)
    .scalar_subquery()
)


class ExperimentRecords:
    """The part of the store about experiments, and what models answered for them."""

    _db: Database

    def open_experiment(self, session_id: int, *, parent: str, segment: int, at: datetime) -> Experiment:
        """Allocate the next number; the counter and the row change together, so there is never a gap. Lazily."""
        opened = t.totals.c.opened
        take = update(t.totals).where(t.totals.c.session_id == session_id).values(opened=opened + 1).returning(opened)
        with self._db.write_lazily() as c:
            (count,) = records.require(c.execute(take).one_or_none(), f"no session {session_id}")
            values = {"session_id": session_id, "number": count - 1, "segment": segment, "phase": Phase.PROPOSING}
            c.execute(insert(e).values(**values, parent=parent, started_at=at, gpu_s=0.0))
        return Experiment(session_id, count - 1, segment, Phase.PROPOSING, parent, at)

    def record_proposal(
        self,
        session_id: int,
        number: int,
        proposal: Proposal,
        *,
        diff: str,
        code_hash: str,
        suggestion: int | None = None,
    ) -> Experiment:
        """Store a proposal, or one more attempt (a repair); its cost is counted unless it is ``charged``.

        ``proposal.parent``, when given, becomes the experiment's. suggestion: the one from outside that it was made of,
        which waits no longer: it is in this experiment or still waits, and is never in two.
        """
        with self._db.write() as c:
            row = locked(c, session_id, number)
            if row.attempt is not None and proposal.attempt <= row.attempt:
                again = proposal.attempt == row.attempt and row.phase == Phase.PROPOSED
                if again and _same_proposal(c, row, proposal, code_hash):
                    return load_experiment(c, session_id, number)
                _expect(row, f"attempt {proposal.attempt} of a proposal")
            _expect(row, "a proposal", Phase.PROPOSING, Phase.PROPOSED, Phase.MEASURED)
            key = {"session_id": session_id, "number": number, "attempt": proposal.attempt}
            records.insert_proposal(c, key, proposal, diff, code_hash)
            if suggestion is not None:
                u = t.suggestions.c
                waits = (u.id == suggestion, u.session_id == session_id, u.taken_in.is_(None))
                if c.execute(update(t.suggestions).where(*waits).values(taken_in=number)).rowcount == 0:
                    raise StoreError(f"the suggestion {suggestion} does not wait any more")
            parent = row.parent if proposal.parent is None else proposal.parent
            change(
                c, session_id, number, phase=Phase.PROPOSED, attempt=proposal.attempt, commit_sha=None, parent=parent
            )
            if not proposal.charged:
                _charge(c, session_id, proposal.cost)
            return load_experiment(c, session_id, number)

    def record_commit(self, session_id: int, number: int, commit: str) -> Experiment:
        """Written lazily: the commit follows from the proposal."""
        with self._db.write_lazily() as c:
            row = locked(c, session_id, number)
            if row.commit_sha != commit or row.phase == Phase.PROPOSED:
                _expect(row, f"commit {commit[:10]}", Phase.PROPOSED)
                change(c, session_id, number, phase=Phase.COMMITTED, commit_sha=commit)
            return load_experiment(c, session_id, number)

    def open_run(self, session_id: int, number: int, seed: int, at: datetime) -> Run:
        """A run of its program is about to start. Lazily."""
        with self._db.write_lazily() as c:
            row = locked(c, session_id, number)
            _expect(row, "a run", Phase.COMMITTED)
            change(c, session_id, number, phase=Phase.RUNNING)
            return records.insert_run(c, session_id, number, seed, at, attempt=row.attempt or 0)

    def close_run(
        self, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime, *, last: bool
    ) -> Experiment:
        """Store what a run gave; one that does not count (interrupted, host lost, disk full) is never the last."""
        with self._db.write() as c:
            run = find_run(c, run_id)
            key = (run.session_id, run.number)
            row = locked(c, *key)
            if not has_ended(run, measurement):
                _expect(row, "the result of a run", Phase.RUNNING)
                end_run(c, run, measurement, result, at)
                ended = last and RULES[measurement.label] is not None
                change(c, *key, phase=Phase.MEASURED if ended else Phase.COMMITTED)
            return load_experiment(c, *key)

    def record_decision(
        self,
        session_id: int,
        number: int,
        decision: Decision,
        asi: ASI,
        at: datetime,
        *,
        incumbent: str | None,
        confirmed: bool = False,
    ) -> Experiment:
        """Store the decision; refs are moved after. incumbent: the session's new one (a keep), None: unchanged.

        It is the experiment's commit too: the tested tree with its result. confirmed: the keep needs no test, as there
        is nothing to test it against (a baseline), and is the confirmed program at once.
        """
        with self._db.write() as c:
            row = locked(c, session_id, number)
            if row.phase == Phase.DECIDED:
                same = (decision.status, decision.label, codec.finite(decision.value))
                if (row.status, row.label, row.value) == same:
                    return load_experiment(c, session_id, number)
                raise StoreError(f"experiment {number} is decided already: {row.status} {row.label} {row.value}")
            if RULES[decision.label] is None:
                raise StoreError(f"experiment {number}: the label {decision.label} leaves it open and decides nothing")
            _expect(row, "a decision", Phase.PROPOSING, Phase.PROPOSED, Phase.COMMITTED, Phase.MEASURED)
            if asi.as_dict():
                values = records.pick(asi, ASI.__slots__)
                c.execute(insert(t.asi).values(session_id=session_id, number=number, **values))
            commit = row.commit_sha if incumbent is None else incumbent
            _judge(c, row, decision, phase=Phase.DECIDED, finished_at=at, commit_sha=commit)
            aborted = int(decision.label is Label.ABORTED_EARLY)
            _count(c, session_id, experiments=1, aborted=aborted, **{_COUNTERS[decision.status]: 1})
            _tally(c, row, decision)
            if incumbent is not None:
                change_session(c, session_id, incumbent=incumbent, incumbent_experiment=number)
            if confirmed and incumbent is not None:
                change(c, session_id, number, confirmed=True)
                change_session(c, session_id, confirmed=incumbent, confirmed_experiment=number)
            return load_experiment(c, session_id, number)

    def record_overhead(self, session_id: int, number: int, overhead_ms: float) -> None:
        """The experiment is settled: branch and worktree are as decided. Lazily."""
        with self._db.write_lazily() as c:
            change(c, session_id, number, overhead_ms=overhead_ms)

    # -- answers
    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime, *, again: bool = False) -> None:
        """Store an answer, in whatever phase the experiment is, and charge its cost.

        again: it was tried before, and is there if the server took it and died before it could say so.
        """
        with self._db.write() as c:
            locked(c, session_id, number)
            same = {"session_id": session_id, "number": number, "at": at, "attempt": answer.attempt}
            if again and c.execute(select(n.c.answer_index).filter_by(**same)).first() is not None:
                return
            b = t.answer_bodies.c
            said = select(b.answer_index, b.shared, b.messages).filter_by(session_id=session_id, number=number)
            stored = c.execute(said.order_by(b.answer_index)).all()
            body = records.generation_values(answer.generation)
            messages = codec.jsonable(t.redacted(answer.generation.messages))
            before = [[], *records.conversations((i, same, new or ()) for i, same, new in stored)][-1]
            shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(before, messages, strict=False))))
            index = stored[-1].answer_index + 1 if stored else 0
            key = {"session_id": session_id, "number": number, "answer_index": index}
            own = records.pick(answer, ("attempt", "model", "form", "finish", "error"))
            more = records.pick(answer.generation, (*t.HASHES, "adapter", "sampling"))
            c.execute(insert(n).values(**key, at=at, **own, **records.cost_values(answer.cost), **more))
            body |= {"messages": messages[shared:] or None, "shared": shared}
            c.execute(insert(t.answer_bodies).values(**key, **body))
            _charge(c, session_id, answer.cost)

    def charge(self, session_id: int, usd: float, bill: str) -> None:
        """Count what is part of no experiment, what machines cost; once, if the last bill is presented again."""
        key = {"session_id": session_id, "kind": _BILL}
        with self._db.write() as c:
            last = c.execute(select(t.events.c.message).filter_by(**key)).scalar()
            if last == bill:
                return
            c.execute(delete(t.events).filter_by(**key))
            c.execute(insert(t.events).values(**key, at=datetime.now(UTC), message=bill))
            _count(c, session_id, usd=usd)

    def answers(self, session_id: int, number: int) -> Sequence[Answer]:
        with self._db.read() as c:
            of_it = records.ANSWERS.where(n.c.session_id == session_id, n.c.number == number)
            rows = c.execute(of_it.order_by(n.c.answer_index)).all()
            if not rows:
                locked(c, session_id, number)
            return [answer for answer in records.answers_of(rows) if answer is not None]

    def charges_since(self, at: datetime) -> Sequence[tuple[datetime, float]]:
        charges = select(n.c.at, n.c.usd).where(n.c.at >= at, n.c.usd > 0).order_by(n.c.at)
        return [(when, usd) for when, usd in self._db.rows(charges)]

    # -- what was found out
    def experiment(self, session_id: int, number: int) -> Experiment:
        with self._db.read() as c:
            return records.load_experiment(c, session_id, number, records.ONE_FULL)

    def latest(self, session_id: int) -> Experiment | None:
        newest = records.FULL_EXPERIMENTS.where(e.c.session_id == session_id).order_by(e.c.number.desc()).limit(1)
        with self._db.read() as c:
            return next(iter(records.load_experiments(c, session_id, newest)), None)

    def unsettled(self, session_id: int) -> Sequence[Experiment]:
        """Those that are not decided and settled yet, oldest first: as many as there are slots, or some more."""
        with self._db.read() as c:
            return load_unsettled(c, session_id, records.FULL_EXPERIMENTS)

    def experiments(self, session_id: int, *, last: int | None = None, role: str | None = None) -> Sequence[Experiment]:
        """Without files and generations; ``role``: only those that it proposed."""
        wanted = records.LISTED.where(e.c.session_id == session_id).order_by(e.c.number.desc()).limit(last)
        if role is not None:  # numbers first: walking back over proposals alone is the quicker way to find them
            numbers = select(p.c.number).where(p.c.session_id == session_id, p.c.role == role).distinct()
            wanted = wanted.where(e.c.number.in_(numbers.order_by(p.c.number.desc()).limit(last)), p.c.role == role)
        with self._db.read() as c:
            return records.load_experiments(c, session_id, wanted)[::-1]

    def decided_since(self, session_id: int, at: datetime | None) -> int:
        """How many experiments were decided after a time, whatever else is under way; without the baseline."""
        decided = select(func.count()).where(e.c.session_id == session_id, e.c.number > 0, e.c.finished_at.is_not(None))
        found: int = self._db.row(decided if at is None else decided.where(e.c.finished_at > at))[0]
        return found

    def top(self, session_id: int, segment: int, count: int, maximize: bool) -> Sequence[Experiment]:
        """The best of those that may be believed: a value that was cheated for, or came with a crash, is no best."""
        believed = (e.c.value.is_not(None), e.c.status.in_((Status.KEEP, Status.DISCARD)))
        best = records.LISTED.where(e.c.session_id == session_id, e.c.segment == segment, *believed)
        ordered = best.order_by(e.c.value.desc() if maximize else e.c.value, e.c.number).limit(count)
        with self._db.read() as c:
            return records.load_experiments(c, session_id, ordered)

    def values(self, session_id: int, segment: int) -> Sequence[float]:
        # Only a decision sets a value, so the index on values answers alone; sorting here keeps the planner from
        # walking through the experiments for the sake of their order.
        there = (e.c.session_id == session_id, e.c.segment == segment, e.c.value.is_not(None))
        return [value for _, value in sorted(self._db.rows(select(e.c.number, e.c.value).where(*there)))]

    def readings(self, session_id: int, segment: int, after: float) -> Sequence[tuple[int, float, float, bool]]:
        """Of later experiments of a segment that gave a value: number, value, ``Decision.shift``, whether it was kept.

        Those on a tip of before without a shift, of an earlier version, told nothing.
        """
        of_it = (e.c.session_id == session_id, e.c.segment == segment)
        later = e.c.number > math.floor(after)  # a server would round it
        there = (*of_it, later, e.c.value.is_not(None), (e.c.label != Label.STALE_PARENT) | e.c.shift.is_not(None))
        rows = self._db.rows(select(e.c.number, e.c.value, e.c.shift, e.c.status).where(*there).order_by(e.c.number))
        return [(number, value, shift or 0.0, status is Status.KEEP) for number, value, shift, status in rows]

    def open_keeps(self, session_id: int) -> Sequence[Experiment]:
        """The chain that waits to be confirmed, oldest first."""
        chain = (e.c.session_id == session_id, e.c.status == Status.KEEP, e.c.confirmed.is_(None))
        with self._db.read() as c:
            return records.load_experiments(c, session_id, records.LISTED.where(*chain).order_by(e.c.number))

    def keeps(self, session_id: int, segment: int) -> Sequence[Experiment]:
        """All of a segment, also those that fell, oldest first."""
        kept = (e.c.session_id == session_id, e.c.segment == segment, e.c.status == Status.KEEP)
        with self._db.read() as c:
            return records.load_experiments(c, session_id, records.LISTED.where(*kept).order_by(e.c.number))

    def standing(self, session_id: int) -> frozenset[int]:
        """Numbers of the keeps that have not fallen back."""
        kept = (e.c.session_id == session_id, e.c.status == Status.KEEP, e.c.confirmed.is_not(False))
        return frozenset(number for (number,) in self._db.rows(select(e.c.number).where(*kept)))

    def trials(self, session_id: int, after: int = -1) -> Sequence[Trial]:
        """Decided experiments whose changes are known."""
        judged = (e.c.status, e.c.label, e.c.value, e.c.delta, func.coalesce(e.c.reason, ""), e.c.segment)
        wanted = (
            select(e.c.number, e.c.parent, e.c.commit_sha, p.c.changes, *judged)
            .join_from(e, p, records.CURRENT)
            .where(e.c.session_id == session_id, e.c.number > after)
            .where(e.c.status.is_not(None), p.c.changes.is_not(None))
            .order_by(e.c.number)
        )
        return [Trial(*row) for row in self._db.rows(wanted)]

    def diff(self, session_id: int, number: int) -> str:
        joined = select(t.proposal_bodies.c.diff).select_from(e).outerjoin(p, records.CURRENT)
        wanted = joined.outerjoin(t.proposal_bodies, records.BODY)
        row = self._db.row(wanted.where(e.c.session_id == session_id, e.c.number == number))
        return records.require(row, f"session {session_id} has no experiment {number}").diff or ""

    def find_duplicate(self, session_id: int, code_hash: str) -> int | None:
        """Number of the earliest experiment of the session whose proposal had this ``code_hash``."""
        first = select(func.min(p.c.number)).filter_by(session_id=session_id, code_hash=code_hash)
        number: int | None = self._db.row(first)[0]
        return number

    def totals(self, session_id: int) -> Totals:
        """Counts are of decided experiments; costs are of all answers, proposals and runs."""
        counters = select(*t.columns(t.totals, "session_id", "opened", "aborted"))
        row = self._db.row(counters.where(t.totals.c.session_id == session_id))
        return Totals(**records.require(row, f"no session {session_id}")._mapping)

    def baselines(self, session_id: int) -> int:
        with self._db.read() as c:
            return count_baselines(c, session_id)

    def stages(self, run_id: int) -> Sequence[StageResult]:
        stages = self._of_run(run_id, r.c.stages)
        known = StageResult.__dataclass_fields__.keys()  # others are a newer version's
        return [StageResult(**{name: one[name] for name in known & one.keys()}) for one in stages]

    def curve(self, run_id: int) -> Sequence[CurvePoint]:
        return self._of_run(run_id, r.c.curve) or ()

    def _of_run(self, run_id: int, column: Any) -> Any:
        return records.require(self._db.row(select(column).where(r.c.id == run_id)), f"no run {run_id}")[0]

    # -- what policies ask for
    def label_counts(self, session_id: int) -> Mapping[str, int]:
        counts = select(y.c.label, func.sum(y.c.decided)).where(y.c.session_id == session_id).group_by(y.c.label)
        return dict(self._db.rows(counts.order_by(y.c.label)))

    def role_stats(self, session_id: int) -> Mapping[str, tuple[int, int, float]]:
        with self._db.read() as c:
            return role_stats(c, session_id)

    def role_turns(self, session_id: int, last: int) -> Sequence[tuple[int, str, bool]]:
        latest = (
            select(e.c.number, p.c.role, e.c.status)
            .join_from(e, p, records.CURRENT)
            .where(e.c.session_id == session_id, e.c.status.is_not(None))
            .order_by(e.c.number.desc())
            .limit(last)
        )
        rows = reversed(self._db.rows(latest))
        return [(number, role, status is Status.KEEP) for number, role, status in rows]

    def tree(self, session_id: int, segment: int, after: int = -1) -> Sequence[Node]:
        nodes = (
            select(e.c.number, _PARENT_NUMBER, e.c.commit_sha, e.c.value, e.c.status)
            .where(e.c.session_id == session_id, e.c.number > after, e.c.segment + 0 == segment)
            .where(e.c.commit_sha.is_not(None), e.c.value.is_not(None), e.c.status.is_not(None))
            .where(e.c.label.not_in(sorted(FORBIDDEN)))
            .order_by(e.c.number)
        )
        return [Node(*row) for row in self._db.rows(nodes)]

    def add_visit(self, session_id: int, number: int) -> int:
        once_more = update(v).where(v.c.session_id == session_id, v.c.number == number).values(visits=v.c.visits + 1)
        with self._db.write_lazily() as c:
            locked(c, session_id, number)
            visits: int | None = c.execute(once_more.returning(v.c.visits)).scalar_one_or_none()
            if visits is None:
                c.execute(insert(v).values(session_id=session_id, number=number, visits=1))
        return visits or 1

    def visits(self, session_id: int) -> Mapping[int, int]:
        visited = select(v.c.number, v.c.visits).where(v.c.session_id == session_id).order_by(v.c.number)
        return dict(self._db.rows(visited))


def role_stats(c: Connection, session_id: int) -> dict[str, tuple[int, int, float]]:
    """Of each role its decided experiments, keeps and the sum of its rewards."""
    sums = [func.sum(y.c[name]) for name in ("decided", "keeps", "reward")]
    wanted = select(y.c.role, *sums).where(y.c.session_id == session_id).group_by(y.c.role).order_by(y.c.role)
    return {role: (decided, keeps, reward) for role, decided, keeps, reward in c.execute(wanted)}


def count_baselines(c: Connection, session_id: int) -> int:
    """How many segments have a baseline, their first keep. One that failed is counted as a crash, as all others are."""
    of_segments = select(func.count(e.c.segment.distinct())).filter_by(session_id=session_id, status=Status.KEEP)
    return int(c.execute(of_segments).scalar_one())


def load_unsettled(c: Connection, session_id: int, columns: Select[Any]) -> list[Experiment]:
    """Experiments that are not decided and settled, oldest first. columns: what is read of them."""
    opened = select(t.totals.c.opened).filter_by(session_id=session_id).scalar_subquery()
    late = (e.c.session_id == session_id, e.c.number > opened - _UNDER_WAY)
    left = (e.c.phase != Phase.DECIDED) | e.c.overhead_ms.is_(None)
    return records.load_experiments(c, session_id, columns.where(*late, left).order_by(e.c.number))


def change(c: Connection, session_id: int, number: int, **values: Any) -> None:
    """Change columns of an experiment. KeyError when there is none."""
    if c.execute(_CHANGE, {"of_session": session_id, "of_number": number, **values}).rowcount == 0:
        raise KeyError(f"session {session_id} has no experiment {number}")


def last_kept(c: Connection, session_id: int, *, confirmed: bool = False) -> tuple[int, str] | None:
    """Number and commit of the latest keep whose chain did not fall back, which is the tip; or that is confirmed."""
    stands = e.c.confirmed.is_(True) if confirmed else e.c.confirmed.is_not(False)
    kept = select(e.c.number, e.c.commit_sha).filter_by(session_id=session_id, status=Status.KEEP)
    row = c.execute(kept.where(e.c.commit_sha.is_not(None), stands).order_by(e.c.number.desc()).limit(1)).first()
    return None if row is None else (row.number, row.commit_sha)


def recount(c: Connection, session_id: int) -> None:
    """Make counters and tallies of a session anew from its rows; what was spent stays."""
    number, of_session = func.count().filter, e.c.session_id == session_id
    counters = {
        "opened": func.coalesce(func.max(e.c.number) + 1, 0),
        "experiments": number(e.c.phase == Phase.DECIDED),
        **{name: number(e.c.status == status) for status, name in _COUNTERS.items()},
        "aborted": number(e.c.label == Label.ABORTED_EARLY),
        "gpu_s": func.coalesce(func.sum(e.c.gpu_s), 0.0),
    }
    sums = c.execute(select(*(value.label(name) for name, value in counters.items())).where(of_session)).one()
    c.execute(update(t.totals).where(t.totals.c.session_id == session_id).values(**sums._mapping))
    role, kept = func.coalesce(p.c.role, ""), func.sum(case((e.c.status == Status.KEEP, 1), else_=0))
    rows = (
        select(e.c.session_id, role, e.c.label, func.count(), kept, func.coalesce(func.sum(e.c.reward), 0.0))
        .outerjoin_from(e, p, records.CURRENT)
        .where(of_session, e.c.status.is_not(None), e.c.label.is_not(None))
        .group_by(e.c.session_id, role, e.c.label)
    )
    c.execute(delete(y).where(y.c.session_id == session_id))
    c.execute(insert(y).from_select(["session_id", "role", "label", "decided", "keeps", "reward"], rows))


# ---------------------------------------------------------------------- parts of steps
def find_run(c: Connection, run_id: int) -> AnyRow:
    """Where a run stands. KeyError when there is none."""
    stands = [r.c[name] for name in ("id", "session_id", "number", "attempt", "finished_at", "label", "value")]
    return records.require(c.execute(select(*stands).where(r.c.id == run_id)).one_or_none(), f"no run {run_id}")


def has_ended(run: AnyRow, measurement: Measurement) -> bool:
    """Whether a run has ended already, as this says. StoreError: in another way."""
    if run.finished_at is None:
        return False
    if (run.label, run.value) != (measurement.label, codec.finite(measurement.value)):
        raise StoreError(f"run {run.id} of experiment {run.number} has ended already: {run.label} {run.value}")
    return True


def end_run(c: Connection, run: AnyRow, measurement: Measurement, result: RunResult | None, at: datetime) -> None:
    """Write down what a run gave, and count what it took of a GPU."""
    c.execute(update(r).where(r.c.id == run.id).values(finished_at=at, **records.run_values(measurement, result)))
    gpu_s = 0.0 if result is None or result.device.lower().startswith("cpu") else result.duration_s
    if gpu_s:
        c.execute(_SPEND, {"of_session": run.session_id, "of_number": run.number, "more": gpu_s})
    _count(c, run.session_id, gpu_s=gpu_s)


def locked(c: Connection, session_id: int, number: int) -> AnyRow:
    """Where the experiment stands; in a transaction that writes, nobody else can change it before its end."""
    row = c.execute(_STANDS, {"of_session": session_id, "of_number": number}).one_or_none()
    return records.require(row, f"session {session_id} has no experiment {number}")


def _same_proposal(c: Connection, row: AnyRow, proposal: Proposal, code_hash: str) -> bool:
    key = {"session_id": row.session_id, "number": row.number, "attempt": proposal.attempt}
    stored = c.execute(select(p.c.code_hash, p.c.hypothesis, p.c.policy).filter_by(**key)).one_or_none()
    given = (code_hash, t.clean(proposal.hypothesis), t.clean(proposal.policy))
    return stored is not None and tuple(stored) == given


def _count(c: Connection, session_id: int, **more: float) -> None:
    added = {name: t.totals.c[name] + value for name, value in more.items() if value}
    if added:
        c.execute(update(t.totals).where(t.totals.c.session_id == session_id).values(**added))


def _charge(c: Connection, session_id: int, cost: Cost) -> None:
    """Add a cost to the sums of the session; an unknown price adds nothing to them."""
    usd = codec.finite(cost.usd) or 0.0
    _count(c, session_id, usd=usd, tokens_in=cost.tokens_in, tokens_out=cost.tokens_out)


def _tally(c: Connection, row: AnyRow, decision: Decision) -> None:
    """Count a decision by role and label; the session's totals are held, so nobody else begins the same tally."""
    key = {"session_id": row.session_id, "number": row.number, "attempt": row.attempt}
    role = c.execute(select(p.c.role).filter_by(**key)).scalar() or ""
    reward, kept = codec.finite(decision.reward) or 0.0, int(decision.status is Status.KEEP)
    same = (y.c.session_id == row.session_id, y.c.role == role, y.c.label == decision.label)
    more = {"decided": y.c.decided + 1, "keeps": y.c.keeps + kept, "reward": y.c.reward + reward}
    if c.execute(update(y).where(*same).values(**more)).rowcount == 0:
        key = {"session_id": row.session_id, "role": role, "label": decision.label}
        c.execute(insert(y).values(**key, decided=1, keeps=kept, reward=reward))


def _judge(c: Connection, row: AnyRow, decision: Decision, **more: Any) -> None:
    """What was decided, and the reward with the attempt that earned it; an aborted run's rests on a forecast."""
    change(c, row.session_id, row.number, **records.pick(decision, records.DECISION), **more)
    censored = decision.label is Label.ABORTED_EARLY
    if row.attempt is None or (decision.reward is None and not censored):
        return
    of_it = (p.c.session_id == row.session_id, p.c.number == row.number, p.c.attempt == row.attempt)
    parts = records.pick(decision, ("reward", "reward_parts", "reward_formula"))
    c.execute(update(p).where(*of_it).values(**parts, censored=censored))


def _expect(row: AnyRow, step: str, *phases: Phase) -> None:
    if row.phase not in phases:
        expected = " or ".join(phases) or "a later one"
        raise StoreError(f"experiment {row.number} is in phase {row.phase}; for {step}, {expected} was expected")
