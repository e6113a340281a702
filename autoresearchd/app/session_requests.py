"""What is asked of a session that is there: to stop, pause, go on, take a note, be removed."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from autoresearchd import keys
from autoresearchd.app.project import Project
from autoresearchd.domain.errors import (
    AutoresearchdError,
    EnvironmentFailure,
    NothingRunning,
    SessionLocked,
    StoreDamaged,
    StoreError,
    UsageError,
)
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.labels import SessionState
from autoresearchd.domain.quantities import counted
from autoresearchd.loop.context import SystemClock
from autoresearchd.loop.upkeep.session_lock import SessionLock, holder, process_began, starting
from autoresearchd.policy.policy_names import TUNERS
from autoresearchd.store.failed_start import FailedStart, remember
from autoresearchd.store.reader import Reader
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors, remove_tree
from autoresearchd.workspace.git import GitWorkspace

_SENTENCES = {
    "stop": "stops after the running experiment",
    "stop_now": "stops at once; the running experiment is recorded as interrupted",
    "pause": "pauses after the running experiment",
    "unpause": "goes on",
}


def request(directory: Path, tag: str | None, kind: Literal["stop", "stop_now", "pause", "unpause"]) -> str:
    """Ask the daemon for something; the sentence to show.

    Where no daemon runs, what stop and pause want is so already; going on is what `unpause` cannot bring about.
    """
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick(store, tag)
        if session.policy == "imported":
            raise UsageError(
                f"session {session.tag} was imported: no daemon ever works on it",
                hint="`autoresearchd start` begins a session of your own",
            )
        coming = starting(project.lock(session.tag))
        if coming is not None:  # else it would be thrown away with what is left of requests to a dead daemon
            raise NothingRunning(
                f"session {session.tag} is only starting (process {coming}): it takes no request yet",
                hint="ask again in a moment",
            )
        pid = project.daemon(session.tag)
        if pid is None:
            from autoresearchd.app.start_checks import reached_limit  # slow to import, and seldom needed

            reached = reached_limit(store, session)  # then a bare `resume` would start nothing
            how = f"`autoresearchd resume {session.tag}{f' {reached.more}' if reached else ''}` goes on with it"
            why = f"has ended, {reached.reason}" if reached else "has no daemon"
            what = f"nothing is running: session {session.tag} {why}"
            if kind == "unpause":
                raise NothingRunning(what, hint=how)
            return f"{what}; {how}"
        if kind == "stop" and _last_asked(store, session, pid, ("stop", "stop_now")):
            # Asked for once more it would mean at once, as a second signal does.
            return (
                f"session {session.tag} (process {pid}) was asked to stop before, and does after the running "
                "experiment; `autoresearchd stop --now` ends that"
            )
        words, at_rest = _SENTENCES[kind], session.state is SessionState.PAUSED
        last = _last_asked(store, session, pid, ("pause", "unpause"))
        to_pause = at_rest if last is None else last == "pause"
        if kind == "pause" and to_pause:
            words = "is paused already" if at_rest else f"{words} already: it was asked to before"
        elif kind == "unpause" and not to_pause:
            words = "is not paused, so nothing changes"
        # Asked for all the same where it seems to be so: it may have changed in the next moment.
        store.add_control(session.id, kind, SystemClock().now())
        return f"session {session.tag} (process {pid}) {words}"


def _last_asked(store: SqlStore, session: Session, pid: int, kinds: Sequence[str]) -> str | None:
    """What of these this daemon was asked for last; what was asked of one before it counts no more."""
    asked, began = store.last_control(session.id, kinds), process_began(pid)
    return asked.kind if asked is not None and began is not None and asked.created_at >= began else None


def stop(directory: Path, tag: str | None, now: bool) -> str:
    """Ask the daemon to stop, by signals where its database takes no request or is gone; the sentence to show."""
    try:
        return request(directory, tag, "stop_now" if now else "stop")
    except (EnvironmentFailure, SessionLocked, StoreDamaged) as error:
        return _stop_by_signal(Project.of_session(directory), tag, now, error)


def _stop_by_signal(
    project: Project, tag: str | None, now: bool, error: EnvironmentFailure | SessionLocked | StoreDamaged
) -> str:
    """Stop the only daemon that can be meant; raises the error where there is none, or more than one."""
    locks = [project.lock(tag)] if tag is not None else sorted(project.locks.glob("*.lock"))
    alive = [(lock, pid) for lock in locks if (pid := holder(lock)) is not None]
    if len(alive) != 1:
        raise error
    [(lock, pid)] = alive
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        raise error from None
    try:
        if holder(lock) != pid:  # it ended, and its number may be another process's by now
            raise error
        # Either means "after this experiment", the second one "at once"; of two alike the kernel may deliver one.
        for number in (signal.SIGTERM, signal.SIGINT) if now else (signal.SIGTERM,):
            signal.pidfd_send_signal(process, number)
    finally:
        os.close(process)
    how = "stops at once" if now else _SENTENCES["stop"]
    return f"session {lock.stem} (process {pid}) {how}; it was sent a signal, because of its database: {error.what}"


def note(directory: Path, tag: str | None, text: str) -> str:
    """Leave a note for the policy; the sentence to show."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick(store, tag)
        store.add_note(session.id, text, SystemClock().now())
    if session.policy in TUNERS | {"auto"}:
        return (
            f"noted, and kept for policies that read notes (command: and models): {session.policy}, which session "
            f"{session.tag} uses, does not"
        )
    return f"noted; session {session.tag} reads it with its next proposal"


def removal(directory: Path, tag: str) -> str:
    """What would go, in words. Raises UsageError where there is no such session."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        branch = project.pick(store, tag).branch
    with Reader(project.database) as reader:
        told = reader.status(tag, alive=False)["session"]
    tried = counted(int(told["experiments"]), "experiment")
    if not branch:
        return f"session {tag}: {tried}, imported"
    return (
        f"session {tag}: {tried} ({told['keeps']} kept), the branch {branch}, refs/autoresearch/{tag}/ and the folder "
        f"{_runs(project, tag)}"
    )


def remove(directory: Path, tag: str) -> None:
    """Remove a session; all of it stays where a daemon holds it, or its branch is checked out or not its own."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick(store, tag)
        with SessionLock(project.lock(tag), tag):
            if session.branch:
                why = "a branch that is checked out cannot be removed"
                preflight.check_not_checked_out(project.root, session.branch, why)
                workspace = GitWorkspace(project.root, tag, task_folder=project.root, editable=())
                with contextlib.closing(workspace):
                    workspace.forget(session.base_commit)
                with disk_errors(f"removing {_runs(project, tag)}"):
                    remove_tree(_runs(project, tag))
            store.delete_session(tag, even_with_keeps=True)


def _runs(project: Project, tag: str) -> Path:
    return layout.public_dir(project.root) / "runs" / tag


def discard_session(
    project: Project, store: SqlStore, workspace: GitWorkspace, session: Session, error: AutoresearchdError
) -> None:
    """Leave of a session without a result only its logs, and the words that say why: ``error``."""
    if store.totals(session.id).experiments:
        return
    with contextlib.suppress(StoreError):  # the session goes all the same
        with Reader(project.database) as reader:
            status = {**reader.status(session.tag, alive=False), "current": None}
        failed = FailedStart(session.tag, SystemClock().now(), error.exit_code, error.what, error.hint, status)
        # First: whoever left the terminal has only this to learn it from.
        remember(layout.failed_start_path(project.root), keys.redactor(folder=project.root).value(failed))
    workspace.abandon()
    store.delete_session(session.tag)
