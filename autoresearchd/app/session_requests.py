"""What is asked of a session that is there: to stop, pause, go on, take a note, be removed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from autoresearchd.app.project import Project
from autoresearchd.domain import errors
from autoresearchd.domain.experiment import Experiment, Reached, Session, limit_reached
from autoresearchd.domain.labels import Phase, SessionState
from autoresearchd.domain.quantities import counted
from autoresearchd.loop.context import SystemClock
from autoresearchd.loop.upkeep.session_lock import SessionLock, holder, starting
from autoresearchd.policy.policy_names import TUNERS
from autoresearchd.store.failed_start import FailedStart, remember
from autoresearchd.store.reader import Reader
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors, remove_tree
from autoresearchd.workspace.git import GitWorkspace

_ENDS_WITHIN_S = 30.0
"""A daemon that was asked to stop at once, for the most part in one."""
_BEGINS = "begins"
"""Marks where the requests to a daemon begin among those to earlier ones."""
_SENTENCES = {
    "stop": "stops after the running experiment, once what was kept is tested",
    "stop_now": "stops at once; the running experiment is recorded as interrupted",
    "pause": "pauses after the running experiment",
    "unpause": "goes on",
    "confirm": "confirms its tip after the running experiment, if it is not confirmed yet",
}


def request(directory: Path, tag: str | None, kind: Literal["stop", "stop_now", "pause", "unpause", "confirm"]) -> str:
    """Ask the daemon for something; the sentence to show, where none runs that one and how to go on."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick_own(store, tag)
        coming = starting(project.lock(session.tag))
        if coming is not None:  # else it would be thrown away with what is left of requests to a dead daemon
            what = f"session {session.tag} is only starting (process {coming}): it takes no request yet"
            raise errors.NothingRunning(what, hint="ask again in a moment")
        pid, elsewhere = project.daemon(session.tag), store.holder(session.tag)
        if pid is None and elsewhere is None:
            reached = reached_limit(store, session)  # then a bare `resume` would start nothing
            why, more = (f"has ended, {reached.reason}", f" {reached.more}") if reached else ("has no daemon", "")
            how = f"`autoresearchd resume {session.tag}{more}` goes on with it"
            return f"nothing is running: session {session.tag} {why}; {how}"
        who = elsewhere if pid is None else f"process {pid}"
        named = f"session {session.tag} ({who})"
        if kind == "stop" and _last_asked(store, session, ("stop", "stop_now")):
            # Asked for once more it would mean at once, as a second signal does.
            asked = "was asked to stop before, and does after the running experiment"
            return f"{named} {asked}; `autoresearchd stop --now` ends that"
        words, at_rest = _SENTENCES[kind], session.state is SessionState.PAUSED
        last = _last_asked(store, session, ("pause", "unpause"))
        to_pause = at_rest if last is None else last == "pause"
        if kind == "pause" and to_pause:
            words = "is paused already" if at_rest else f"{words} already: it was asked to before"
        elif kind == "confirm" and to_pause:
            words = f"is paused; once `autoresearchd unpause` lets it go on, it {words}"
        elif kind == "unpause" and not to_pause:
            words = "is not paused, so nothing changes"
        # Asked for all the same where it seems to be so: it may have changed in the next moment.
        store.add_control(session.id, kind, SystemClock().now())
        return f"{named} {words}"


def reached_limit(store: SqlStore, session: Session) -> Reached | None:
    """The limit at which a session has ended; None when it can go on, or has something left to finish first."""
    from autoresearchd.app.compose import ends_when_spent  # slow to import, and seldom needed

    latest = store.latest(session.id)
    if latest is None:
        return None
    totals, limits = store.totals(session.id), session.limits
    waits_for_money = latest.phase is Phase.PROPOSING and limits.max_usd is not None and totals.usd >= limits.max_usd
    if not waits_for_money and store.unsettled(session.id):
        return None
    reached = limit_reached(
        limits if ends_when_spent(session) else replace(limits, max_usd=None),
        experiments=totals.experiments - store.baselines(session.id),
        seconds=session.active_seconds,
        usd=totals.usd,
    )
    over = limits.max_seconds is not None and session.active_seconds >= limits.max_seconds
    return None if not over and _is_to_confirm(store, session, latest) else reached


def _is_to_confirm(store: SqlStore, session: Session, latest: Experiment) -> bool:
    """Whether a confirmation is open, or a chain waits for one, and none has left it in doubt since."""
    if store.open_confirmation_of(session.id) is not None:
        return True
    keeps = [e.number for e in store.open_keeps(session.id)]
    tests = [c for c in store.confirmations(session.id) if c.after >= latest.number]
    return bool(keeps) and not any(c.leaves_doubt(keeps) for c in tests)


