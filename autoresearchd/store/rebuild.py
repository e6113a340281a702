"""A database under construction: a backup, the rows salvaged from a damaged file, and what others know of the rest.

It is built in a file of its own; nothing of it is used before it passes every check.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, literal, select, update

from autoresearchd.domain.experiment import Decision, Experiment, Measurement, RunResult, Session
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.ports import NewSession
from autoresearchd.store import migrate, phases, rows, sums
from autoresearchd.store.database import Database, sqlite_url
from autoresearchd.store.model_tables import AnswerTable
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.salvage import Salvage, Values
from autoresearchd.store.tables import (
    AsiTable,
    Base,
    ExperimentTable,
    ProposalBodyTable,
    ProposalTable,
    RunTable,
    SegmentTable,
    SessionTable,
    TotalsTable,
)

UNKNOWN = ""
"""Fingerprint of a segment whose conditions are not known: whatever runs next is not compared with it."""

_E, _P, _B, _R, _A = ExperimentTable, ProposalTable, ProposalBodyTable, RunTable, AnswerTable


class Draft:
    """The new database. Use it in a ``with`` block; ``finish`` makes it a single file."""

    def __init__(self, path: Path, base: Path | None) -> None:
        self.path = path
        if base is not None:
            shutil.copyfile(base, path)
        migrate.upgrade(sqlite_url(path))
        self._db = Database(sqlite_url(path))
        self.store = SqlStore(self._db)

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def merge(self, found: Salvage) -> None:
        """Lay salvaged rows over those of the backup: they are newer."""
        with closing(sqlite3.connect(self.path)) as db, db:
            self._drop_replaced_sessions(db, found.rows.get("session", {}))
            for table in Base.metadata.sorted_tables:
                keyed_by_id = "id" in table.columns
                for rowid, values in sorted(found.rows.get(table.name, {}).items()):
                    # Row ids stay: they tell the order in which experiments were opened.
                    row = values if keyed_by_id else {"rowid": rowid, **values}
                    names = ", ".join(f'"{name}"' for name in row)
                    marks = ", ".join("?" * len(row))
                    # Names are ours, from the tables' own definition.
                    statement = f'INSERT OR REPLACE INTO "{table.name}" ({names}) VALUES ({marks})'  # noqa: S608
                    db.execute(statement, list(row.values()))

    def _drop_replaced_sessions(self, db: sqlite3.Connection, found: dict[int, Values]) -> None:
        """A session that failed at once is deleted, and its id given to the next: its rows are not that one's."""
        db.execute("PRAGMA foreign_keys=ON")
        for row in found.values():
            db.execute(
                "DELETE FROM session WHERE (id = ? OR tag = ?) AND NOT (id = ? AND tag = ? AND started_at = ?)",
                (row["id"], row["tag"], row["id"], row["tag"], row["started_at"]),
            )
        db.commit()
        db.execute("PRAGMA foreign_keys=OFF")

    # -- what is there
    def numbers(self, session_id: int) -> dict[int, tuple[str, str | None]]:
        """(phase, commit) of the experiments whose rows are there, by number."""
        wanted = select(_E.number, _E.phase, _E.commit_sha).where(_E.session_id == session_id).order_by(_E.number)
        with self._db.read() as c:
            return {number: (phase, commit) for number, phase, commit in c.execute(wanted)}

    def opened(self, session_id: int) -> int:
        """How many numbers were handed out, as far as it is written down."""
        with self._db.read() as c:
            found = c.execute(select(TotalsTable.opened).where(TotalsTable.session_id == session_id)).scalar()
            return found or 0

    def without_proposal(self, session_id: int) -> list[int]:
        """Experiments whose proposal, or its long part, could not be read."""
        whole = and_(_P.session_id == _E.session_id, _P.number == _E.number, _P.attempt == _E.attempt)
        body = and_(_B.session_id == _E.session_id, _B.number == _E.number, _B.attempt == _E.attempt)
        wanted = (
            select(_E.number)
            .outerjoin(_P, whole)
            .outerjoin(_B, body)
            .where(_E.session_id == session_id, _E.attempt.is_not(None), _P.number.is_(None) | _B.number.is_(None))
        )
        with self._db.read() as c:
            return list(c.execute(wanted).scalars())

    def without_runs(self, session_id: int) -> list[int]:
        """Experiments with a value whose runs could not be read."""
        current = _R.attempt == func.coalesce(_E.attempt, 0)
        run = and_(_R.session_id == _E.session_id, _R.number == _E.number, current)
        wanted = select(_E.number).outerjoin(_R, run).where(_E.session_id == session_id, _E.value.is_not(None))
        with self._db.read() as c:
            return list(c.execute(wanted.where(_R.id.is_(None))).scalars())

    def segment_of(self, session_id: int, number: int) -> int:
        """The segment that a number falls into."""
        s = SegmentTable
        wanted = select(func.max(s.number)).where(s.session_id == session_id, s.first <= number)
        with self._db.read() as c:
            return c.execute(wanted).scalar() or 0

    def first_of_segment(self, session_id: int, number: int) -> bool:
        """Whether an experiment is its segment's baseline."""
        s = SegmentTable
        with self._db.read() as c:
            found = c.execute(select(s.number).where(s.session_id == session_id, s.first == number)).first()
        return found is not None or number == 0

    # -- what is put in
    def create_session(self, new: NewSession, at: datetime) -> Session:
        """A session of which only git is left."""
        session = self.store.create_session(new, at)
        self.store.open_segment(session.id, UNKNOWN, "start", "", at)
        return session

    def ensure_experiment(self, session_id: int, number: int, parent: str, at: datetime) -> Experiment:
        """The experiment as it stands; a bare row where there was none, with the last proposal that is whole."""
        key = {"session_id": session_id, "number": number}
        body = and_(_B.session_id == _P.session_id, _B.number == _P.number, _B.attempt == _P.attempt)
        attempts = select(func.max(_P.attempt)).join(_B, body).where(_P.session_id == session_id, _P.number == number)
        with self._db.write() as c:
            attempt = c.execute(attempts).scalar()
            stands = select(_E.attempt, _E.phase).where(_E.session_id == session_id, _E.number == number)
            there = c.execute(stands).first()
            if there is None:
                bare = {"segment": 0, "phase": Phase.PROPOSING, "parent": parent, "started_at": at, "gpu_s": 0.0}
                c.execute(insert(_E).values(**key, **bare, attempt=attempt))
            elif there.attempt != attempt:
                self._make_current(c, session_id, number, attempt, decided=there.phase == Phase.DECIDED)
            return rows.load_one(c, session_id, number, full=True)

    def add_proposal(
        self, session_id: int, number: int, proposal: Proposal, *, diff: str, code_hash: str
    ) -> Experiment:
        """Give an experiment a proposal, beside what is left of others."""
        with self._db.write() as c:
            left = [
                c.execute(select(func.max(t.attempt)).where(t.session_id == session_id, t.number == number)).scalar()
                for t in (_P, _B)
            ]
            attempt = 1 + max((found for found in left if found is not None), default=-1)
            attempt = self._adopt_runs(c, session_id, number, attempt)
            key = {"session_id": session_id, "number": number, "attempt": attempt}
            c.execute(insert(_P).values(**key, **phases.proposal_values(proposal, code_hash)))
            c.execute(insert(_B).values(**key, **phases.body_values(proposal, diff)))
            self._change(c, session_id, number, attempt=attempt)
            return rows.load_one(c, session_id, number, full=True)

    def _make_current(self, c: Connection, session_id: int, number: int, attempt: int | None, *, decided: bool) -> None:
        """Make another proposal the current one; a commit that was not decided on is of the one before it."""
        if attempt is None:
            self._change(c, session_id, number, attempt=None)
            return
        self._change(c, session_id, number, attempt=attempt, **({} if decided else {"commit_sha": None}))
        c.execute(delete(_P).where(_P.session_id == session_id, _P.number == number, _P.attempt > attempt))

    def _adopt_runs(self, c: Connection, session_id: int, number: int, attempt: int) -> int:
        """Give the runs of the latest attempt to the proposal that takes its place, whose number follows theirs."""
        of_experiment = (_R.session_id == session_id) & (_R.number == number)
        latest = c.execute(select(func.max(_R.attempt)).where(of_experiment)).scalar()
        if latest is None:
            return attempt
        attempt = max(attempt, latest)
        c.execute(update(_R).where(of_experiment, _R.attempt == latest).values(attempt=attempt))
        return attempt

    def add_run(
        self, session_id: int, number: int, index: int, seed: int, at: datetime, found: Measurement, result: RunResult
    ) -> None:
        """A run that ended, as its logs have it."""
        started = {"session_id": session_id, "number": number, "run_index": index, "seed": seed, "started_at": at}
        with self._db.write() as c:
            current = select(_E.attempt).where(_E.session_id == session_id, _E.number == number)
            attempt = c.execute(current).scalar() or 0
            c.execute(insert(_R).values(**started, attempt=attempt, finished_at=at, **phases.run_values(found, result)))

    def close_runs(self, session_id: int, number: int, at: datetime, why: str) -> None:
        """End the runs of an experiment that were never seen to end."""
        open_runs = (_R.session_id == session_id) & (_R.number == number) & _R.finished_at.is_(None)
        with self._db.write() as c:
            c.execute(update(_R).where(open_runs).values(finished_at=at, label=Label.INTERRUPTED, detail=why))

    def decide(
        self, e: Experiment, decision: Decision, asi: ASI, at: datetime, *, commit: str | None, segment: int
    ) -> None:
        """Write a decision down, whatever phase the experiment is in."""
        with self._db.write() as c:
            values = {**phases.decision_values(decision), "commit_sha": commit, "segment": segment}
            self._change(c, e.session_id, e.number, phase=Phase.DECIDED, finished_at=at, **values)
            there = (AsiTable.session_id == e.session_id) & (AsiTable.number == e.number)
            if c.execute(select(AsiTable.number).where(there)).first() is None:
                key = {"session_id": e.session_id, "number": e.number}
                c.execute(insert(AsiTable).values(**key, **phases.asi_values(asi)))

    def set_parent(self, session_id: int, number: int, parent: str, at: datetime) -> None:
        """Correct where a bare experiment began."""
        with self._db.write() as c:
            self._change(c, session_id, number, parent=parent, started_at=at)

    def _change(self, c: Connection, session_id: int, number: int, **values: Any) -> None:
        c.execute(update(_E).where(_E.session_id == session_id, _E.number == number).values(**values))

    # -- the end
    def finish(self, reason: str) -> None:
        """Sums, incumbents and references as the rows have them; one file."""
        with closing(sqlite3.connect(self.path)) as db, db:
            _drop_orphans(db)
        with self._db.write() as c:
            for session in list(c.execute(rows.SESSIONS)):
                _ensure_segments(c, session.id, session.started_at)
                _count(c, session.id)
                if session.branch:  # an imported session has none: nothing ever goes on with it
                    _ensure_baseline(c, session.id)
                    _set_incumbent(c, session.id, session.base_commit)
                    quiet = {"state": SessionState.STOPPED, "pid": None, "reason": reason}
                    c.execute(update(SessionTable).where(SessionTable.id == session.id).values(**quiet))
        self._db.close()
        with closing(sqlite3.connect(self.path)) as db:
            db.execute("PRAGMA journal_mode=DELETE")


