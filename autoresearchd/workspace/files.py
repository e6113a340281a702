"""Files and their paths, where git has no part: locks, ends of logs, trees that must go, errors of a disk in words."""

from __future__ import annotations

import contextlib
import errno
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, RepositoryError
from autoresearchd.sandbox import file_locks, job_files

PASSING = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EROFS", "EIO", "EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "EFBIG"),
        *("ESTALE", "ENOTCONN", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH"),
    )
)
"""Errors of a machine, not of a repository: they may pass."""

_LOCK_PATIENCE_S = 10.0
_LONGEST = 1024
_GIT_SHORT = re.compile(r"git~\d+")


@contextlib.contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """Turn an OSError into EnvironmentFailure (may pass) or RepositoryError (somebody must act)."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        what = f"{doing}: {error.strerror or error}{where}"
        if error.errno in PASSING:
            raise EnvironmentFailure(what, hint="free some space or fix the disk; the daemon tries again") from error
        raise RepositoryError(what, hint="the user that runs the daemon must own the repository's files") from error


def read_tail(path: Path, limit: int) -> str:
    """The last ``limit`` bytes as text, bad bytes replaced; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def remove_tree(path: Path) -> bool:
    """Remove a file, link or folder with all in it, also where folders are read-only; whether it is gone."""
    return job_files.remove_tree(str(path))


def is_placeholder(path: Path) -> bool:
    """Whether it is a symbolic link, an empty file or an empty folder: what data is shown at or mounted on."""
    if path.is_symlink():
        return True
    try:
        return not any(path.iterdir()) if path.is_dir() else path.stat().st_size == 0
    except OSError:
        return False


@contextlib.contextmanager
def hold_lock(path: Path) -> Iterator[int]:
    """Hold a lock of git, as does a child handed the descriptor: whoever has it knows a lock *file* is stale."""
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = EnvironmentFailure(
        f"git is locked: another process has held {path} for {_LOCK_PATIENCE_S:.0f} s",
        hint="wait until the git of an earlier daemon has ended, or end it",
    )
    with file_locks.hold(path, patience=_LOCK_PATIENCE_S, busy=lambda: busy) as descriptor:
        yield descriptor


def split_path(path: str) -> tuple[bytes, ...]:
    """The parts of a relative POSIX path; RepositoryError for anything else.

    ``.git`` is refused in every spelling that some file system takes for it: other case, characters that HFS+ ignores,
    short names, trailing dots and blanks of NTFS (git's own ``verify_path``).
    """
    parts = path.split("/")
    if not path or len(path) > _LONGEST or any(not _harmless(part) for part in parts):
        raise RepositoryError(
            f"{path[:80]!r} is not a path inside the task's folder",
            hint="name files relative to the task's folder, with '/' between folders",
        )
    try:
        return tuple(part.encode("utf-8") for part in parts)
    except UnicodeEncodeError as error:
        raise RepositoryError(f"{path[:80]!r} is not text", hint="name files in UTF-8") from error


def _harmless(part: str) -> bool:
    if part in ("", ".", "..") or "\\" in part or any(unicodedata.category(c) in ("Cc", "Cs") for c in part):
        return False
    folded = "".join(c for c in part if unicodedata.category(c) != "Cf").casefold()
    folded = unicodedata.normalize("NFKC", folded).split(":")[0].rstrip(". ")
    return folded != ".git" and not _GIT_SHORT.fullmatch(folded)
