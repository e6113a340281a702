"""Whether a session's database is sound and knows all that git knows; ``doctor --repair``: a new one where it is not.

SQLite drops without a word what follows a damaged place in its write-ahead log, and a database can be put back from a
backup by hand. What is missing then shows in git: every experiment's row is on disk before its ref is written. The new
one is built on the newest good copy, from git and the logs of runs; the damaged file is kept aside, and nothing takes
its place before it has passed every check.
"""

from __future__ import annotations

import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.app.compose import make_executor
from autoresearchd.app.project import Project
from autoresearchd.app.repairs.restore_session import Restorer, plan_session
from autoresearchd.config import parse_task
from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged, StoreError, UsageError
from autoresearchd.domain.experiment import Limits, Session
from autoresearchd.domain.labels import Phase, Status
from autoresearchd.domain.ports import Executor, Store
from autoresearchd.domain.quantities import counted, format_duration
from autoresearchd.loop.upkeep.session_lock import SessionLock
from autoresearchd.store import backups
from autoresearchd.store.backups import Draft
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health
from autoresearchd.workspace import layout
from autoresearchd.workspace.git import GitWorkspace, open_workspace
from autoresearchd.workspace.history import recorded_sessions

_SIDE_FILES = ("-wal", "-shm", "-journal", "")
REASON = "the database was repaired"


def check_database(path: Path) -> str:
    """Refuse a damaged database; a sentence where the check was not finished in time, else empty."""
    try:
        found = health.quick_check(path)
    except sqlite3.Error as error:
        raise EnvironmentFailure(
            f"the database {path} cannot be checked: {error}",
            hint="another program may hold it: end it, or wait; make sure that this user may write to it",
        ) from error
    if found.faults:
        raise StoreDamaged(f"the database {path} is damaged: {found.faults[0]}", hint=health.HINT)
    if not found.complete:
        return f"the database was not checked to its end within {health.QUICK_SECONDS:g} s; the next backup does it"
    return ""


def check_journal(store: Store, workspace: GitWorkspace, session: Session) -> None:
    """Refuse a journal that lacks what git has: its numbers would be given out again."""
    latest = store.latest(session.id)
    if latest is None:
        return
    history = workspace.history()
    newest, tip, missing = history.newest(), history.tip(), ""
    if newest > latest.number:
        missing = f"it ends with experiment {latest.number}, and git has experiment {newest} of session {session.tag}"
    elif tip is not None and tip != session.incumbent:
        record = history.read(tip)
        number = record.number
        # Of another commit than ours recovery says what it means; one that lost its place is moved back next.
        ours = number is not None and number <= latest.number and history.experiment(number) == tip
        if ours and number is not None and number not in latest.fallen and "Metric" in record.trailers:
            e = store.experiment(session.id, number)
            if e.phase is not Phase.DECIDED or e.decision is None or e.decision.status is not Status.KEEP:
                missing = f"experiment {number} is on branch {session.branch} as kept, which the database does not know"
    if missing:
        raise StoreDamaged(f"the database is older than git: {missing}", hint=health.HINT)


@dataclass
class Report:
    """What a repair found and did. kept: where the damaged file is now; None: nothing had to be repaired."""

    faults: list[str]
    kept: Path | None = None
    base: Path | None = None
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        kept, base = (None if path is None else str(path) for path in (self.kept, self.base))
        return {"faults": self.faults, "kept": kept, "backup": base, "notes": self.notes}

    def lines(self) -> list[str]:
        if self.kept is None and not self.faults:
            return ["the database is sound, and knows all that git knows: nothing to repair"]
        found = [f"damage: {fault}" for fault in self.faults]
        if self.base is not None:
            found.append(f"built on the backup {self.base.name}")
        found += self.notes
        if self.kept is not None:
            found.append(f"the damaged database is kept in {self.kept}")
        return [*found, "`autoresearchd resume` goes on"]