def is_whole(e: Experiment) -> bool:
    """Whether an open experiment has all that its phase says, so that the loop can go on with it."""
    if any(run.open for run in e.runs[:-1]):
        return False
    ended = not e.runs or not e.runs[-1].open
    has_commit = e.proposal is not None and e.commit is not None
    match e.phase:
        case Phase.PROPOSING:
            return e.proposal is None and not e.runs
        case Phase.PROPOSED:
            return e.proposal is not None and ended
        case Phase.COMMITTED:
            return has_commit and ended
        case Phase.RUNNING:
            return has_commit and not ended
        case Phase.MEASURED:
            return has_commit and bool(e.counted_runs) and ended
        case Phase.DECIDED:
            return True


def _ensure_segments(c: Connection, session_id: int, at: datetime) -> None:
    """Each experiment's segment is there."""
    s = SegmentTable
    known = set(c.execute(select(s.number).where(s.session_id == session_id)).scalars())
    wanted = select(_E.segment, func.min(_E.number)).where(_E.session_id == session_id).group_by(_E.segment)
    for number, first in [*c.execute(wanted)]:
        if number not in known:
            told = {"fingerprint": UNKNOWN, "reason": "repaired", "hardware": "", "started_at": at}
            c.execute(insert(s).values(session_id=session_id, number=number, first=first, **told))


