"""A learner as a process: only one at a time, ended by signals at a checkpoint, and gone on with later.

One at a time in a repository: two would train from the same version, and fight for the memory.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from autoresearchd.domain.errors import Interrupted, SessionLocked
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.workspace import layout

Tell = Callable[[str], None]
"""Takes a line for people."""

GOES_ON = {
    "replay": "the same command goes on from its checkpoint",
    "live": "live mode keeps no checkpoint",
}
"""What becomes of a run that is stopped, by its mode."""
_LOCK = "learner.lock"


@contextmanager
def hold_learner_lock(folder: Path) -> Iterator[None]:
    """Be the only learner; SessionLocked where another one is at work. folder: of the locks."""

    def busy() -> SessionLocked:
        pid = learner_pid(folder)
        return SessionLocked(
            f"another learner is at work here{'' if pid is None else f', process {pid}'}",
            hint="wait for its end; `autoresearchd adapters list` then shows what came of it",
        )

    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / _LOCK, busy=busy) as descriptor:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield


def is_learning(folder: Path) -> bool:
    """Whether a learner is at work."""
    try:
        with hold(folder / _LOCK, shared=True):
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:  # there is no such folder
        return False


def learner_pid(folder: Path) -> int | None:
    """Process id of the learner that was the last to begin, which is the one at work where one is; None: not known."""
    try:
        return int((folder / _LOCK).read_text("ascii"))
    except (OSError, ValueError):
        return None


def stopped_mark(root: Path) -> Path:
    """A file that is there while a learner was stopped together with its session, and none has begun since."""
    return layout.state_dir(root) / "learner" / "stopped"


@contextmanager
def stoppable(mode: str, tell: Tell) -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets, so that a run ends at a checkpoint; the second ends it at once.

    What a run leaves is put in its place as a whole (a checkpoint, a version) or is not there, so that the second may
    come at any time.
    """
    cancel = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield cancel
        return
    kinds = (signal.SIGINT, signal.SIGTERM)
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        for kind in kinds:
            signal.signal(kind, signal.SIG_DFL)  # by the kernel: also in the middle of what torch computes
        received.append(number)
        cancel.set()
        text = f"stopping after what is being computed; {GOES_ON[mode]}. Ctrl-C again ends it at once"
        try:
            tell(text)
        except RuntimeError:  # the signal came while something else was being printed
            os.write(sys.stderr.fileno(), f"{text}\n".encode())

    before = [signal.signal(kind, stop) for kind in kinds]
    try:
        yield cancel
    except Interrupted as error:
        if received:
            error.exit_code = 128 + received[0]
        raise
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
