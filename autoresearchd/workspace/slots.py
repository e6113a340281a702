"""Slots: worktrees in which runs happen, one folder for each slot, with a private git directory beside it.

The files are written by ``TreeFolder``; the git directory is there for programs that look around in it (``git rev-parse
HEAD``). Whatever is wrong with a worktree, by hand, by a job or by a crash: it is made anew.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.workspace.command import Git
from autoresearchd.workspace.files import disk_errors, held, remove_tree
from autoresearchd.workspace.folders import TreeFolder
from autoresearchd.workspace.objects import ObjectStore
from autoresearchd.workspace.private import is_private, make_private


class Slots:
    """The worktrees of one session.

    Args:
        program: the git program.
        folder: where they lie.
        objects: the user's object database.
        store: the same objects.
        keep: paths from the top of the worktree; untracked links and empty placeholders at and below them stay.
    """

    def __init__(
        self, program: str, folder: Path, objects: Path, store: ObjectStore, keep: Iterable[PurePosixPath] = ()
    ) -> None:
        self._program, self._folder, self._objects, self._store = program, folder, objects, store
        self._keep = frozenset(keep)
        self._filled: dict[int, TreeFolder] = {}

    def checkout(self, slot: int, commit: str) -> Path:
        """Make a slot hold exactly ``commit``; the top of its worktree."""
        if slot < 0:
            raise ValueError(f"slots are numbered from 0: {slot}")
        tree = self._folder / f"slot{int(slot)}"
        git = Git(self._program, self._folder / f"slot{int(slot)}.git", tree)
        with disk_errors(f"checking out into {tree}"), held(self._folder / f"slot{int(slot)}.lock") as lock:
            if not self._usable(git, tree):
                self._make(slot, git, tree, commit)
            try:
                self._fill(slot, git, tree, commit, lock)
            except (RepositoryError, OSError):
                # Whatever is wrong with it, a new one has nothing wrong. What fails then is not the worktree's fault.
                self._make(slot, git, tree, commit)
                self._fill(slot, git, tree, commit, lock)
        return tree

    def remove(self) -> None:
        """Remove all worktrees of the session."""
        remove_tree(self._folder)

    def _usable(self, git: Git, tree: Path) -> bool:
        try:
            mode = tree.lstat().st_mode
        except FileNotFoundError:
            return False
        return stat.S_ISDIR(mode) and not git.directory.is_symlink() and is_private(git.directory, self._objects)

    def _make(self, slot: int, git: Git, tree: Path, commit: str) -> None:
        self._filled.pop(slot, None)
        for path in (tree, git.directory):
            self._set_aside(path)
        tree.mkdir(parents=True)
        make_private(git.directory, self._objects, commit)

    def _set_aside(self, path: Path) -> None:
        """Remove a path; what cannot be removed (another user's) is renamed, which needs no right to what is in it."""
        for old in self._folder.glob(f"{path.name}.old-*"):
            remove_tree(old)
        if not os.path.lexists(path):
            return
        aside = path.with_name(f"{path.name}.old-{time.monotonic_ns()}")
        path.rename(aside)
        remove_tree(aside)

    def _fill(self, slot: int, git: Git, tree: Path, commit: str, lock: int) -> None:
        pointer = tree / ".git"
        if pointer.is_symlink() or not pointer.is_file():
            remove_tree(pointer)
            pointer.write_text(f"gitdir: ../{git.directory.name}\n")
        if slot not in self._filled:
            self._filled[slot] = TreeFolder(self._store, tree, self._keep, own=(b".git",))
        self._filled[slot].fill(self._store.commit(commit).tree)
        # We hold the slot's lock and no git of an earlier daemon does, so lock files in it are stale.
        for stale in ("index.lock", "HEAD.lock"):
            (git.directory / stale).unlink(missing_ok=True)
        result = git.run("read-tree", "--reset", commit, keep_open=[lock])
        if not result.ok:
            raise result.failure()
        (git.directory / "HEAD").write_bytes(f"{commit}\n".encode())
