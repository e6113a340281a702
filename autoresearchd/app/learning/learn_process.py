"""A learner run as a process: the signals that stop it, and the daemons that are at work beside it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from autoresearchd.app.project import Project
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Store

Tell = Callable[[str], None]
"""Takes a line for people."""

GOES_ON = {
    "replay": "the same command goes on from its checkpoint",
    "live": "live mode keeps no checkpoint",
}
"""What becomes of a run that is stopped, by its mode."""


def tell_of_daemons(project: Project, store: Store, tell: Tell) -> None:
    """Say of each daemon that is at work in a repository what it does while a learner is."""
    waits = load_settings(os.environ).learn.pause != "never"
    for session in store.sessions():
        if project.daemon(session.tag) in (None, os.getppid()):  # the one that has begun this learner knows
            continue
        if waits:
            tell(
                f"session {session.tag} is at work: where both compute on the same device, its next experiment waits "
                "for this run (learn: {pause: never} in config.yaml lets it go on)"
            )
        else:
            tell(f"session {session.tag} is at work and does not wait: its experiments are measured beside this run")


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