def _ensure_baseline(c: Connection, session_id: int) -> None:
    """Without a measured baseline nothing can be compared: the next daemon opens a segment, and measures one."""
    s = SegmentTable
    latest = c.execute(
        select(s.number, s.first).where(s.session_id == session_id).order_by(s.number.desc()).limit(1)
    ).first()
    if latest is None:
        return
    of_segment = (_E.session_id == session_id, _E.number >= latest.first)
    if c.execute(select(_E.number).where(*of_segment).limit(1)).first() is None:
        return
    first_kept = select(func.min(_E.number)).where(*of_segment, _E.status == Status.KEEP, _E.value.is_not(None))
    number = c.execute(first_kept).scalar()
    proposed = and_(_P.session_id == _E.session_id, _P.number == _E.number, _P.attempt == _E.attempt)
    policy = select(_P.policy).join(_E, proposed).where(_E.session_id == session_id, _E.number == number)
    if number is not None and c.execute(policy).scalar() == "baseline":
        return
    unsettled = select(_E.number).where(*of_segment, _E.phase != Phase.DECIDED).limit(1)
    if number is None and c.execute(unsettled).first() is not None and _all_baselines(c, session_id, latest.first):
        return  # it is being measured
    this = (s.session_id == session_id) & (s.number == latest.number)
    c.execute(update(s).where(this).values(fingerprint=UNKNOWN))


