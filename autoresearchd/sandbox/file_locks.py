"""Locks on files that end with the process that holds them, however it ends: the one place that calls flock(2).

Not the filelock package: see docs/adr/0043-locks-and-process-identity-without-a-library.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOK_S = 0.02


@contextlib.contextmanager
def hold(
    path: Path,
    *,
    patience: float = 0,
    pause: Callable[[float], object] = time.sleep,
    busy: Callable[[], Exception] = BlockingIOError,
    shared: bool = False,
    flags: int = 0,
) -> Iterator[int]:
    """Hold the lock of a file, which is made where it is missing; yields its descriptor.

    A program that it is handed to (``pass_fds``) has the lock until it ends; others that are started do not inherit it.
    patience: seconds to wait for another that holds it, ``math.inf`` for as long as it takes; pause: waits so many
    seconds, and waiting ends when it returns something true; busy: makes the error to raise when another still holds
    it; shared: only keep those out that hold it alone; flags: more of open(2).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    try:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline or pause(_LOOK_S):
                    raise busy() from None
        yield descriptor
    finally:
        os.close(descriptor)