def repair(directory: Path, tag: str | None = None, executor: Executor | None = None) -> Report:
    """Repair the database of a repository. tag: of the sessions that only git knows, rebuild this one; None: all."""
    project = Project.at(directory)
    tags = recorded_sessions(project.root)
    if tag is not None and tag not in tags and not project.database.exists():
        raise UsageError(f"git knows nothing of a session {tag!r}", hint="known: " + (", ".join(tags) or "none"))
    with _all_sessions_held(project, tags):
        faults = _examine(project, tags)
        if not faults:
            return Report([])
        if not (project.database.exists() or tags or backups.generations(project.backups)):
            raise UsageError(
                f"there is no session in {project.root} to repair", hint="`autoresearchd start` begins one"
            )
        return _rebuild(project, tags if tag is None else [tag], faults, executor or make_executor("local"))


@contextmanager
def _all_sessions_held(project: Project, tags: list[str]) -> Iterator[None]:
    known = {path.stem for path in project.locks.glob("*.lock")} | set(tags)
    with ExitStack() as stack:
        for tag in sorted(known):
            if layout.valid_tag(tag):
                stack.enter_context(SessionLock(project.lock(tag), tag))
        yield


# ---------------------------------------------------------------------- what is wrong
def _examine(project: Project, tags: list[str]) -> list[str]:
    """All that is wrong with the database as it is: its structure first, then what it says."""
    path = project.database
    if not health.has_content(path):
        return [f"{path} {health.lack_of(path)}"]
    found = health.faults(path)
    if found and not found[0].startswith("revision"):  # a newer version's is refused below, and left alone
        return found
    try:
        with project.open_store() as store:
            return _examine_sessions(project, store)
    except StoreError as error:
        return [error.what]


def _examine_sessions(project: Project, store: SqlStore) -> list[str]:
    found = []
    for session in store.sessions():
        try:
            if session.branch:
                _check_session(project, store, session)
        except StoreError as error:
            found.append(f"session {session.tag}: {error.what}")
    return found


def _check_session(project: Project, store: SqlStore, session: Session) -> None:
    """What a session needs to go on: every row can be read, no number is missing, and git knows no more."""
    experiments = store.experiments(session.id)
    numbers = [e.number for e in experiments]
    if numbers != list(range(len(numbers))):
        raise StoreDamaged("experiments are missing", hint=health.HINT)
    unfinished = [e.number for e in experiments[:-1] if e.phase is not Phase.DECIDED]
    if unfinished:
        raise StoreDamaged(f"experiment {unfinished[0]} was never decided", hint=health.HINT)
    store.totals(session.id)
    if numbers and store.segment(session.id) is None:
        raise StoreDamaged("it has no segment", hint=health.HINT)
    with closing(_workspace(project, session)) as workspace:
        check_journal(store, workspace, session)


def _workspace(project: Project, session: Session) -> GitWorkspace:
    return open_workspace(project.root, session.tag, parse_task(session.task_json), project.root / session.folder)


# ---------------------------------------------------------------------- the new database
def _rebuild(project: Project, tags: list[str], faults: list[str], executor: Executor) -> Report:
    report = Report(faults)
    state = layout.state_dir(project.root)
    try:
        with tempfile.TemporaryDirectory(prefix="repair-", dir=state) as name:
            folder = Path(name)
            new = folder / "state.db"
            base = _newest_good(project, report, folder)
            with Draft(new, base) as draft:
                _complete(project, draft, tags, report, executor)
                draft.finish(REASON)
            _accept(project, new)
            report.kept = _put_in_place(project, new)
    except OSError as error:
        raise EnvironmentFailure(
            f"the database cannot be repaired: {error}; it is as it was",
            hint="a repair needs room for two more copies of the database: free some disk space",
        ) from error
    return report


