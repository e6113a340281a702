"""One learner at a time in a repository: two would train from the same version, and fight for the memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from autoresearchd.domain.errors import SessionLocked
from autoresearchd.sandbox.file_locks import hold

NAME = "learner.lock"


@contextlib.contextmanager
def hold_learner_lock(folder: Path) -> Iterator[None]:
    """Be the only learner; SessionLocked where another one is at work. folder: of the locks."""

    def busy() -> SessionLocked:
        pid = learner_pid(folder)
        return SessionLocked(
            f"another learner is at work here{'' if pid is None else f', process {pid}'}",
            hint="wait for its end; `autoresearchd adapters list` then shows what came of it",
        )

    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / NAME, busy=busy) as descriptor:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield


def is_learning(folder: Path) -> bool:
    """Whether a learner is at work."""
    try:
        with hold(folder / NAME, shared=True):
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:  # there is no such folder
        return False


def learner_pid(folder: Path) -> int | None:
    """Process id of the learner that was the last to begin, which is the one at work where one is; None: not known."""
    try:
        text = (folder / NAME).read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and len(text) < 20 else None