def forget_requests(store: SqlStore, session: Session) -> None:
    """What was asked of a daemon that is dead is not meant for the one that begins now, whatever the clock says."""
    store.add_control(session.id, _BEGINS, SystemClock().now())
    store.take_controls(session.id)


def _last_asked(store: SqlStore, session: Session, kinds: Sequence[str]) -> str | None:
    """What of these the present daemon was asked for last."""
    asked = store.last_control(session.id, (*kinds, _BEGINS))
    return asked.kind if asked is not None and asked.kind in kinds else None


def stop(directory: Path, tag: str | None, now: bool) -> str:
    """Ask the daemon to stop, by signals where its database takes no request or is gone; the sentence to show."""
    try:
        return request(directory, tag, "stop_now" if now else "stop")
    except (errors.EnvironmentFailure, errors.SessionLocked, errors.StoreDamaged) as error:
        project = Project.of_session(directory)
        locks = [project.lock(tag)] if tag is not None else sorted(project.locks.glob("*.lock"))
        alive = [(lock, pid) for lock in locks if (pid := holder(lock)) is not None]
        if len(alive) != 1:  # nobody can be meant, or more than one
            raise
        [(lock, pid)] = alive
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            raise error from None
        try:
            if holder(lock) != pid:  # it ended, and its number may be another process's by now
                raise
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
        session = project.pick_own(store, tag)
        store.add_note(session.id, text, SystemClock().now())
    if session.policy in TUNERS | {"auto"}:
        kept = "noted, and kept for policies that read notes (command: and models)"
        return f"{kept}: {session.policy}, which session {session.tag} uses, does not"
    return f"noted; session {session.tag} reads it with its next proposal"


def removal(directory: Path, tag: str) -> str:
    """What would go, in words. Raises UsageError where there is no such session."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        branch = project.pick(store, tag).branch
    with Reader(project.journal) as reader:
        counts = reader.status(tag, alive=False)["session"]
    tried = f"session {tag}: {counted(int(counts['experiments']), 'experiment')}"
    if not branch:
        return f"{tried}, imported"
    places = f"the branch {branch}, refs/autoresearch/{tag}/ and the folder {_runs(project, tag)}"
    return f"{tried} ({counts['keeps']} kept, {counts['confirmed']} confirmed), {places}"


def remove(directory: Path, tag: str) -> None:
    """Remove a session; all of it stays where a daemon holds it, or its branch is checked out or not its own."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick(store, tag)
        _await_end(project, store, session)
        with SessionLock(project.lock(tag), tag), store.leased(tag):
            if session.branch:
                why = "a branch that is checked out cannot be removed"
                preflight.check_not_checked_out(project.root, session.branch, why)
                workspace = GitWorkspace(project.root, tag, task_folder=project.root, editable=())
                with contextlib.closing(workspace):
                    workspace.forget(session.base_commit)
                with disk_errors(f"removing {_runs(project, tag)}"):
                    remove_tree(_runs(project, tag))
            store.delete_session(tag, even_with_keeps=True)


def _await_end(project: Project, store: SqlStore, session: Session) -> None:
    """Wait for a daemon of this machine that was asked to stop at once: it has moments to go."""
    pid = project.daemon(session.tag)
    if pid is None or _last_asked(store, session, ("stop", "stop_now")) != "stop_now":
        return
    with contextlib.suppress(OSError):  # it has ended
        descriptor = os.pidfd_open(pid)
        try:
            select.select([descriptor], [], [], _ENDS_WITHIN_S)
        finally:
            os.close(descriptor)


def _runs(project: Project, tag: str) -> Path:
    return layout.public_dir(project.root) / "runs" / tag


def discard_session(project: Project, store: SqlStore, session: Session, error: errors.AutoresearchdError) -> None:
    """Leave of a session without a result only its logs, and the words that say why: ``error``."""
    if store.totals(session.id).experiments:
        return
    with contextlib.suppress(errors.StoreError):  # the session goes all the same
        with Reader(project.journal) as reader:
            status = {**reader.status(session.tag, alive=False), "current": None, "under_way": []}
        failed = FailedStart(session.tag, SystemClock().now(), error.exit_code, error.what, error.hint, status)
        # First: whoever left the terminal has only this to learn it from.
        remember(layout.failed_start_path(project.root), store.redactor.value(failed))
    with contextlib.closing(
        GitWorkspace(project.root, session.tag, task_folder=project.root, editable=())
    ) as workspace:
        try:
            workspace.abandon()
        except errors.RepositoryError:
            if not isinstance(error, errors.RepositoryError):  # which may say whose the branch is
                raise
    store.delete_session(session.tag)