def _newest_good(project: Project, report: Report, folder: Path) -> Path | None:
    """The copy to build on: of the database itself, where all of it can be read and no backup is newer, or a backup."""
    base, written = None, datetime.min.replace(tzinfo=UTC)
    for path in backups.generations(project.backups):
        fault, written = _read_through(path, folder / "probe.db")
        if not fault:
            report.base = base = path
            break
        report.notes.append(f"the backup {path.name} is damaged as well: {fault}")
    itself = folder / "itself.db"
    if health.has_content(project.database) and not health.faults(project.database):
        with project.open_store() as store:
            store.backup(itself)
        fault, latest = _read_through(itself, folder / "probe.db")
        if not fault and (base is None or latest >= written):
            report.base = None
            return itself
    if base is not None:
        report.notes.append(f"what was written after {written:%Y-%m-%d %H:%M:%S} UTC is lost but for what git tells")
    return base


def _read_through(path: Path, probe: Path) -> tuple[str, datetime]:
    """What is wrong with a copy of the database, empty where all of it can be read; and when it was last written."""
    written = datetime.min.replace(tzinfo=UTC)
    if faults := health.faults(path):
        return faults[0], written
    try:
        with Draft(probe, path) as draft:
            for session in draft.sessions():
                written = max(written, session.heartbeat_at or session.started_at)
                for experiment in draft.experiments(session.id):
                    written = max(written, experiment.finished_at or experiment.started_at)
    except StoreError as error:
        return error.what, written
    return "", written


def _complete(project: Project, draft: Draft, tags: list[str], report: Report, executor: Executor) -> None:
    """What git and the logs of runs know beside the rows."""
    known = {session.tag: session for session in draft.sessions()}
    for tag in tags:
        if tag not in known:
            new, at = plan_session(project, tag, seed=secrets.randbelow(2**31))
            report.notes.append(
                f"session {tag}: neither a backup nor the database knows it, so it is rebuilt from git alone: "
                f"task and folder are those of its first commit, policy {new.policy}, {_limits(new.limits)}"
            )
            known[tag] = draft.create_session(new, at)
    for session in known.values():
        if session.branch:
            with closing(_workspace(project, session)) as workspace:
                restorer = Restorer(project, draft, workspace, session, executor)
                report.notes += [f"session {session.tag}: {note}" for note in restorer.run()]


def _limits(limits: Limits) -> str:
    """The limits of a rebuilt session, in words: who goes on with it is to know where it ends."""
    words = [counted(limits.max_experiments, "experiment")] if limits.max_experiments is not None else []
    words += [format_duration(limits.max_seconds)] if limits.max_seconds is not None else []
    words += [f"{limits.max_usd:g} USD"] if limits.max_usd is not None else []
    told = ", ".join(words)
    return f"limits as its log tells: {told}" if told else "no limits (`resume --max-experiments N` sets one)"


def _accept(project: Project, new: Path) -> None:
    """The same checks that a sound database passes; the damaged one stays where it is when they fail."""
    found = health.faults(new)
    if not found:
        with SqlStore.open(f"sqlite:///{new}") as store:
            found = _examine_sessions(project, store)
        for suffix in _SIDE_FILES[:-1]:
            if new.with_name(new.name + suffix).exists():
                found.append(f"{new.name}{suffix} is left")
    if found:
        raise StoreError(
            f"the repaired database would not be sound ({found[0]}), so the damaged one was left as it is",
            hint="report this; the newest backup can be put in its place by hand",
        )
    backups.sync(new)


def _put_in_place(project: Project, new: Path) -> Path:
    """Move the damaged file aside with all that belongs to it, then the new one to its name."""
    at = datetime.now(UTC)
    kept = layout.state_dir(project.root) / "damaged" / f"{at:%Y%m%dT%H%M%S%f}Z"
    kept.mkdir(parents=True)
    for suffix in _SIDE_FILES:
        # The write-ahead log goes first: SQLite would take it for that of the new file.
        old = project.database.with_name(project.database.name + suffix)
        if old.exists():
            shutil.move(old, kept / old.name)
    new.replace(project.database)
    backups.sync(project.database.parent)
    return kept
