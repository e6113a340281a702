"""What one process sees of the machine, in words that every tier can read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class View:
    """What one process sees.

    cwd: where it starts, readable; readable, writable: further files and folders, at their own paths; hidden: files
    and folders inside what is readable that must not be seen;
    home: shown as an empty folder; network: whether it may use the network; gpu: whether it may use the GPUs.
    """

    cwd: Path
    home: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    network: bool = False
    gpu: bool = False


def is_inside(path: Path, folders: Iterable[Path]) -> bool:
    """Whether ``path`` is one of ``folders`` or lies in one of them (by name, nothing is looked up)."""
    return any(path == folder or folder in path.parents for folder in folders)


def links_on_the_way(path: Path) -> list[tuple[Path, str]]:
    """The symbolic links that are followed on the way to ``path``, as (link with a real parent, its target)."""
    found: list[tuple[Path, str]] = []
    pending = list(path.parts[1:])
    real = Path("/")
    while pending and len(found) < 40:
        part = pending.pop(0)
        if part == "..":
            real = real.parent
            continue
        step = real / part
        if step.is_symlink():
            target = step.readlink()
            found.append((step, str(target)))
            pending = [p for p in target.parts if p != "/"] + pending
            real = Path("/") if target.is_absolute() else real
        else:
            real = step
    return found