def _all_baselines(c: Connection, session_id: int, first: int) -> bool:
    proposed = and_(_P.session_id == _E.session_id, _P.number == _E.number, _P.attempt == _E.attempt)
    policies = select(_P.policy).join_from(_E, _P, proposed, isouter=True)
    found: Sequence[str | None] = (
        c.execute(policies.where(_E.session_id == session_id, _E.number >= first, _E.phase == Phase.DECIDED))
        .scalars()
        .all()
    )
    return all(policy == "baseline" for policy in found)


def _set_incumbent(c: Connection, session_id: int, base: str) -> None:
    number, commit = phases.last_kept(c, session_id) or (0, base)
    changed = {"incumbent": commit, "incumbent_experiment": number}
    c.execute(update(SessionTable).where(SessionTable.id == session_id).values(**changed))


def _count(c: Connection, session_id: int) -> None:
    """Counters are sums over rows: made again from the rows."""
    of_session = _E.session_id == session_id

    def number(*conditions: Any) -> int:
        return c.execute(select(func.count()).select_from(_E).where(of_session, *conditions)).scalar_one()

    usd, tokens_in, tokens_out = _spent(c, session_id)
    values = {
        "opened": c.execute(select(func.coalesce(func.max(_E.number), literal(-1))).where(of_session)).scalar_one() + 1,
        "experiments": number(_E.phase == Phase.DECIDED),
        "keeps": number(_E.status == Status.KEEP),
        "discards": number(_E.status == Status.DISCARD),
        "crashes": number(_E.status == Status.CRASH),
        "checks_failed": number(_E.status == Status.CHECKS_FAILED),
        "aborted": number(_E.label == Label.ABORTED_EARLY),
        "usd": usd,
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
        "gpu_s": c.execute(select(func.coalesce(func.sum(_E.gpu_s), 0.0)).where(of_session)).scalar_one(),
    }
    t = TotalsTable
    if c.execute(select(t.session_id).where(t.session_id == session_id)).first() is None:
        c.execute(insert(t).values(session_id=session_id, **values))
    else:
        c.execute(update(t).where(t.session_id == session_id).values(**values))
    sums.recount(c, session_id)


def _spent(c: Connection, session_id: int) -> tuple[float, int, int]:
    """US dollars and tokens: of the answers of an experiment where there are any, else of its proposals."""
    answered = select(_A.number).where(_A.session_id == _P.session_id, _A.number == _P.number).exists()
    found = [
        c.execute(
            select(
                func.coalesce(func.sum(table.usd), 0.0),
                func.coalesce(func.sum(table.tokens_in), 0),
                func.coalesce(func.sum(table.tokens_out), 0),
            ).where(table.session_id == session_id, *conditions)
        ).one()
        for table, conditions in ((_A, ()), (_P, (~answered,)))
    ]
    usd, tokens_in, tokens_out = (sum(column) for column in zip(*found, strict=True))
    return usd, tokens_in, tokens_out


def _drop_orphans(db: sqlite3.Connection) -> None:
    """Rows that refer to what could not be recovered; where the reference may be empty, it alone."""
    while broken := db.execute("PRAGMA foreign_key_check").fetchall():
        for table, rowid, _, key in broken:
            # Tables and columns are ours.
            keys = db.execute(f'PRAGMA foreign_key_list("{table}")').fetchall()
            column = next((row[3] for row in keys if row[0] == key and row[6] == "SET NULL"), None)
            if column is None:
                db.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (rowid,))  # noqa: S608
            else:
                db.execute(f'UPDATE "{table}" SET "{column}" = NULL WHERE rowid = ?', (rowid,))  # noqa: S608
