"""Private copies of the workspace that somebody else edits: what they hold before, and what is taken back afterwards.

Whoever edits a copy may leave anything in it: links, pipes, folders a thousand deep. Nothing is followed, what is
read is data, and of bounded size.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import some_of
from autoresearchd.domain.task import Task
from autoresearchd.policy.answer_words import MAX_LINE

_MAX_FILE_BYTES = 1024 * 1024
_ABSENT, _OTHER = "absent", "other"


class Before(NamedTuple):
    """A copy as it was handed out. texts: of the editable files; protected: type and content of the protected ones."""

    texts: Mapping[str, str]
    protected: Mapping[str, str]


def look(root: Path, task: Task) -> Before:
    """What a copy holds now, to compare with later."""
    return Before({path: _read_back(root, path) for path in task.editable}, _hashes(root, task.protected))


def changed(root: Path, task: Task, before: Before, *, who: str) -> dict[str, str]:
    """Text of each editable file that is not as it was.

    Raises PolicyError: a protected file was changed, or an editable one is no plain text file any more. ``who`` did it.
    """
    old, after = before.protected, _hashes(root, task.protected)
    touched = sorted(path for path in {*old, *after} if old.get(path, _ABSENT) != after.get(path, _ABSENT))
    if touched:
        names = some_of([clean(path, MAX_LINE) for path in touched])
        raise PolicyError(
            f"{who} changed protected files: {names}",
            label=Label.ILLEGAL_EDIT,
            hint=f"only these may be edited: {', '.join(task.editable)}",
        )
    return {path: text for path in before.texts if (text := _read_back(root, path)) != before.texts[path]}


def put(root: Path, texts: Mapping[str, str], task: Task) -> None:
    """Write editable files into a copy that nobody else has touched yet; other paths are passed over."""
    for path in task.editable:
        if path in texts and not _through_a_link(root, path):
            (root / path).write_text(texts[path], encoding="utf-8", newline="")


def _read_back(root: Path, path: str) -> str:
    """Text of a file that somebody else may have put there: a regular file, reached without links, small, UTF-8."""
    if _through_a_link(root, path):
        raise PolicyError(f"{path} has been made a symbolic link", label=Label.ILLEGAL_EDIT)
    try:
        handle = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise PolicyError(f"{path} has been deleted", label=Label.ILLEGAL_EDIT) from None
    except OSError as error:
        raise PolicyError(f"{path} cannot be read back: {error.strerror}", label=Label.ILLEGAL_EDIT) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise PolicyError(f"{path} is not a regular file any more", label=Label.ILLEGAL_EDIT)
    with os.fdopen(handle, "rb") as file:
        raw = file.read(_MAX_FILE_BYTES + 1)
    if len(raw) > _MAX_FILE_BYTES:
        raise PolicyError(f"{path} has become larger than {_MAX_FILE_BYTES // 1024} KiB", label=Label.ILLEGAL_EDIT)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyError(f"{path} is not UTF-8 (byte {error.start})", label=Label.MALFORMED_ANSWER) from error
    if "\0" in text:
        raise PolicyError(f"{path} holds a zero byte", label=Label.MALFORMED_ANSWER)
    return text


def _through_a_link(root: Path, path: str) -> bool:
    place = root
    for part in Path(path).parts:
        place /= part
        with contextlib.suppress(OSError):  # where there is nothing, or where it is closed to us
            if stat.S_ISLNK(place.lstat().st_mode):
                return True
    return False


def _hashes(root: Path, protected: Iterable[str]) -> dict[str, str]:
    """What the protected files are now, and all in protected folders but compiled Python: type and content."""
    hashes: dict[str, str] = {}
    for path in protected:
        place, behind = root / path, _through_a_link(root, str(Path(path).parent))
        hashes[path] = "behind a link" if behind else _hash(place)
        pending = [place] if hashes[path] == _OTHER else []
        while pending:  # not by recursion: a copy may come back a thousand folders deep
            with contextlib.suppress(OSError), os.scandir(pending.pop()) as entries:
                for entry in (entry for entry in entries if entry.name != "__pycache__"):
                    inner = Path(entry.path)
                    hashes[inner.relative_to(root).as_posix()] = _hash(inner)
                    pending += [inner] if entry.is_dir(follow_symlinks=False) else []
    return hashes


def _hash(place: Path) -> str:
    try:
        mode = place.lstat().st_mode
        if stat.S_ISLNK(mode):
            return f"link:{place.readlink()}"
        if not stat.S_ISREG(mode):
            return _OTHER
        with place.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return _ABSENT
    except OSError as error:
        return f"unreadable: {error.errno}"
