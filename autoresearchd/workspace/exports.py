"""Exports: the task's folder at a commit as plain files, for evaluation, set-up and policies.

A pristine export is content-addressed, made once and compared with its tree each time it is handed out.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from autoresearchd.errors import RepositoryError
from autoresearchd.workspace.files import disk_errors, held, remove_tree
from autoresearchd.workspace.folders import TreeFolder
from autoresearchd.workspace.objects import ObjectStore


class Exports:
    """Writes folders of the repository out.

    Args:
        store: the repository's objects.
        folder: where pristine exports lie.
        keep: paths in an export; added links and empty placeholders at and below them stay.
    """

    def __init__(self, store: ObjectStore, folder: Path, keep: Iterable[PurePosixPath] = ()) -> None:
        self._store, self._folder, self._keep = store, folder, frozenset(keep)
        self._made: dict[str, TreeFolder] = {}

    def pristine(self, tree: str) -> Path:
        """The export of a tree, files read-only; written anew where somebody altered it."""
        target = self._folder / tree
        with disk_errors(f"exporting the task's folder to {target}"), held(self._folder / "lock"):
            if target.is_symlink() or not target.is_dir():
                remove_tree(target)
                target.mkdir()
            if tree not in self._made:
                self._made[tree] = TreeFolder(self._store, target, self._keep, readonly=True)
            self._made[tree].fill(tree)
        return target

    def materialise(self, tree: str, target: Path) -> None:
        """Fill an empty folder with a tree; files may be written to."""
        with disk_errors(f"copying the task's folder to {target}"):
            target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise RepositoryError(f"{target} is not empty", mend="name an empty folder")
            TreeFolder(self._store, target).fill(tree)
