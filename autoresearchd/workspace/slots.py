"""Slots: worktrees in which runs happen, one folder for each slot, with a private git directory beside it.

The files are written by ``TreeFolder``; the git directory is there for programs that look around in it (``git rev-parse
HEAD``). Whatever is wrong with a worktree, by hand, by a job or by a crash: it is made anew.

Private git directories have the user's objects and nothing else of the user's: objects are read through one, too. Their
own ``config`` and ``info/attributes``, which outranks every ``.gitattributes`` (gitattributes(5)), see to it that no
filter, hook, monitor or line-end rule of the user's repository, or of a commit, is ever looked at. Nothing in the
user's own git directory (worktree list, HEAD, index) knows of them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.workspace.command import Git
from autoresearchd.workspace.files import disk_errors, held, remove_tree
from autoresearchd.workspace.folders import TreeFolder
from autoresearchd.workspace.objects import ObjectStore

CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogAllRefUpdates = false\n"
ATTRIBUTES = b"* -text !eol -ident !filter !working-tree-encoding !diff !merge\n"
HEADLESS = "ref: refs/heads/none"
_HEAD = re.compile(rb"(?:" + HEADLESS.encode() + rb"|[0-9a-f]{40})\n")
"""Whole, since git takes a folder whose HEAD a power cut cut off after ``ref: `` for no repository at all."""


def is_private(git_dir: Path, objects: Path) -> bool:
    """Whether ``git_dir`` is a private git directory in working order."""
    try:
        return (
            _HEAD.fullmatch((git_dir / "HEAD").read_bytes()) is not None
            and (git_dir / "config").read_bytes() == CONFIG
            and (git_dir / "info" / "attributes").read_bytes() == ATTRIBUTES
            and (git_dir / "objects" / "info" / "alternates").read_bytes() == _alternates(git_dir, objects)
            and (git_dir / "refs").is_dir()
        )
    except OSError:
        return False


def make_private(git_dir: Path, objects: Path, head: str = HEADLESS) -> None:
    """Make a private git directory anew. head: a commit, for one that files are checked out from."""
    if os.path.lexists(git_dir):
        remove_tree(git_dir)
    for folder in ("objects/info", "refs/heads", "info"):
        (git_dir / folder).mkdir(parents=True, exist_ok=True)
    (git_dir / "config").write_bytes(CONFIG)
    (git_dir / "info" / "attributes").write_bytes(ATTRIBUTES)
    (git_dir / "objects" / "info" / "alternates").write_bytes(_alternates(git_dir, objects))
    (git_dir / "HEAD").write_bytes(f"{head}\n".encode())


def _alternates(git_dir: Path, objects: Path) -> bytes:
    """The path is relative, so that the repository can be moved and may lie under any name."""
    return os.fsencode(os.path.relpath(objects, git_dir / "objects")) + b"\n"


class Slots:
    """The worktrees of one session. objects: the user's database, ``store`` reads it; keep: see ``TreeFolder``."""

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
        git = Git(self._program, self._folder / f"{tree.name}.git", tree)
        with disk_errors(f"checking out into {tree}"), held(self._folder / f"{tree.name}.lock") as lock:
            usable = tree.is_dir() and not tree.is_symlink() and not git.directory.is_symlink()
            if not usable or not is_private(git.directory, self._objects):
                self._make(slot, git, tree, commit)
            try:
                self._fill(slot, git, tree, commit, lock)
            except (RepositoryError, OSError):
                # Whatever is wrong with it, a new one has nothing wrong. What fails then is not the worktree's fault.
                self._make(slot, git, tree, commit)
                self._fill(slot, git, tree, commit, lock)
        return tree

    def remove(self) -> None:
        remove_tree(self._folder)

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
        git.check("read-tree", "--reset", commit, keep_open=[lock])
        (git.directory / "HEAD").write_bytes(f"{commit}\n".encode())
