"""What a worktree held after its last checkout, so that the next one writes only the files that differ.

Git tells changed files by the same stamps (its index holds inode, size and times, see gitformat-index(5)); here they
are kept in memory and belong to one process. A file whose stamp moved is written anew, whatever is in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.workspace.objects import SUBMODULE, Entry, IndexRow

OWN = ("HEAD", "index", "index.lock", "HEAD.lock", "ORIG_HEAD.lock")
"""Files of the slot's git directory that must be as they were left."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when a file does; times in ns."""

    inode: int
    mode: int
    size: int
    mtime: int
    ctime: int
    device: int
    user: int
    group: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A tracked path as it was checked out: the entry and its stamp."""

    entry: Entry
    stamp: Stamp | None

    def same(self, entry: Entry, found: Stamp | None) -> bool:
        """Whether an entry is what was checked out, and nobody has touched it. A folder's content is no part of it."""
        whole = (self.entry.is_folder and entry.is_folder) or self.entry.mode == entry.mode == SUBMODULE
        if whole and self.stamp is not None and found is not None:
            pinned = entry.pinned == self.entry.pinned and (entry.is_folder or entry.sha == self.entry.sha)
            return pinned and (self.stamp.inode, self.stamp.mode) == (found.inode, found.mode)
        return (self.entry.sha, self.entry.mode, self.stamp) == (entry.sha, entry.mode, found)

    def index_row(self, path: bytes) -> IndexRow:
        """The file, or the submodule, as git's index has it; no stamp makes git look at it again."""
        entry = Entry(SUBMODULE, self.entry.name, self.entry.pinned) if self.entry.pinned else self.entry
        s = self.stamp if self.stamp and entry.mode != SUBMODULE else Stamp(0, 0, 0, 0, 0, 0, 0, 0)
        numbers = (s.device, s.inode, s.user, s.group, s.size)
        return IndexRow(path, entry.sha, int(entry.mode, 8), s.ctime, s.mtime, numbers)


@dataclass(slots=True)
class Held:
    """A worktree as this process left it: tracked paths, folders among them, and files of its git directory."""

    paths: dict[bytes, Seen]
    own: Mapping[str, Stamp | None]


def index_rows(paths: Mapping[bytes, Seen]) -> Iterator[IndexRow]:
    """What is checked out as git's index has it: of a submodule not the files, but the commit that it is pinned to.

    paths: a folder before what is in it.
    """
    inside: tuple[bytes, ...] = ()
    for path, seen in paths.items():
        if path.startswith(inside):
            continue
        if seen.entry.pinned:
            inside += (path,)
        if seen.entry.pinned or not seen.entry.is_folder:
            yield seen.index_row(path.rstrip(b"/"))


def stamp(path: bytes | Path) -> Stamp | None:
    """The stamp of a path itself, not of what a link leads to; None when there is nothing."""
    try:
        s = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_dev, s.st_uid, s.st_gid)


def own_files(git_directory: Path) -> dict[str, Stamp | None]:
    """Stamps of ``OWN``."""
    return {name: stamp(git_directory / name) for name in OWN}


def write_file(path: bytes, entry: Entry, data: bytes) -> Stamp | None:
    """Write a regular file as a checkout does: a new inode, its mode by the umask. OSError where that cannot be."""
    place = Path(os.fsdecode(path))
    if place.is_dir() and not place.is_symlink():
        raise IsADirectoryError(os.fsdecode(path))
    place.unlink(missing_ok=True)
    mode = 0o777 if entry.mode == b"100755" else 0o666
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return stamp(path)
