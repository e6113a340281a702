"""One daemon per session: an flock that dies with its process, and a note of who holds it.

The note is written over in place and always takes the same room, so that a full disk does not refuse it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from autoresearchd.domain.errors import EnvironmentFailure, SessionLocked, StoreDamaged
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.process_tree import start_time

NOTE_BYTES = 4096
_REASON = 300
"""Characters of what a daemon waits for: the note has room for them even where each takes twelve bytes of JSON."""


def process_began(pid: int) -> datetime | None:
    """When a process of this machine started; None where the system does not say."""
    ticks = start_time(pid)
    if ticks is None:
        return None
    # Not /proc/uptime, which in a container may be the container's own; both clocks go on while the machine sleeps.
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return datetime.fromtimestamp(time.time() - age, UTC)


def holder(path: Path, *, ready: bool = False) -> int | None:
    """Pid of the live daemon that holds the session (``ready``: and has found all in order), or None. Takes no lock."""
    note = _read_note(path)
    return int(note["pid"]) if "ready" in note and (note["ready"] or not ready) else None


def starting(path: Path) -> int | None:
    """Pid of the live daemon that has the session, or is to have it, but has yet to write so into its database."""
    note = _read_note(path)
    return int(note["pid"]) if note.get("starts") is True else None


def announce(path: Path, pid: int) -> None:
    """Note that a process comes up as the daemon of a session; nothing where one has it, or the disk is full."""
    begun = start_time(pid)
    if begun is None:  # it has ended already
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold(path) as descriptor:
            os.ftruncate(descriptor, 0)
            # Without "ready": nobody holds the session yet.
            _write(descriptor, {"pid": pid, "start": str(begun), "starts": True})


def waiting(path: Path) -> str:
    """What the live daemon that holds the session waits for, where its database could not be told; else empty."""
    return str(_read_note(path).get("waits") or "")


def holders(folder: Path) -> dict[str, int]:
    """The sessions of a repository that a live daemon holds, with its pid. folder: of their locks."""
    return {path.stem: pid for path in sorted(folder.glob("*.lock")) if (pid := holder(path)) is not None}


def without_store(database: Path, folder: Path) -> StoreDamaged | None:
    """The error for a database that is gone while daemons still write to it; None where none does."""
    held = holders(folder)
    named = ", ".join(f"session {tag} (process {pid})" for tag, pid in held.items())
    stop = " and ".join(f"`autoresearchd stop --session {tag}`" for tag in held)
    hint = (
        f"{stop} (with --now: at once); then `autoresearchd doctor --repair` restores it from the newest backup and git"
    )
    what = f"the database {database} is gone, and still written to by {named}"
    return StoreDamaged(what, hint=hint) if held else None


def _read_note(path: Path) -> dict[str, Any]:
    """The note of a live process, empty where there is none; ``ready`` is in that of one that holds the session."""
    try:
        note = json.loads(path.read_text())
        begun = start_time(int(note["pid"]))
        return dict(note) if begun is not None and str(begun) == note["start"] else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


class SessionLock:
    """Holds a session for as long as the process lives. Raises SessionLocked when another daemon has it.

    starts: whether the process is a daemon that comes up, and will say when its database tells of it.
    """

    def __init__(self, path: Path, tag: str, *, starts: bool = False) -> None:
        self.path, self.tag = path, tag
        self._lock = contextlib.ExitStack()
        self._descriptor: int | None = None
        self._facts: dict[str, Any] = {"ready": False, "waits": "", "starts": starts}

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = hold(self.path, busy=lambda: already_held(self.tag, holder(self.path)))
            self._descriptor = self._lock.enter_context(lock)
            os.ftruncate(self._descriptor, 0)
            self._note()
        except OSError as error:
            self.__exit__()
            raise EnvironmentFailure(
                f"the lock {self.path} cannot be written: {error.strerror}",
                hint="free some disk space, or make the folder writable; then try again",
            ) from error
        return self

    def begun(self) -> None:
        self._note(starts=False)

    def ready(self) -> None:
        self._note(ready=True)

    def waits(self, reason: str) -> None:
        """Note what the daemon waits for that cannot write it into its database; empty: for nothing any more."""
        with contextlib.suppress(OSError):
            self._note(waits=reason[:_REASON])

    def _note(self, **facts: Any) -> None:
        self._facts |= facts
        if self._descriptor is not None:
            _write(self._descriptor, {"pid": os.getpid(), "start": str(start_time(os.getpid())), **self._facts})

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # a note that stays on a disk that has failed names a dead process
                os.ftruncate(self._descriptor, 0)
            self._descriptor = None
            self._lock.close()


def _write(descriptor: int, note: dict[str, Any]) -> None:
    os.pwrite(descriptor, json.dumps(note).encode("ascii").ljust(NOTE_BYTES), 0)


def already_held(tag: str, pid: int | None) -> SessionLocked:
    """The error for a second daemon."""
    who = f"process {pid}" if pid else "another process"
    return SessionLocked(
        f"session {tag} is held by {who}",
        hint=f"`autoresearchd status --session {tag}` shows it, `autoresearchd stop --session {tag}` ends it; "
        "`start --tag OTHER` begins another",
    )
