"""Sessions in the journal: their state and segments, notes, requests, and what early abort keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Executable, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import AbortMemory, Limits, Note, Segment, Session
from autoresearchd.domain.labels import Outcome, SessionState, Status
from autoresearchd.domain.ports import Control, NewSession
from autoresearchd.domain.proposal import Suggestion
from autoresearchd.domain.quantities import counted
from autoresearchd.store.journal.records import AnyRow, pick, require, session_of
from autoresearchd.store.schema import codec
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database

e, k, s, g = t.experiments, t.confirmations, t.sessions, t.segments
_OTHER_CONDITIONS = "The conditions changed before it was decided, and runs of today compare with none of before."


def put(c: Connection, new: Executable, missing: str) -> Any:
    """Insert a row; KeyError where what it refers to is not there."""
    try:
        return c.execute(new)
    except IntegrityError as error:
        raise KeyError(missing) from error


class SessionRecords:
    """The part of the store about whole sessions."""

    _db: Database

    def create_session(self, new: NewSession, at: datetime) -> Session:
        """A new session, ``stopped`` until its daemon says otherwise; tip and confirmed are where its branch begins."""
        given = ("tag", "branch", "folder", "policy", "executor", "base_commit", "seed", "task_json")
        values = {**pick(new, given), **asdict(new.limits), "state": SessionState.STOPPED, "reason": ""}
        values |= dict.fromkeys(("incumbent", "confirmed"), new.base_commit)
        values |= {"incumbent_experiment": 0, "confirmed_experiment": 0, "started_at": at, "active_seconds": 0.0}
        with self._db.write() as c:
            try:
                session_id = c.execute(insert(s).values(**values).returning(s.c.id)).scalar_one()
            except IntegrityError as error:
                hint = f"autoresearchd resume {new.tag} goes on with it; --tag names a new one"
                raise StoreError(f"a session {new.tag!r} exists already", hint=hint) from error
            counters = {column.name: 0 for column in t.columns(t.totals, "session_id")}
            c.execute(insert(t.totals).values(session_id=session_id, **counters))
            return session_of(c.execute(select(s).filter_by(id=session_id)).one())

    def delete_session(self, tag: str, *, even_with_keeps: bool = False) -> None:
        """Delete a session with all that it found out. KeyError when there is none."""
        with self._db.write() as c:
            totals = select(s.c.id, t.totals.c.keeps).join(t.totals, t.totals.c.session_id == s.c.id)
            row = require(c.execute(totals.where(s.c.tag == tag)).one_or_none(), f"no session {tag!r}")
            if row.keeps and not even_with_keeps:
                raise StoreError(f"session {tag!r} holds {counted(row.keeps, 'kept experiment')} and is not deleted")
            c.execute(delete(s).where(s.c.id == row.id))

    def session(self, tag: str) -> Session:
        return session_of(require(self._db.row(select(s).where(s.c.tag == tag)), f"no session {tag!r}"))

    def sessions(self) -> Sequence[Session]:
        return [session_of(row) for row in self._db.rows(select(s).order_by(s.c.id))]

    def set_state(
        self, session_id: int, state: SessionState, at: datetime, *, pid: int | None, reason: str = ""
    ) -> None:
        with self._db.write() as c:
            change_session(c, session_id, state=state, heartbeat_at=at, pid=pid, reason=reason)

    def set_limits(self, session_id: int, limits: Limits) -> None:
        with self._db.write() as c:
            change_session(c, session_id, **asdict(limits))

    def set_executor(self, session_id: int, spec: str) -> None:
        with self._db.write() as c:
            change_session(c, session_id, executor=spec)

    def heartbeat(self, session_id: int, at: datetime, active_seconds: float) -> None:
        with self._db.write_lazily() as c:
            change_session(c, session_id, heartbeat_at=at, active_seconds=active_seconds)

    def record_belief(
        self, session_id: int, after: float, value: float, error: float | None, state: Mapping[str, Any] | None = None
    ) -> None:
        """What is believed of the tip's metric, with its standard error. Lazily: it follows from what is known.

        after: which experiment; half a number more: the verdict that followed on it. state: takes the place of the one
        that was stored before; None: that stays.
        """
        b, values = t.beliefs, {"value": value, "error": error, **({} if state is None else {"state": state})}
        of_it = b.c.session_id == session_id
        with self._db.write_lazily() as c:
            if state is not None:
                c.execute(update(b).where(of_it, b.c.state.is_not(None)).values(state=None))
            if c.execute(update(b).where(of_it, b.c.after == after).values(**values)).rowcount == 0:
                new = insert(b).values(session_id=session_id, after=after, **values)
                put(c, new, f"no session {session_id}")

    def belief_state(self, session_id: int) -> tuple[float, Mapping[str, Any]] | None:
        """The belief that was stored last as a whole, and after which experiment."""
        b = t.beliefs.c
        whole = select(b.after, b.state).where(b.session_id == session_id, b.state.is_not(None))
        row = self._db.row(whole.order_by(b.after.desc()).limit(1))
        return None if row is None else (row.after, row.state)

    # -- segments
    def open_segment(
        self, session_id: int, fingerprint: str, reason: str, hardware: str, at: datetime, *, falls: bool = True
    ) -> Segment:
        """falls: the keeps that are not confirmed fall, as nothing can confirm them any more."""
        opened = select(t.totals.c.opened).where(t.totals.c.session_id == session_id)
        latest = select(func.max(g.c.number)).filter_by(session_id=session_id)
        with self._db.write() as c:
            (first,) = require(c.execute(opened).one_or_none(), f"no session {session_id}")
            before = c.execute(latest).scalar_one()
            number = 0 if before is None else before + 1
            segment = Segment(number, first, fingerprint, t.clean(reason), t.clean(hardware), at)
            c.execute(insert(g).values(session_id=session_id, **asdict(segment)))
            # In the same transaction: a baseline of today's must not find a chain that nothing can confirm any more.
            open_ = update(k).where(k.c.session_id == session_id, k.c.finished_at.is_(None))
            c.execute(open_.values(finished_at=at, outcome=Outcome.UNDECIDED, reason=_OTHER_CONDITIONS))
            if falls:
                let_chain_fall(c, session_id)
            return segment

    def segment(self, session_id: int) -> Segment | None:
        segments = select(*t.columns(g, "session_id")).filter_by(session_id=session_id)
        row = self._db.row(segments.order_by(g.c.number.desc()).limit(1))
        return None if row is None else Segment(**row._mapping)

    # -- notes
    def add_note(self, session_id: int, text: str, at: datetime) -> Note:
        with self._db.write() as c:
            new = insert(t.notes).values(session_id=session_id, text=text, created_at=at).returning(t.notes.c.id)
            return Note(put(c, new, f"no session {session_id}").scalar_one(), t.clean(text), at)

    def unseen_notes(self, session_id: int) -> Sequence[Note]:
        unseen = select(*t.columns(t.notes, "session_id")).filter_by(session_id=session_id, seen_in=None)
        return [Note(**row._mapping) for row in self._db.rows(unseen.order_by(t.notes.c.id))]

    def mark_notes_seen(self, session_id: int, note_ids: Sequence[int], number: int) -> None:
        n = t.notes.c
        if note_ids:
            wanted = (n.session_id == session_id, n.id.in_(list(note_ids)), n.seen_in.is_(None))
            with self._db.write() as c:
                c.execute(update(t.notes).where(*wanted).values(seen_in=number))

    # -- proposals from outside
    def add_suggestion(self, session_id: int, new: Suggestion, at: datetime) -> int:
        """Have a proposal wait for an experiment; its id, by which ``record_proposal`` takes it."""
        values = pick(new, ("files", "parent", "said", "proposer"))
        row = insert(t.suggestions).values(session_id=session_id, created_at=at, **values)
        with self._db.write() as c:
            return int(put(c, row.returning(t.suggestions.c.id), f"no session {session_id}").scalar_one())

    def waiting_suggestions(self, session_id: int) -> int:
        """How many wait for an experiment."""
        waiting = select(func.count()).select_from(t.suggestions).filter_by(session_id=session_id, taken_in=None)
        return int(self._db.row(waiting)[0])

    def next_suggestion(self, session_id: int) -> Suggestion | None:
        """The one that has waited longest."""
        wanted = [t.suggestions.c[each.name] for each in fields(Suggestion)]
        waiting = select(*wanted).filter_by(session_id=session_id, taken_in=None).order_by(t.suggestions.c.id)
        row = self._db.row(waiting.limit(1))
        return None if row is None else Suggestion(**row._mapping)

    # -- requests
    def add_control(self, session_id: int, kind: str, at: datetime) -> Control:
        with self._db.write() as c:
            new = insert(t.controls).values(session_id=session_id, kind=kind, created_at=at, taken=False)
            return Control(put(c, new.returning(t.controls.c.id), f"no session {session_id}").scalar_one(), kind, at)

    def take_controls(self, session_id: int) -> Sequence[Control]:
        """Asked often and answered rarely: the write lock is taken only when there is something to take."""
        r = t.controls.c
        pending = (r.session_id == session_id, r.taken.is_(False))
        if self._db.row(select(r.id).where(*pending).limit(1)) is None:
            return []
        take = update(t.controls).where(*pending).values(taken=True).returning(r.id, r.kind, r.created_at)
        with self._db.write() as c:
            return [Control(*row) for row in sorted(c.execute(take).all())]

    def last_control(self, session_id: int, kinds: Sequence[str]) -> Control | None:
        r = t.controls.c
        asked = select(r.id, r.kind, r.created_at).where(r.session_id == session_id, r.kind.in_(kinds))
        row = self._db.row(asked.order_by(r.id.desc()).limit(1))
        return None if row is None else Control(*row)

    # -- early abort
    def record_look(self, run_id: int, details: Mapping[str, Any]) -> None:
        figures = {name: codec.finite(details.get(name)) for name in ("forecast", "probability")}
        progress = codec.finite(details.get("progress")) or 0.0
        new = insert(t.abort_checks).values(run_id=run_id, progress=progress, **figures, details=details)
        with self._db.write_lazily() as c:
            put(c, new, f"no run {run_id}")

    def looks(self, run_id: int) -> Sequence[Mapping[str, Any]]:
        looks = select(t.abort_checks.c.details).filter_by(run_id=run_id).order_by(t.abort_checks.c.id)
        return [row.details for row in self._db.rows(looks)]

    def remember_aborts(self, session_id: int, memory: AbortMemory) -> None:
        m = t.abort_memories
        values: dict[str, Any] = {"figures": memory.figures}
        with self._db.write_lazily() as c:
            known = c.execute(select(m.c.segment).filter_by(session_id=session_id)).scalar_one_or_none()
            if memory.state is not None or known != memory.segment:  # a state of another segment is forgotten
                number = -1 if known is None and memory.state is None else memory.number
                values |= {"segment": memory.segment, "number": number, "state": memory.state}
            if known is not None:
                c.execute(update(m).where(m.c.session_id == session_id).values(**values))
            else:
                put(c, insert(m).values(session_id=session_id, **values), f"no session {session_id}")

    def abort_memory(self, session_id: int) -> AbortMemory | None:
        row = self._db.row(select(t.abort_memories).filter_by(session_id=session_id))
        return None if row is None else AbortMemory(row.segment, row.number, row.figures, row.state)


def change_session(c: Connection, session_id: int, **values: Any) -> None:
    """Change columns of a session. KeyError when there is none."""
    if c.execute(update(s).where(s.c.id == session_id).values(**values)).rowcount == 0:
        raise KeyError(f"no session {session_id}")


def let_chain_fall(c: Connection, session_id: int, to: AnyRow | None = None) -> None:
    """All that was kept since an experiment (the confirmed one) and is not confirmed falls back to it."""
    chain = (e.c.session_id == session_id, e.c.status == Status.KEEP, e.c.confirmed.is_(None))
    tip: tuple[Any, Any] = (s.c.confirmed, s.c.confirmed_experiment) if to is None else (to.commit_sha, to.number)
    fallen = update(e).where(*chain, e.c.number > (-1 if to is None else to.number)).values(confirmed=False)
    if c.execute(fallen).rowcount:
        change_session(c, session_id, incumbent=tip[0], incumbent_experiment=tip[1])
