"""Where a task's data lies, and the symbolic links that show it at its place in a worktree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.domain.errors import BaselineError, EnvironmentFailure
from autoresearchd.domain.file_content import LARGEST, pointed_to


@dataclass(frozen=True, slots=True)
class DataEntry:
    """One entry of ``workspace.data`` or ``evaluation.private``: as written, and the real file or folder it names."""

    name: str
    real: Path

    @property
    def relative(self) -> bool:
        return not self.name.startswith(("/", "~"))


def find_data(names: Iterable[str], places: Sequence[Path], key: str) -> tuple[DataEntry, ...]:
    """Entries of a key of task.yaml, relative ones in the first of ``places``; BaselineError where one is nowhere."""
    return tuple(DataEntry(name, _find(name, places, key)) for name in names)


def _find(name: str, places: Sequence[Path], key: str) -> Path:
    path = Path(name).expanduser()
    if ".." in path.parts:
        raise BaselineError(f"{key}: {name!r} leaves the task's folder", hint="name the data without '..'")
    tried = [path] if path.is_absolute() else [place / path for place in places]
    there = [candidate for candidate in tried if candidate.exists()]
    if there:
        # What set-up has copied from the commit may be pointers of Git LFS, and the files themselves the user's.
        best = there[0] if len(there) == 1 or not pointers(there[0]) else min(there, key=pointers)
        return best.resolve()
    raise BaselineError(
        f"{key}: {name!r} is not there (looked for {', '.join(map(str, tried))})",
        hint="let execution.setup_commands make it, or correct the entry in task.yaml",
    )


def pointers(path: Path) -> int:
    """How many files at or below a path are pointers of Git LFS, and not what these stand for."""
    if path.is_dir():
        return sum(pointers(Path(top) / name) for top, _, names in os.walk(path) for name in names)
    try:
        return int(path.is_file() and path.stat().st_size <= LARGEST and bool(pointed_to(path.read_bytes())))
    except OSError:
        return 0


def place_links(folder: Path, entries: Iterable[DataEntry]) -> None:
    """Show relative entries at their place in ``folder`` by symbolic links to the real ones.

    What the commit itself has there stays, but for a pointer of Git LFS; where that is a folder, the link is made for
    each entry of it that is missing. Links of an earlier run are replaced. No link is followed on the way.
    """
    try:
        for entry in entries:
            if entry.relative:
                _place(folder, Path(entry.name), entry.real)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot link data into {folder}: {error}", hint="free disk space, or check the folder's permissions"
        ) from error


def _place(folder: Path, name: Path, real: Path) -> None:
    parent = folder
    for part in name.parts[:-1]:
        parent = parent / part
        if parent.is_symlink():
            if (folder / name).exists() and (folder / name).resolve() == real:
                return  # inside an entry that is linked as a whole
            parent.unlink()
        parent.mkdir(exist_ok=True)
    if name.parts:
        _link(parent / name.name, real)


def _link(place: Path, real: Path) -> None:
    if place.is_symlink():
        if place.readlink() == real:
            return
    elif place.is_dir() and real.is_dir():
        for child in sorted(real.iterdir()):
            _link(place / child.name, child)
        return
    elif place.exists() and not (pointers(place) and not pointers(real)):
        return
    if place == real:
        return
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(real)
    temporary.replace(place)
