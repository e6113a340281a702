"""What a page and a report tell beyond the commands: all edits with their diffs, and what the slots did when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import case, select

from autoresearchd.domain.experiment import CurvePoint
from autoresearchd.domain.labels import Label
from autoresearchd.store.journal import records
from autoresearchd.store.reader import Reader, find_session
from autoresearchd.store.schema import tables as t

e, p, b, r = t.experiments, t.proposals, t.proposal_bodies, t.runs


class Edit(NamedTuple):
    """The current proposal of an experiment; changes: constant → new value, empty where it did more than that.

    reason: of the decision; seconds: that proposing took.
    """

    number: int
    hypothesis: str
    changes: Mapping[str, Any]
    diff: str
    seconds: float
    reason: str = ""


class SlotRun(NamedTuple):
    """A run of an experiment or of a confirmation. attempt: −1 − n of confirmation n; end None: it goes on."""

    number: int
    attempt: int
    start: datetime
    end: datetime | None
    label: Label
    host: str
    device: str


class Origin(NamedTuple):
    """How a session was begun."""

    base_commit: str
    executor: str
    seed: int
    hardware: str


class StoryReader(Reader):
    """A reader that knows more, and takes longer for it. Unknown session: KeyError."""

    def edits(self, tag: str) -> list[Edit]:
        """The proposals of a session in order of number, those of repaired ones as they were at last."""
        columns = (p.c.number, p.c.hypothesis, p.c.changes, b.c.diff, p.c.seconds, e.c.reason)
        current = select(*columns).join(e, records.CURRENT).outerjoin(b, records.BODY)
        rows = self._db.rows(current.where(e.c.session_id == self._id(tag)).order_by(p.c.number))
        return [Edit(n, text, changes, diff or "", took, why or "") for n, text, changes, diff, took, why in rows]

    def slot_runs(self, tag: str, last: int | None = None) -> list[SlotRun]:
        """The runs of a session in order of their beginning; last: only so many of the newest."""
        columns = (r.c.number, r.c.attempt, r.c.started_at, r.c.finished_at, r.c.label, r.c.host, r.c.device)
        of_it = select(*columns).where(r.c.session_id == self._id(tag))
        newest = self._db.rows(of_it.order_by(r.c.id.desc()).limit(last))
        return sorted((SlotRun(*row) for row in newest[::-1]), key=lambda run: run.start)

    def curves(self, tag: str, number: int) -> list[tuple[int, Sequence[CurvePoint], float | None]]:
        """The learning curves of the runs of an experiment's own program with their seeds.

        And how many seconds it took, of one that was ended early or failed.
        """
        took = case((r.c.label != Label.NONE, r.c.duration_s))
        of_it = select(r.c.seed, r.c.curve, took).filter_by(session_id=self._id(tag), number=number)
        own = of_it.where(r.c.program.is_(None), r.c.attempt >= 0, r.c.curve.is_not(None)).order_by(r.c.run_index)
        return [(seed, curve, took) for seed, curve, took in self._db.rows(own)]

    def curve(self, tag: str, number: int) -> Sequence[CurvePoint]:
        """The last one of these; empty where there is none."""
        return next((curve for _, curve, _ in reversed(self.curves(tag, number)) if curve), ())

    def files(self, tag: str, number: int) -> Mapping[str, str]:
        """The new text of each file that an experiment changed, by its path in the task's folder."""
        current = select(b.c.files).join(p, records.BODY).join(e, records.CURRENT)
        row = self._db.row(current.where(e.c.session_id == self._id(tag), e.c.number == number))
        return row.files or {} if row else {}

    def origin(self, tag: str) -> Origin:
        g = t.segments.c
        with self._db.read() as c:
            session = find_session(c, tag)
            latest = select(g.hardware).where(g.session_id == session.id).order_by(g.number.desc()).limit(1)
            hardware = c.execute(latest).scalar()
        return Origin(session.base_commit, session.executor, session.seed, hardware or "")

    def _id(self, tag: str) -> int:
        with self._db.read() as c:
            return int(find_session(c, tag).id)
