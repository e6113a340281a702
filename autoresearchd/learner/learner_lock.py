"""One learner at a time in a repository: two would train from the same version, and fight for the memory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from autoresearchd.domain.errors import SessionLocked

NAME = "learner.lock"


class LearnerLock:
    """Held by a learner for as long as its process lives; SessionLocked where another one holds it.

    folder: of the locks.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._handle = -1

    def __enter__(self) -> LearnerLock:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            pid = holder(self._path.parent)
            raise SessionLocked(
                f"another learner is at work here{'' if pid is None else f', process {pid}'}",
                hint="wait for its end; `autoresearchd adapters list` then shows what came of it",
            ) from None
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, str(os.getpid()).encode(), 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._handle)


def held(folder: Path) -> bool:
    """Whether a learner is at work."""
    try:
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def holder(folder: Path) -> int | None:
    """Process id of the learner that was the last to begin, which is the one at work where one is; None: not known."""
    try:
        text = (folder / NAME).read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) < 20 else None
