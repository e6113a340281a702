"""The store behind ``ports.Store``: each method is one transaction on a database that SQLAlchemy can open by URL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, func, select, update

from autoresearchd.domain.events import Event
from autoresearchd.domain.experiment import (
    AbortMemory,
    CurvePoint,
    Decision,
    Experiment,
    Limits,
    Measurement,
    Node,
    Note,
    Run,
    RunResult,
    Segment,
    Session,
    StageResult,
    Totals,
    Trial,
)
from autoresearchd.domain.labels import Label, SessionState, Status
from autoresearchd.domain.proposal import ASI, Answer, Proposal
from autoresearchd.errors import StoreDamaged
from autoresearchd.ports import Control, NewSession
from autoresearchd.store import answers, codec, looks, messages, migrate, phases, rows, sessions, sums
from autoresearchd.store.database import Database, sqlite_url
from autoresearchd.store.tables import (
    ExperimentTable,
    ProposalBodyTable,
    ProposalTable,
    RunTable,
    SegmentTable,
    SessionTable,
    TotalsTable,
)
from autoresearchd.store.versions import SqlShelf

# What every experiment asks for, made once (see ``phases``).
_E, _P = ExperimentTable, ProposalTable
_OF_SESSION = bindparam("of_session", type_=Integer)
_SET_OVERHEAD = update(_E.__table__).where(_E.session_id == _OF_SESSION, _E.number == bindparam("of_number"))  # type: ignore[arg-type]
_BEST = rows.EXPERIMENTS.where(
    _E.session_id == _OF_SESSION,
    _E.segment == bindparam("of_segment"),
    _E.value.is_not(None),
    _E.status.in_((Status.KEEP, Status.DISCARD)),
).limit(bindparam("most", type_=Integer))
_HIGHEST, _LOWEST = _BEST.order_by(_E.value.desc(), _E.number), _BEST.order_by(_E.value, _E.number)
_FIRST_OF_HASH = select(func.min(_P.number)).where(_P.session_id == _OF_SESSION, _P.code_hash == bindparam("code_hash"))
_TOTALS = rows.TOTALS.where(TotalsTable.session_id == _OF_SESSION)


class SqlStore(SqlShelf):
    """The journal in an SQL database. Open it with ``SqlStore.open``; close it, or use it in a ``with`` block."""

    def __init__(self, database: Database) -> None:
        self._db = database

    @classmethod
    def open(cls, url: str, *, busy_timeout: float = 10.0) -> SqlStore:
        """The store at ``url``: created when missing, upgraded (after a backup) when an older version wrote it.

        Raises SchemaTooNew when a newer version wrote it.
        """
        migrate.upgrade(url, busy_timeout=busy_timeout)
        database = Database(url, busy_timeout=busy_timeout)
        database.hold()
        return cls(database)

    @classmethod
    def open_readonly(cls, path: Path) -> SqlStore:
        """The store in an SQLite file as it is, never changed; read, an older version's is a StoreError."""
        return cls(Database(sqlite_url(path), readonly=True))

    def __enter__(self) -> SqlStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refuse(self, error: StoreDamaged) -> None:
        """Write nothing from now on, and raise the error where that is asked for."""
        self._db.refusal = error

    # -- sessions
    def create_session(self, new: NewSession, at: datetime) -> Session:
        """A new session, ``stopped`` until its daemon says otherwise; its incumbent is where its branch begins."""
        with self._db.write() as c:
            return sessions.create(c, new, at)

    def delete_session(self, tag: str) -> None:
        with self._db.write() as c:
            sessions.remove(c, tag)

    def remove_session(self, tag: str) -> None:
        """Delete a session with all that it found out. KeyError when there is none."""
        with self._db.write() as c:
            sessions.remove(c, tag, whatever=True)

    def session(self, tag: str) -> Session:
        with self._db.read() as c:
            row = c.execute(rows.SESSIONS.where(SessionTable.tag == tag)).one_or_none()
            if row is None:
                raise KeyError(f"no session {tag!r}")
            return rows.session(row)

    def sessions(self) -> Sequence[Session]:
        with self._db.read() as c:
            return [rows.session(row) for row in c.execute(rows.SESSIONS)]

    def set_state(
        self, session_id: int, state: SessionState, at: datetime, *, pid: int | None, reason: str = ""
    ) -> None:
        with self._db.write() as c:
            _change_session(c, session_id, state=state, heartbeat_at=at, pid=pid, reason=reason)

    def set_limits(self, session_id: int, limits: Limits) -> None:
        with self._db.write() as c:
            _change_session(c, session_id, **sessions.limits(limits))

    def set_executor(self, session_id: int, spec: str) -> None:
        """Where runs run from now on, as in ``--executor``, with the sandbox."""
        with self._db.write() as c:
            _change_session(c, session_id, executor=spec)

    def heartbeat(self, session_id: int, at: datetime, active_seconds: float) -> None:
        with self._db.write_lazily() as c:
            _change_session(c, session_id, heartbeat_at=at, active_seconds=active_seconds)

    def open_segment(self, session_id: int, fingerprint: str, reason: str, hardware: str, at: datetime) -> Segment:
        with self._db.write() as c:
            return sessions.open_segment(c, session_id, fingerprint, reason, hardware, at)

    def segment(self, session_id: int) -> Segment | None:
        latest = (
            rows.SEGMENTS.where(SegmentTable.session_id == session_id).order_by(SegmentTable.number.desc()).limit(1)
        )
        with self._db.read() as c:
            row = c.execute(latest).one_or_none()
        return None if row is None else rows.segment(row)

    # -- one experiment, in the order of its phases
    def open_experiment(self, session_id: int, *, parent: str, segment: int, at: datetime) -> Experiment:
        with self._db.write_lazily() as c:
            return phases.open_experiment(c, session_id, parent, segment, at)

    def record_proposal(
        self, session_id: int, number: int, proposal: Proposal, *, diff: str, code_hash: str
    ) -> Experiment:
        with self._db.write() as c:
            return phases.record_proposal(c, session_id, number, proposal, diff, code_hash)

    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime) -> None:
        with self._db.write() as c:
            answers.record(c, session_id, number, answer, at)

    def answers(self, session_id: int, number: int) -> Sequence[Answer]:
        with self._db.read() as c:
            return answers.of_experiment(c, session_id, number)

    def spent_since(self, at: datetime) -> float:
        with self._db.read() as c:
            return answers.spent_since(c, at)

    def charges_since(self, at: datetime) -> Sequence[tuple[datetime, float]]:
        with self._db.read() as c:
            return answers.charges_since(c, at)

    def record_commit(self, session_id: int, number: int, commit: str) -> Experiment:
        with self._db.write_lazily() as c:
            return phases.record_commit(c, session_id, number, commit)

    def open_run(self, session_id: int, number: int, seed: int, at: datetime, *, of: int | None = None) -> Run:
        with self._db.write_lazily() as c:
            return phases.open_run(c, session_id, number, seed, at, of)

    def close_run(
        self, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime, *, last: bool
    ) -> Experiment:
        with self._db.write() as c:
            return phases.close_run(c, run_id, measurement, result, at, last)

    def record_decision(
        self,
        session_id: int,
        number: int,
        decision: Decision,
        asi: ASI,
        at: datetime,
        *,
        incumbent: str | None,
        fallen: Mapping[int, Decision] | None = None,
    ) -> Experiment:
        with self._db.write() as c:
            return phases.record_decision(c, session_id, number, decision, asi, at, incumbent, fallen or {})

    def record_overhead(self, session_id: int, number: int, overhead_ms: float) -> None:
        key = {"of_session": session_id, "of_number": number}
        with self._db.write_lazily() as c:
            if c.execute(_SET_OVERHEAD, {**key, "overhead_ms": overhead_ms}).rowcount == 0:
                raise KeyError(f"session {session_id} has no experiment {number}")

    # -- reading
    def experiment(self, session_id: int, number: int) -> Experiment:
        with self._db.read() as c:
            return rows.load_one(c, session_id, number, full=True)

    def latest(self, session_id: int) -> Experiment | None:
        e = ExperimentTable
        with self._db.read() as c:
            number = c.execute(select(func.max(e.number)).where(e.session_id == session_id)).scalar_one()
            return None if number is None else rows.load_one(c, session_id, number, full=True)

    def experiments(self, session_id: int, *, last: int | None = None, role: str | None = None) -> Sequence[Experiment]:
        e, p = ExperimentTable, ProposalTable
        wanted = rows.EXPERIMENTS.where(e.session_id == session_id).order_by(e.number.desc()).limit(last)
        if role is not None:  # numbers first: walking back over proposals alone is the quicker way to find them
            numbers = select(p.number).where(p.session_id == session_id, p.role == role).distinct()
            wanted = wanted.where(e.number.in_(numbers.order_by(p.number.desc()).limit(last)), p.role == role)
        with self._db.read() as c:
            return rows.load_many(c, session_id, wanted)[::-1]

    def top(self, session_id: int, segment: int, count: int, maximize: bool) -> Sequence[Experiment]:
        """The best of those that may be believed: a value that was cheated for, or came with a crash, is no best."""
        key = {"of_session": session_id, "of_segment": segment, "most": count}
        with self._db.read() as c:
            return rows.load_many(c, session_id, _HIGHEST if maximize else _LOWEST, key)

    def values(self, session_id: int, segment: int) -> Sequence[float]:
        # Only a decision sets a value, so the index on values answers alone; sorting here keeps the planner from
        # walking through the experiments for the sake of their order.
        e = ExperimentTable
        wanted = select(e.number, e.value).where(e.session_id == session_id, e.segment == segment, e.value.is_not(None))
        with self._db.read() as c:
            found = sorted(c.execute(wanted).all(), key=itemgetter(0))
        return [value for _, value in found if value is not None]

    def decided_runs(self, session_id: int, segment: int) -> Sequence[Run]:
        e = ExperimentTable
        join = (RunTable.session_id == e.session_id) & (RunTable.number == e.number)
        wanted = (
            rows.RUNS.join(e, join & (RunTable.attempt == func.coalesce(e.attempt, 0)))
            .where(e.session_id == session_id, e.segment == segment, e.status.is_not(None))
            .where(RunTable.label == Label.NONE, RunTable.value.is_not(None))
            .order_by(RunTable.number, RunTable.run_index)
        )
        with self._db.read() as c:
            return [rows.run(row) for row in c.execute(wanted)]

    def trials(self, session_id: int, after: int = -1) -> Sequence[Trial]:
        wanted = rows.TRIALS.where(ExperimentTable.session_id == session_id, ExperimentTable.number > after)
        with self._db.read() as c:
            return rows.trials(c.execute(wanted).all())

    def diff(self, session_id: int, number: int) -> str:
        """Diff of the current proposal; empty where the experiment has none."""
        e, b = ExperimentTable, ProposalBodyTable
        wanted = (
            select(b.diff)
            .select_from(e)
            .outerjoin(b, (b.session_id == e.session_id) & (b.number == e.number) & (b.attempt == e.attempt))
            .where(e.session_id == session_id, e.number == number)
        )
        with self._db.read() as c:
            row = c.execute(wanted).one_or_none()
        if row is None:
            raise KeyError(f"session {session_id} has no experiment {number}")
        return "" if row.diff is None else codec.unpack_text(row.diff)

    def find_duplicate(self, session_id: int, code_hash: str) -> int | None:
        with self._db.read() as c:
            return c.execute(_FIRST_OF_HASH, {"of_session": session_id, "code_hash": code_hash}).scalar_one()

    def totals(self, session_id: int) -> Totals:
        """Counts are of decided experiments; costs are of all answers, proposals and runs."""
        with self._db.read() as c:
            row = c.execute(_TOTALS, {"of_session": session_id}).one_or_none()
        if row is None:
            raise KeyError(f"no session {session_id}")
        return rows.totals(row)

    # -- what policies ask for
    def label_counts(self, session_id: int) -> Mapping[str, int]:
        with self._db.read() as c:
            return sums.label_counts(c, session_id)

    def role_stats(self, session_id: int) -> Mapping[str, tuple[int, int, float]]:
        with self._db.read() as c:
            return sums.role_stats(c, session_id)

    def role_turns(self, session_id: int, last: int) -> Sequence[tuple[int, str, bool]]:
        with self._db.read() as c:
            return sums.role_turns(c, session_id, last)

    def tree(self, session_id: int, segment: int, after: int = -1) -> Sequence[Node]:
        with self._db.read() as c:
            return sums.tree(c, session_id, segment, after)

    def add_visit(self, session_id: int, number: int) -> int:
        with self._db.write_lazily() as c:
            return sums.add_visit(c, session_id, number)

    def visits(self, session_id: int) -> Mapping[int, int]:
        with self._db.read() as c:
            return sums.visits(c, session_id)

    def stages(self, run_id: int) -> Sequence[StageResult]:
        with self._db.read() as c:
            row = c.execute(select(RunTable.stages).where(RunTable.id == run_id)).one_or_none()
        if row is None:
            raise KeyError(f"no run {run_id}")
        return rows.stages_of(row.stages)

    def curve(self, run_id: int) -> Sequence[CurvePoint]:
        with self._db.read() as c:
            row = c.execute(select(RunTable.curve).where(RunTable.id == run_id)).one_or_none()
        if row is None:
            raise KeyError(f"no run {run_id}")
        return codec.unpack_curve(row.curve)

    # -- early abort
    def record_look(self, run_id: int, details: Mapping[str, Any]) -> None:
        with self._db.write_lazily() as c:
            looks.add(c, run_id, details)

    def looks(self, run_id: int) -> Sequence[Mapping[str, Any]]:
        with self._db.read() as c:
            return looks.of_run(c, run_id)

    def remember_aborts(self, session_id: int, memory: AbortMemory) -> None:
        with self._db.write_lazily() as c:
            looks.remember(c, session_id, memory)

    def abort_memory(self, session_id: int) -> AbortMemory | None:
        with self._db.read() as c:
            return looks.recall(c, session_id)

    # -- notes, controls, events
    def add_note(self, session_id: int, text: str, at: datetime) -> Note:
        with self._db.write() as c:
            return messages.add_note(c, session_id, text, at)

    def unseen_notes(self, session_id: int) -> Sequence[Note]:
        with self._db.read() as c:
            return messages.unseen_notes(c, session_id)

    def mark_notes_seen(self, session_id: int, note_ids: Sequence[int], number: int) -> None:
        if note_ids:
            with self._db.write() as c:
                messages.mark_notes_seen(c, session_id, note_ids, number)

    def add_control(self, session_id: int, kind: str, at: datetime) -> Control:
        with self._db.write() as c:
            return messages.add_control(c, session_id, kind, at)

    def take_controls(self, session_id: int) -> Sequence[Control]:
        """Asked often and answered rarely: the write lock is taken only when there is something to take."""
        with self._db.read() as c:
            if not messages.has_control(c, session_id):
                return []
        with self._db.write() as c:
            return messages.take_controls(c, session_id)

    def last_control(self, session_id: int, kinds: Sequence[str]) -> Control | None:
        """The latest request of one of these kinds, taken or not."""
        with self._db.read() as c:
            return messages.last_control(c, session_id, kinds)

    def log_event(self, session_id: int, event: Event) -> None:
        with self._db.write_lazily() as c:
            messages.log_event(c, session_id, event)

    def events(self, session_id: int, *, last: int = 100) -> Sequence[Event]:
        with self._db.read() as c:
            return messages.events(c, session_id, last)

    # -- upkeep
    def backup(self, target: Path) -> None:
        self._db.copy_to(target)

    def close(self) -> None:
        self._db.close()


def _change_session(c: Connection, session_id: int, **values: Any) -> None:
    if c.execute(update(SessionTable).where(SessionTable.id == session_id).values(**values)).rowcount == 0:
        raise KeyError(f"no session {session_id}")
