"""Taking a session away that ended before its first result, so that nothing is left of it but why it ended."""

from __future__ import annotations

from autoresearchd import keys
from autoresearchd.app.project import Project
from autoresearchd.domain.experiment import Session
from autoresearchd.errors import AutoresearchdError, StoreError
from autoresearchd.loop.clock import SystemClock
from autoresearchd.store.failed_start import FailedStart, remember
from autoresearchd.store.reader import Reader
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout
from autoresearchd.workspace.git import GitWorkspace


def take_away(
    project: Project, store: SqlStore, workspace: GitWorkspace, session: Session, error: AutoresearchdError
) -> None:
    """Leave the repository as it was found, but for the logs and the words that say why nothing came of the session.

    A session that has a result stays as it is. error: what ended it.
    """
    if store.totals(session.id).experiments:
        return
    _write_down(project, session, error)  # first: whoever left the terminal has only this to learn it from
    workspace.abandon()
    store.delete_session(session.tag)


def _write_down(project: Project, session: Session, error: AutoresearchdError) -> None:
    try:
        with Reader(project.database) as reader:
            status = {**reader.status(session.tag, alive=False), "current": None}
    except StoreError:  # the session goes all the same
        return
    at = SystemClock().now()
    failed = FailedStart(session.tag, at, error.exit_code, error.what, error.mend, status)
    remember(layout.failed_start_path(project.root), keys.redactor(folder=project.root).value(failed))
