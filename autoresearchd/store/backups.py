"""Copies of the database, whether it is still the journal of a session, and a new one from what is left of it.

The newest three copies are kept, and the newest of each of the three hours and the seven days before, so that damage
that is noticed late still finds a copy from before it, also where a daemon is started again and again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, func, insert, select, update

from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, RunResult, Session
from autoresearchd.domain.labels import Label, Phase, SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.store.journal import records
from autoresearchd.store.journal.experiment_records import change, last_kept, recount
from autoresearchd.store.journal.records import load_experiment
from autoresearchd.store.journal.session_records import change_session
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health
from autoresearchd.store.schema import tables as t
from autoresearchd.store.schema.database import Database, sqlite_url, upgrade

NEWEST = 3
HOURS = 3
DAYS = 7
_PATIENCE_S = 10.0
"""For another daemon's backup: of a day's work it takes a second."""
OVERWRITTEN = (
    "end the daemons that use it, move {path} (with its -wal and -shm) elsewhere, and `autoresearchd doctor --repair` "
    "restores it from the newest backup and git"
)
_NAME = re.compile(r"(\d{8})T\d{6}(?:\d{6})?Z\.db")


def generations(folder: Path) -> list[Path]:
    """The backups of a folder, newest first; anything else in it is none of ours."""
    try:
        return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []


def make(copy: Callable[[Path], None], folder: Path, at: datetime) -> Path:
    """Take a backup, named after ``at`` (UTC), and drop old ones. StoreDamaged: it fails its check; none is dropped.

    One at a time: another daemon's copy that is not checked yet looks like one that a dead daemon has left.
    """
    target = folder / f"{at:%Y%m%dT%H%M%S%f}Z.db"
    unchecked = target.with_suffix(".unchecked")
    busy = EnvironmentFailure("another daemon here makes a backup of the database", hint="it is tried again")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with hold(folder.with_name(f"{folder.name}.lock"), patience=_PATIENCE_S, busy=lambda: busy):
            for left in folder.glob("*.unchecked*"):  # by a daemon that died while it copied
                left.unlink(missing_ok=True)
            try:
                copy(unchecked)
                if found := health.faults(unchecked):
                    raise StoreDamaged(f"a backup of the database fails its check: {found[0]}", hint=health.HINT)
                sync(unchecked)
                unchecked.replace(target)
            finally:
                with suppress(OSError):
                    unchecked.unlink(missing_ok=True)
            sync(folder)
            _drop_old(folder)
    except OSError as error:
        raise EnvironmentFailure(
            f"no backup of the database can be made in {folder}: {error.strerror}",
            hint="free some disk space, or make the folder writable; it is tried again",
        ) from error
    return target


def _drop_old(folder: Path) -> None:
    older = generations(folder)[NEWEST:]
    kept: set[Path] = set()
    for length, most in (len("20261121T13"), HOURS), (len("20261121"), DAYS):
        newest = {path.name[:length]: path for path in reversed(older)}  # of each hour or day
        kept |= set(sorted(newest.values(), reverse=True)[:most])
    for path in older:
        if path not in kept:
            path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------------- has somebody written over the journal?
@dataclass(frozen=True, slots=True)
class Mark:
    """What the journal must still tell: the session, and its newest experiment that was seen (−1: none yet)."""

    tag: str
    seed: int
    base_commit: str
    newest: int = -1


def traces(path: Path, mark: Mark) -> str:
    """What shows that the file was written over, empty: nothing. StoreError, sqlite3.OperationalError: not known now.

    A new connection looks, as open ones do not notice, and never by other means than SQLite: closing the file would
    give up this process's locks on it (https://www.sqlite.org/howtocorrupt.html, 2.2).
    """
    if path.stat().st_size < health.SHORTEST:
        return health.lack_of(path)
    found = health.quick_check(path)
    if found:
        return f"is damaged: {found[0]}"
    try:
        with SqlStore.open_readonly(path) as store:
            session = store.session(mark.tag)
            latest = store.latest(session.id)
    except KeyError:
        return f"does not know session {mark.tag}"
    except StoreDamaged as error:
        return f"is not a journal: {error.what}"
    if (session.seed, session.base_commit) != (mark.seed, mark.base_commit):
        return f"does not know session {mark.tag}"
    newest = -1 if latest is None else latest.number
    return f"ends with experiment {newest}, and had {mark.newest}" if newest < mark.newest else ""


UNKNOWN = ""
"""Fingerprint of a segment whose conditions are not known: whatever runs next is not compared with it."""

s, e, p, r, g = t.sessions, t.experiments, t.proposals, t.runs, t.segments


class Draft(SqlStore):
    """The new database. Use it in a ``with`` block; ``finish`` makes it a single file."""

    def __init__(self, path: Path, base: Path | None) -> None:
        self.path = path
        if base is not None:
            shutil.copyfile(base, path)
        upgrade(sqlite_url(path))
        super().__init__(Database(sqlite_url(path)))

    # -- what is there
    def opened(self, session_id: int) -> int:
        """How many numbers were handed out, as far as it is written down."""
        return (self._db.row(select(t.totals.c.opened).filter_by(session_id=session_id)) or (0,))[0]

    def segment_of(self, session_id: int, number: int) -> int:
        latest = select(func.max(g.c.number)).where(g.c.session_id == session_id, g.c.first <= number)
        return self._db.row(latest)[0] or 0

    def first_of_segment(self, session_id: int, number: int) -> bool:
        return (
            number == 0 or self._db.row(select(g.c.number).filter_by(session_id=session_id, first=number)) is not None
        )

    # -- what is put in
    def create_session(self, new: NewSession, at: datetime) -> Session:
        session = super().create_session(new, at)
        self.open_segment(session.id, UNKNOWN, "start", "", at)
        return session

    def ensure_experiment(self, session_id: int, number: int, parent: str, at: datetime) -> Experiment:
        """The experiment as it stands; a bare row where there was none."""
        key = {"session_id": session_id, "number": number}
        bare = {"segment": 0, "phase": Phase.PROPOSING, "parent": parent, "started_at": at, "gpu_s": 0.0}
        with self._db.write() as c:
            if c.execute(select(e.c.number).filter_by(**key)).first() is None:
                c.execute(insert(e).values(**key, **bare))
            return load_experiment(c, session_id, number, records.ONE_FULL)

    def add_proposal(
        self, session_id: int, number: int, proposal: Proposal, *, diff: str, code_hash: str
    ) -> Experiment:
        key = {"session_id": session_id, "number": number, "attempt": 0}
        with self._db.write() as c:
            records.insert_proposal(c, key, proposal, diff, code_hash)
            change(c, session_id, number, attempt=0)
            return load_experiment(c, session_id, number, records.ONE_FULL)

    def add_run(
        self, session_id: int, number: int, index: int, seed: int, at: datetime, found: Measurement, result: RunResult
    ) -> None:
        started = {"session_id": session_id, "number": number, "run_index": index, "seed": seed, "started_at": at}
        with self._db.write() as c:
            attempt = c.execute(select(e.c.attempt).filter_by(session_id=session_id, number=number)).scalar() or 0
            values = {"attempt": attempt, "finished_at": at, **records.run_values(found, result)}
            c.execute(insert(r).values(**started, **values))

    def close_runs(self, session_id: int, number: int, at: datetime, why: str) -> None:
        still_open = (r.c.session_id == session_id, r.c.number == number, r.c.finished_at.is_(None))
        with self._db.write() as c:
            c.execute(update(r).where(*still_open).values(finished_at=at, label=Label.INTERRUPTED, detail=why))

    def decide(
        self, e: Experiment, decision: Decision, asi: ASI, at: datetime, *, commit: str | None, segment: int,
        confirmed: bool | None,
    ) -> None:  # fmt: skip
        """Write a decision down, whatever phase the experiment is in."""
        key = {"session_id": e.session_id, "number": e.number}
        with self._db.write() as c:
            values = {"commit_sha": commit, "segment": segment, "confirmed": confirmed, "finished_at": at}
            values |= records.pick(decision, records.DECISION)
            change(c, e.session_id, e.number, phase=Phase.DECIDED, **values)
            if c.execute(select(t.asi.c.number).filter_by(**key)).first() is None:
                c.execute(insert(t.asi).values(**key, **records.pick(asi, ASI.__slots__)))

    def set_parent(self, session_id: int, number: int, parent: str, at: datetime) -> None:
        with self._db.write() as c:
            change(c, session_id, number, parent=parent, started_at=at)

    def set_confirmed(self, session_id: int, number: int, confirmed: bool | None) -> None:
        with self._db.write() as c:
            change(c, session_id, number, confirmed=confirmed)

    # -- the end
    def finish(self, reason: str) -> None:
        """Sums, tips and confirmed programs as the rows have them; one file."""
        for session in self.sessions():
            with self._db.write() as c:
                recount(c, session.id)
                if session.branch:  # an imported session has none: nothing ever goes on with it
                    _require_baseline(c, session.id)
                    number, commit = last_kept(c, session.id) or (0, session.base_commit)
                    first, proven = last_kept(c, session.id, confirmed=True) or (0, session.base_commit)
                    values = {"incumbent": commit, "incumbent_experiment": number}
                    values |= {"confirmed": proven, "confirmed_experiment": first}
                    quiet = {"state": SessionState.STOPPED, "pid": None, "reason": reason}
                    change_session(c, session.id, **values, **quiet)
        whole = self.path.with_name(f"{self.path.name}.whole")
        self.backup(whole)
        self.close()
        whole.replace(self.path)


def is_whole(e: Experiment) -> bool:
    """Whether an open experiment has all that its phase says, so that the loop can go on with it."""
    if any(run.open for run in e.runs[:-1]):
        return False
    ended, has_commit = not e.runs or not e.runs[-1].open, e.proposal is not None and e.commit is not None
    return {
        Phase.PROPOSING: e.proposal is None and not e.runs,
        Phase.PROPOSED: e.proposal is not None and ended,
        Phase.COMMITTED: has_commit and ended,
        Phase.RUNNING: has_commit and not ended,
        Phase.MEASURED: has_commit and bool(e.counted_runs) and ended,
        Phase.DECIDED: True,
    }[e.phase]


def _require_baseline(c: Connection, session_id: int) -> None:
    """Without a measured baseline nothing can be compared: the next daemon opens a segment, and measures one."""
    latest = select(g.c.number, g.c.first).filter_by(session_id=session_id).order_by(g.c.number.desc())
    segment = c.execute(latest.limit(1)).first()
    if segment is None:
        return
    since = (e.c.session_id == session_id, e.c.number >= segment.first)
    decided = select(e.c.number, p.c.policy, e.c.value).outerjoin_from(e, p, records.CURRENT)
    kept = decided.where(*since, e.c.status == Status.KEEP, e.c.value.is_not(None)).order_by(e.c.number).limit(1)
    first_kept = c.execute(kept).first()
    first_decided = c.execute(decided.where(*since, e.c.status.is_not(None)).limit(1)).first()
    if first_decided is not None and (first_kept is None or first_kept.policy != "baseline"):
        this = (g.c.session_id == session_id, g.c.number == segment.number)
        c.execute(update(g).where(*this).values(fingerprint=UNKNOWN))
