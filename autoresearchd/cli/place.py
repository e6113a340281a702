"""Where a command stands: the repository, its database opened for reading, and the session that is meant."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.domain.quantities import format_duration
from autoresearchd.errors import RepositoryError, StoreDamaged, UsageError
from autoresearchd.loop.lock import holder, starting, waiting, without_store
from autoresearchd.store.failed_start import FailedStart, recall
from autoresearchd.store.reader import Reader, SessionRow
from autoresearchd.workspace import layout

SILENT_S = 60.0
"""A daemon writes a heartbeat every ten seconds, whatever else it does."""

_MOST_LOOKED_AT = 200
"""Folders that are looked into for a session that is not here."""


class NoSession(UsageError):
    """A repository in which no session was begun, or none is left."""


class Place:
    """A repository with at least one session.

    Args:
        root: top of the checkout.
        reader: its database.
    """

    def __init__(self, root: Path, reader: Reader) -> None:
        self.root = root
        self.reader = reader

    def pick(self, tag: str | None) -> str:
        """The session that is meant: the named one, else the only one that runs, else the newest.

        Raises UsageError when there is none of that name, or when several run.
        """
        sessions = self.sessions()
        tags = [session.tag for session in sessions]
        if tag is not None:
            if tag in tags:
                return tag
            raise UsageError(
                f"there is no session {tag[:60]!r} in {self.root}", mend=f"name one of them: {', '.join(tags)}"
            )
        running = [name for name in tags if self.alive(name)]
        if len(running) > 1:
            raise UsageError(
                f"several sessions run in {self.root}: {', '.join(running)}",
                mend=f"say which: --session {' or --session '.join(running)}",
            )
        own = [session.tag for session in sessions if session.policy != "imported"]
        return running[0] if running else (own or tags)[-1]

    def sessions(self) -> Sequence[SessionRow]:
        """All sessions, oldest first. Raises UsageError when there is none."""
        sessions = list(self.reader.sessions())
        if not sessions:
            raise _no_session(self.root)
        return sessions

    def failed_start(self, tag: str | None) -> FailedStart | None:
        """The session ``tag`` that ended before its first result; without a tag: where nothing was begun since then."""
        sessions = self.reader.sessions()
        found = recall(layout.failed_start_path(self.root), [session.tag for session in sessions])
        if found is None or tag is not None:
            return found if found is not None and found.tag == tag else None
        latest = max((session.started_at for session in sessions), default=None)
        older = latest is None or latest < found.ended_at
        return found if older and not any(self.alive(session.tag) for session in sessions) else None

    def alive(self, tag: str) -> bool:
        """Whether a daemon holds the session."""
        return layout.valid_tag(tag) and holder(layout.lock_path(self.root, tag)) is not None

    def status(self, tag: str) -> dict[str, Any]:
        """As ``status --json`` prints it; of a daemon that the database does not know yet, or cannot, what it does."""
        status = self.reader.status(tag, alive=self.alive(tag))
        pid = starting(layout.lock_path(self.root, tag)) if layout.valid_tag(tag) else None
        if pid is not None:  # what the database tells is of the daemon before this one
            status["session"] |= {"state": "running", "pid": pid, "reason": "starting"}
            status["session"].pop("extend", None)
            status["current"] = None
            return status
        reason = self._waits(tag)
        if reason:
            status["session"] |= {"state": "backing_off", "reason": reason}
        return status

    def _waits(self, tag: str) -> str:
        """What a daemon waits for that could not say so in its database, where nothing new is read then."""
        if not layout.valid_tag(tag):
            return ""
        lock = layout.lock_path(self.root, tag)
        reason = waiting(lock)
        if not reason and holder(lock, ready=True) is not None:
            silent = (datetime.now(UTC) - self.reader.heartbeat(tag)).total_seconds()
            if silent > SILENT_S:
                reason = (
                    f"the daemon has not written its database for {format_duration(silent)}: "
                    "its disk may be read-only, or the process is stopped; daemon.log may say more"
                )
        return reason

    def experiments(
        self, tag: str, status: str | None = None, last: int | None = None, role: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """As ``experiments --json`` prints them."""
        return self.reader.experiments(tag, status=status, last=last, role=role)

    def recent(self, tag: str, count: int) -> list[dict[str, Any]]:
        """The last decided experiments, oldest first."""
        found = [e for e in self.reader.experiments(tag, last=count + 1) if e.get("status")]
        return found[-count:]

    def log_hint(self, tag: str) -> str:
        """Where the daemon's log is, relative to here where that is shorter."""
        log = layout.daemon_log(self.root)
        if not log.exists():
            return ""
        try:
            relative = os.path.relpath(log)
        except FileNotFoundError:  # the folder that this is in has been deleted
            return str(log)
        return str(log) if relative.startswith("..") else relative


def way_to(folder: Path) -> str:
    """``cd FOLDER`` for a shell, empty where this is within it: most commands are about the repository here."""
    try:
        within = Path.cwd().resolve().is_relative_to(folder.resolve())
    except FileNotFoundError:  # the folder that this is in has been deleted
        within = False
    return "" if within else f"cd {shlex.quote(str(folder))}"


def find_place(directory: Path) -> Place:
    """The repository that ``directory`` stands in.

    Raises UsageError when it has no session, StoreDamaged when its database is gone from under a daemon.
    """
    try:
        root = layout.find_session_root(directory)
    except RepositoryError as error:
        raise RepositoryError(error.what, mend=_way_below(directory) or error.mend) from error
    database = layout.database_path(root)
    if not database.is_file():
        raise without_store(database, layout.locks_dir(root)) or _gone(root, database) or _no_session(root, directory)
    if database.stat().st_size == 0:  # whoever opens a database that is gone may leave an empty one
        gone = _gone(root, database)
        if gone is not None:
            raise gone
    return Place(root, Reader(database))


def _gone(root: Path, database: Path) -> StoreDamaged | None:
    """The error where the database is gone that there are backups of."""
    from autoresearchd.store import backups, health

    return health.gone(database) if backups.generations(layout.backups_dir(root)) else None


def _no_session(root: Path, directory: Path | None = None) -> NoSession:
    way = "" if directory is None else _way_below(directory)
    mend = layout.left_by_a_failed_start(root) or way or layout.how_to_begin(directory or root)
    return NoSession(f"there is no session in {root} yet", mend=mend)


def _way_below(directory: Path) -> str:
    """How to get to the sessions of folders in this one, empty where none has any: ``start --dir`` was given here."""
    try:
        with os.scandir(directory) as found:
            names = sorted(child.name for child in itertools.islice(found, _MOST_LOOKED_AT) if child.is_dir())
        held = [name for name in names if (directory / name / ".git" / layout.STATE / "state.db").is_file()]
        way = os.path.relpath(directory / held[0]) if held else ""
    except OSError:
        return ""
    return f"there is one in {', '.join(held[:5])}: cd {shlex.quote(way)}" if held else ""
