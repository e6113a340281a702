"""One daemon per session: an flock that dies with its process, and a note of who holds it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType

from autoresearchd.errors import SessionLocked


def process_start(pid: int) -> str | None:
    """Start time of a process in clock ticks, None when there is none; with its pid it names a process for ever."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]


def holder(path: Path, *, ready: bool = False) -> int | None:
    """Pid of the live daemon that holds the session, None when nobody does. Takes no lock.

    ready: only one that has found everything in order.
    """
    try:
        note = json.loads(path.read_text())
        pid, start = int(note["pid"]), note["start"]
        if ready and not note["ready"]:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return pid if process_start(pid) == start else None


class SessionLock:
    """Holds a session for as long as the process lives. Raises SessionLocked when another daemon has it."""

    def __init__(self, path: Path, tag: str) -> None:
        self.path = path
        self.tag = tag
        self._fd: int | None = None

    def __enter__(self) -> SessionLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise already_held(self.tag, holder(self.path)) from None
        self._fd = fd
        self._note(ready=False)
        return self

    def ready(self) -> None:
        """Note that the daemon has found everything in order and is at work."""
        self._note(ready=True)

    def _note(self, *, ready: bool) -> None:
        note = json.dumps({"pid": os.getpid(), "start": process_start(os.getpid()), "ready": ready})
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, note.encode(), 0)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def already_held(tag: str, pid: int | None) -> SessionLocked:
    """The error for a second daemon."""
    who = f"process {pid}" if pid else "another process"
    return SessionLocked(
        f"session {tag} is held by {who}",
        mend="`autoresearchd status` shows it, `autoresearchd stop` ends it; `start --tag OTHER` begins another",
    )
