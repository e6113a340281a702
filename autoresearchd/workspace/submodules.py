"""Submodules of the user's repository: where the objects of the commits lie that it pins (gitsubmodules(7)).

Their databases are only read; runs get copies of the files, and nothing of a submodule's git directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.workspace.command import Git, reading, surroundings
from autoresearchd.workspace.layout import common_dir, git_dir, is_git_dir

FETCH = "git submodule update --init --recursive"
"""What brings the pinned commits of all submodules to this machine."""


def object_databases(program: str, root: Path, revisions: Sequence[str]) -> tuple[Path, ...]:
    """The object databases that may hold what the first of some revisions pins; none where it pins nothing.

    Those of submodules that are checked out, with those within them, wherever their git directories lie; and all that
    the repository keeps for submodules, which another of its worktrees may have checked out.
    """
    git = Git(program, git_dir(root))
    for revision in revisions:
        pinned = _pinned(git, revision)
        if pinned is None:
            continue
        if not pinned:
            break
        kept = {common_dir(root) / "modules", git.directory / "modules"}
        own = [common_dir(place) for _, place in checked_out(program, root, revision)]
        found = [*own, *(folder for modules in sorted(kept) for folder in _git_dirs(modules))]
        return tuple(dict.fromkeys(folder / "objects" for folder in found))
    return ()


def checked_out(program: str, root: Path, revision: str = "HEAD") -> Iterator[tuple[str, Path]]:
    """Submodules of a revision that are checked out, outer ones first: path from the top of ``root``, and folder."""
    for name, commit in (_pinned(Git(program, git_dir(root)), revision) or {}).items():
        place = root / name
        try:
            git_dir(place)
        except RepositoryError:
            continue
        yield name, place
        yield from ((f"{name}/{inner}", path) for inner, path in checked_out(program, place, commit))


def absent(program: str, root: Path) -> Iterator[str]:
    """Submodules of the last commit, and those within them, whose objects are nowhere: paths from the top."""
    environment = {**surroundings(), **reading(object_databases(program, root, ("HEAD",)))}
    git = Git(program, git_dir(root), environment=environment)
    waiting = list((_pinned(git, "HEAD") or {}).items())
    for name, commit in waiting:
        inner = _pinned(git, commit)
        if inner is None:
            yield name
        else:
            waiting += [(f"{name}/{below}", theirs) for below, theirs in inner.items()]


def _git_dirs(modules: Path) -> Iterator[Path]:
    """The git directories in a folder of submodules' ones (gitrepository-layout(5), modules); names have slashes."""
    for folder in sorted(modules.iterdir()) if modules.is_dir() else ():
        if folder.is_symlink() or not folder.is_dir():
            continue
        if is_git_dir(folder):
            yield folder
            yield from _git_dirs(folder / "modules")
        else:
            yield from _git_dirs(folder)


def _pinned(git: Git, revision: str) -> dict[str, str] | None:
    """The paths of submodules in a commit, with the commits that they are pinned to; None where there is no such."""
    listed = git.run("ls-tree", "-r", "-z", "--full-tree", revision)
    if not listed.ok:
        return None
    rows = (row.split(b"\t", 1) for row in listed.out.split(b"\0") if row.startswith(b"160000 "))
    return {os.fsdecode(name): facts.split(b" ")[2].decode("ascii") for facts, name in rows}
