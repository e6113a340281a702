"""What one process sees of the machine, in words that every tier can read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class View:
    """What one process sees.

    cwd: where it starts, readable; readable, writable: further files and folders, at their own paths; hidden: files
    and folders inside what is readable that must not be seen;
    home: shown as an empty folder; network: whether it may use the network; gpu: whether it may use the GPUs;
    scratch_bytes: room in each folder in memory that it gets.
    """

    cwd: Path
    home: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    network: bool = False
    gpu: bool = False
    scratch_bytes: int = 4 << 30


def is_inside(path: Path, folders: Iterable[Path]) -> bool:
    """Whether ``path`` is one of ``folders`` or lies in one of them (by name, nothing is looked up)."""
    around = {path, *path.parents}
    return any(folder in around for folder in folders)


@dataclass(frozen=True, slots=True)
class Way:
    """The way to a path. real: where it ends; links: those that are followed, each by its real place, with targets."""

    real: Path
    links: tuple[tuple[Path, str], ...]


def way_to(path: Path) -> Way:
    """Follow an absolute path once, for both what it really is and the symbolic links on the way."""
    found: list[tuple[Path, str]] = []
    pending = list(path.parts[:0:-1])
    real = ""
    while pending:
        part = pending.pop()
        if part == "..":
            real = real.rpartition("/")[0]
            continue
        step = f"{real}/{part}"
        target = _target(step) if len(found) < _MOST_LINKS else None
        if target is None:
            real = step
            continue
        found.append((Path(step), target))
        pending += [p for p in reversed(Path(target).parts) if p != "/"]
        if target.startswith("/"):
            real = ""
    return Way(Path(real or "/"), tuple(found))


def _target(path: str) -> str | None:
    """Where a symbolic link leads; None where there is none."""
    try:
        return os.readlink(path)  # noqa: PTH115  # one call for each folder on the way to each folder of each run
    except OSError:
        return None
