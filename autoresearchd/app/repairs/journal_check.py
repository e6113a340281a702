"""Whether a session may go on: its database is sound, and not older than what git knows of the session.

SQLite drops without a word what follows a damaged place in its write-ahead log, and a database can be put back from a
backup by hand. What is missing then shows in git: every experiment's row is on disk before its ref is written.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, StoreDamaged
from autoresearchd.domain.experiment import Experiment, Session
from autoresearchd.domain.labels import Phase, Status
from autoresearchd.domain.ports import Store
from autoresearchd.store.schema import health
from autoresearchd.workspace.git import GitWorkspace
from autoresearchd.workspace.history import History


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
    missing = _missing(store, workspace.history(), session, latest)
    if missing:
        raise StoreDamaged(f"the database is older than git: {missing}", hint=health.HINT)


def _missing(store: Store, history: History, session: Session, latest: Experiment) -> str:
    newest = history.newest()
    if newest > latest.number:
        return f"it ends with experiment {latest.number}, and git has experiment {newest} of session {session.tag}"
    tip = history.tip()
    if tip is None or tip == session.incumbent:
        return ""
    number = history.read(tip).number
    if number is None or number > latest.number or history.experiment(number) != tip:
        return ""  # not a commit of ours: recovery says what that means
    if number in latest.fallen:
        return ""  # it lost its place; the branch is moved back next
    e = store.experiment(session.id, number)
    kept = e.phase is Phase.DECIDED and e.decision is not None and e.decision.status is Status.KEEP
    if kept or "Metric" not in history.read(tip).trailers:
        return ""
    return f"experiment {number} is on branch {session.branch} as kept, which the database does not know"
