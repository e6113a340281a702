"""File operations that git has no part in: trees that must go, and the errors of a disk in the project's words."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from autoresearchd.errors import EnvironmentFailure, RepositoryError
from autoresearchd.sandbox import trees

PASSING = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.ESTALE,
        errno.EFBIG,
    }
)
"""Errors of a machine, not of a repository: they may pass."""

_LOCK_PATIENCE_S = 10.0


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError into EnvironmentFailure (may pass) or RepositoryError (somebody must act)."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        what = f"{doing}: {error.strerror or error}{where}"
        if error.errno in PASSING:
            raise EnvironmentFailure(what, mend="free some space or mend the disk; the daemon tries again") from error
        raise RepositoryError(what, mend="the user that runs the daemon must own the repository's files") from error


def remove_tree(path: Path) -> bool:
    """Remove a file, link or folder with all in it, also where folders are read-only; whether it is gone."""
    return trees.remove_tree(str(path))


def is_placeholder(path: Path) -> bool:
    """Whether it is a symbolic link, an empty file or an empty folder: what data is shown at or mounted on."""
    if path.is_symlink():
        return True
    try:
        return not any(path.iterdir()) if path.is_dir() else path.stat().st_size == 0
    except OSError:
        return False


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """Hold a file lock; yields its descriptor.

    Handed to a child process, the descriptor keeps the lock until that process has ended, also when its parent is
    killed. So whoever holds it knows that no git of an earlier daemon is still at work, and that a lock *file* left
    there is stale.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EnvironmentFailure(
                        f"git is locked: another process has held {path} for {_LOCK_PATIENCE_S:.0f} s",
                        mend="wait until the git of an earlier daemon has ended, or end it",
                    ) from None
                time.sleep(0.02)
        yield descriptor
    finally:
        os.close(descriptor)
