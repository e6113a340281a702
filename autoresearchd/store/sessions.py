"""Writing sessions and segments, inside one transaction of the store; ``repository`` opens it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from autoresearchd.domain.experiment import Limits, Segment, Session
from autoresearchd.domain.labels import SessionState
from autoresearchd.domain.quantities import counted
from autoresearchd.errors import StoreError
from autoresearchd.ports import NewSession
from autoresearchd.store import rows
from autoresearchd.store.tables import SegmentTable, SessionTable, TotalsTable


def create(c: Connection, new: NewSession, at: datetime) -> Session:
    """A new session, ``stopped``; StoreError where one of that tag is there."""
    try:
        session_id = c.execute(
            insert(SessionTable)
            .values(
                tag=new.tag,
                branch=new.branch,
                folder=new.folder,
                state=SessionState.STOPPED,
                reason="",
                policy=new.policy,
                executor=new.executor,
                base_commit=new.base_commit,
                incumbent=new.base_commit,
                incumbent_experiment=0,
                seed=new.seed,
                started_at=at,
                active_seconds=0.0,
                task_json=new.task_json,
                **limits(new.limits),
            )
            .returning(SessionTable.id)
        ).scalar_one()
    except IntegrityError as error:
        raise StoreError(
            f"a session {new.tag!r} exists already",
            mend=f"autoresearchd resume {new.tag} goes on with it; --tag names a new one",
        ) from error
    zero = {column.name: 0 for column in TotalsTable.__table__.columns if column.name != "session_id"}
    c.execute(insert(TotalsTable).values(session_id=session_id, **zero))
    return rows.session(c.execute(rows.SESSIONS.where(SessionTable.id == session_id)).one())


def remove(c: Connection, tag: str, *, whatever: bool = False) -> None:
    """Delete a session that kept nothing, or whatever it kept. KeyError when there is none."""
    row = c.execute(
        select(SessionTable.id, TotalsTable.keeps)
        .join(TotalsTable, TotalsTable.session_id == SessionTable.id)
        .where(SessionTable.tag == tag)
    ).one_or_none()
    if row is None:
        raise KeyError(f"no session {tag!r}")
    if row.keeps and not whatever:
        raise StoreError(f"session {tag!r} holds {counted(row.keeps, 'kept experiment')} and is not deleted")
    c.execute(delete(SessionTable).where(SessionTable.id == row.id))


def open_segment(c: Connection, session_id: int, fingerprint: str, reason: str, hardware: str, at: datetime) -> Segment:
    """The next segment, which begins with the next experiment. KeyError when there is no such session."""
    first = c.execute(
        select(TotalsTable.opened).where(TotalsTable.session_id == session_id).with_for_update()
    ).scalar_one_or_none()
    if first is None:
        raise KeyError(f"no session {session_id}")
    number = c.execute(
        select(func.coalesce(func.max(SegmentTable.number), -1) + 1).where(SegmentTable.session_id == session_id)
    ).scalar_one()
    segment = Segment(number, first, fingerprint, reason, hardware, at)
    c.execute(
        insert(SegmentTable).values(
            session_id=session_id,
            number=number,
            first=first,
            fingerprint=fingerprint,
            reason=reason,
            hardware=hardware,
            started_at=at,
        )
    )
    return segment


def limits(of: Limits) -> dict[str, float | None]:
    """Columns of a session's limits."""
    return {"max_experiments": of.max_experiments, "max_seconds": of.max_seconds, "max_usd": of.max_usd}
