"""Notes, requests and events of a session: what people, commands and the daemon leave for each other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, Integer, bindparam, insert, select, update

from autoresearchd.domain.events import Event
from autoresearchd.domain.experiment import Note
from autoresearchd.ports import Control
from autoresearchd.store import codec, rows
from autoresearchd.store.tables import ControlTable, EventTable, NoteTable, SessionTable

# What every experiment asks for, made once (see ``phases``).
_UNSEEN_NOTES = rows.NOTES.where(
    NoteTable.session_id == bindparam("of_session", type_=Integer), NoteTable.seen_in.is_(None)
)


def add_note(c: Connection, session_id: int, text: str, at: datetime) -> Note:
    """A note to the policy. KeyError when there is no such session."""
    expect_session(c, session_id)
    note_id = c.execute(
        insert(NoteTable).values(session_id=session_id, text=text, created_at=at).returning(NoteTable.id)
    ).scalar_one()
    return Note(note_id, codec.text(text), at)


def unseen_notes(c: Connection, session_id: int) -> list[Note]:
    """The notes that no policy has read, oldest first."""
    return [rows.note(row) for row in c.execute(_UNSEEN_NOTES, {"of_session": session_id})]


def mark_notes_seen(c: Connection, session_id: int, note_ids: Sequence[int], number: int) -> None:
    """Write down that notes were read for an experiment."""
    n = NoteTable
    wanted = (n.session_id == session_id, n.id.in_(list(note_ids)), n.seen_in.is_(None))
    c.execute(update(n).where(*wanted).values(seen_in=number))


def add_control(c: Connection, session_id: int, kind: str, at: datetime) -> Control:
    """A request to the daemon. KeyError when there is no such session."""
    expect_session(c, session_id)
    new = insert(ControlTable).values(session_id=session_id, kind=kind, created_at=at, taken=False)
    return Control(c.execute(new.returning(ControlTable.id)).scalar_one(), kind, at)


def has_control(c: Connection, session_id: int) -> bool:
    """Whether there is a request that was not taken."""
    t = ControlTable
    return c.execute(select(t.id).where(t.session_id == session_id, t.taken.is_(False)).limit(1)).first() is not None


def take_controls(c: Connection, session_id: int) -> list[Control]:
    """The requests that were not taken, oldest first; they are from now on."""
    t = ControlTable
    pending = update(t).where(t.session_id == session_id, t.taken.is_(False)).values(taken=True)
    taken = c.execute(pending.returning(t.id, t.kind, t.created_at)).all()
    return [Control(i, kind, at) for i, kind, at in sorted(taken)]


def last_control(c: Connection, session_id: int, kinds: Sequence[str]) -> Control | None:
    """The latest request of one of these kinds, taken or not."""
    t = ControlTable
    wanted = select(t.id, t.kind, t.created_at).where(t.session_id == session_id, t.kind.in_(list(kinds)))
    row = c.execute(wanted.order_by(t.id.desc()).limit(1)).one_or_none()
    return None if row is None else Control(row.id, row.kind, row.created_at)


def log_event(c: Connection, session_id: int, event: Event) -> None:
    """Write an event down. KeyError when there is no such session."""
    expect_session(c, session_id)
    c.execute(
        insert(EventTable).values(
            session_id=session_id,
            kind=event.kind,
            at=event.at,
            experiment=event.experiment,
            message=event.message,
            data=codec.or_null(event.data),
        )
    )


def events(c: Connection, session_id: int, last: int) -> list[Event]:
    """The latest events, oldest first."""
    newest = rows.EVENTS.where(EventTable.session_id == session_id).order_by(EventTable.id.desc()).limit(last)
    return [rows.event(row) for row in c.execute(newest)][::-1]


def expect_session(c: Connection, session_id: int) -> None:
    """KeyError when there is no such session."""
    if c.execute(select(SessionTable.id).where(SessionTable.id == session_id)).first() is None:
        raise KeyError(f"no session {session_id}")
