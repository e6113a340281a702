"""What was found out, read from the journal for whoever decides, proposes or shows.

What is asked with every proposal costs the same in a long session as in a short one: tallies are counters, lists have
an end, and the tree is asked for from a number on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, insert, select, update

from autoresearchd.domain.experiment import CurvePoint, Experiment, Node, Run, StageResult, Totals, Trial
from autoresearchd.domain.labels import FORBIDDEN, Label, Status
from autoresearchd.store.journal import records
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database

e, p, r, y, v = t.experiments, t.proposals, t.runs, t.tallies, t.visits
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


class HistoryRecords:
    """The part of the store that reads experiments and what they add up to."""

    _db: Database

    def experiment(self, session_id: int, number: int) -> Experiment:
        with self._db.read() as c:
            return records.load_experiment(c, session_id, number, records.FULL_EXPERIMENTS)

    def latest(self, session_id: int) -> Experiment | None:
        with self._db.read() as c:
            number = c.execute(select(func.max(e.c.number)).where(e.c.session_id == session_id)).scalar_one()
            if number is None:
                return None
            return records.load_experiment(c, session_id, number, records.FULL_EXPERIMENTS)

    def experiments(self, session_id: int, *, last: int | None = None, role: str | None = None) -> Sequence[Experiment]:
        wanted = records.EXPERIMENTS.where(e.c.session_id == session_id).order_by(e.c.number.desc()).limit(last)
        if role is not None:  # numbers first: walking back over proposals alone is the quicker way to find them
            numbers = select(p.c.number).where(p.c.session_id == session_id, p.c.role == role).distinct()
            wanted = wanted.where(e.c.number.in_(numbers.order_by(p.c.number.desc()).limit(last)), p.c.role == role)
        with self._db.read() as c:
            return records.load_experiments(c, session_id, wanted)[::-1]

    def top(self, session_id: int, segment: int, count: int, maximize: bool) -> Sequence[Experiment]:
        """The best of those that may be believed: a value that was cheated for, or came with a crash, is no best."""
        believed = (e.c.value.is_not(None), e.c.status.in_((Status.KEEP, Status.DISCARD)))
        best = records.EXPERIMENTS.where(e.c.session_id == session_id, e.c.segment == segment, *believed)
        ordered = best.order_by(e.c.value.desc() if maximize else e.c.value, e.c.number).limit(count)
        with self._db.read() as c:
            return records.load_experiments(c, session_id, ordered)

    def values(self, session_id: int, segment: int) -> Sequence[float]:
        # Only a decision sets a value, so the index on values answers alone; sorting here keeps the planner from
        # walking through the experiments for the sake of their order.
        there = (e.c.session_id == session_id, e.c.segment == segment, e.c.value.is_not(None))
        return [value for _, value in sorted(self._db.rows(select(e.c.number, e.c.value).where(*there)))]

    def decided_runs(self, session_id: int, segment: int) -> Sequence[Run]:
        of_it = (r.c.session_id == e.c.session_id) & (r.c.number == e.c.number)
        wanted = (
            records.RUNS.join(e, of_it & (r.c.attempt == func.coalesce(e.c.attempt, 0)))
            .where(e.c.session_id == session_id, e.c.segment == segment, e.c.status.is_not(None))
            .where(r.c.label == Label.NONE, r.c.value.is_not(None))
            .order_by(r.c.number, r.c.run_index)
        )
        return [records.run_of(row) for row in self._db.rows(wanted)]

    def trials(self, session_id: int, after: int = -1) -> Sequence[Trial]:
        told = (e.c.status, e.c.label, e.c.value, e.c.delta, func.coalesce(e.c.reason, ""))
        wanted = (
            select(e.c.number, e.c.parent, e.c.commit_sha, p.c.changes, *told)
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
        first = select(func.min(p.c.number)).where(p.c.session_id == session_id, p.c.code_hash == code_hash)
        number: int | None = self._db.row(first)[0]
        return number

    def totals(self, session_id: int) -> Totals:
        """Counts are of decided experiments; costs are of all answers, proposals and runs."""
        counters = select(*t.columns(t.totals, "session_id", "opened", "aborted"))
        row = self._db.row(counters.where(t.totals.c.session_id == session_id))
        return Totals(**records.require(row, f"no session {session_id}")._mapping)

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
        there = select(e.c.number).where(e.c.session_id == session_id, e.c.number == number).with_for_update()
        once_more = update(v).where(v.c.session_id == session_id, v.c.number == number).values(visits=v.c.visits + 1)
        with self._db.write_lazily() as c:
            records.require(c.execute(there).first(), f"session {session_id} has no experiment {number}")
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
