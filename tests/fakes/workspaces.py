"""A workspace in memory: commits, refs and a branch as git has them, worktrees as plain folders."""

from __future__ import annotations

import difflib
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from autoresearchd.domain.errors import RepositoryError


@dataclass(frozen=True)
class Commit:
    """One commit. files: the whole tree."""

    files: Mapping[str, str]
    parents: tuple[str, ...] = ()
    message: str = ""


@dataclass
class FakeWorkspace:
    """The port over commits in memory; a new daemon goes on with the same one."""

    folder: Path
    editable: Sequence[str] = ("train.py",)
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[int, str] = field(default_factory=dict)
    branch: str = ""
    tip_ref: str = ""

    def write(self, commit: Commit, when: datetime | None = None) -> str:
        """Add a commit; its name follows from what is in it."""
        name = hashlib.sha1(repr((sorted(commit.files.items()), commit, when)).encode()).hexdigest()
        self.commits[name] = commit
        return name

    def begin(self, files: Mapping[str, str]) -> str:
        """The user's first commit, at which the session begins."""
        self.branch = self.tip_ref = self.write(Commit(dict(files), message="start"))
        return self.branch

    def _commit(self, name: str) -> Commit:
        if name not in self.commits:
            raise RepositoryError(f"there is no commit {name!r}", hint="run `git fsck`")
        return self.commits[name]

    def read(self, commit: str, path: str) -> str:
        files = self._commit(commit).files
        if path not in files:
            raise RepositoryError(f"{path} is not in {commit[:10]}", hint="see task.yaml")
        return files[path]

    def commit(self, *, number: int, parent: str, files: Mapping[str, str], message: str, when: datetime) -> str:
        if outside := [path for path in files if path not in self.editable]:
            raise RepositoryError(f"{outside[0]} is not editable", hint="see task.yaml")
        tree = {**self._commit(parent).files, **files}
        name = self.write(Commit(tree, (parent,), message), when)
        self.refs[number] = name
        return name

    def checkout(self, slot: int, commit: str) -> Path:
        return self._put(commit, self.folder / f"slot-{slot}")

    def pristine(self, commit: str) -> Path:
        return self._put(commit, self.folder / "pristine")

    def _put(self, commit: str, folder: Path) -> Path:
        files = self._commit(commit).files
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(text.encode())
        return folder

    def confirmed(self) -> str:
        return self.branch

    def tip(self) -> str:
        return self.tip_ref or self.branch

    def move_tip(self, commit: str) -> None:
        self._commit(commit)
        self.tip_ref = commit

    def parent(self, commit: str) -> str:
        return self._commit(commit).parents[0]

    def advance(self, old: str, new: str) -> None:
        self._commit(new)
        if self.branch not in (old, new):
            raise RepositoryError(f"the branch is at {self.branch}, not at {old}", hint="move it back")
        self.branch = new

    def damaged(self, commits: Mapping[int, str]) -> Sequence[int]:
        return [n for n, commit in commits.items() if self.refs.get(n) is None or commit not in self.commits]

    def restore_branch(self, commit: str) -> None:
        self.branch = self.branch or commit

    def record_discard(self, *, number: int, commit: str, incumbent: str, when: datetime) -> str:
        tip, tried = self.tip(), self._commit(commit)
        if self._commit(tip).message == f"Revert {number}":
            return tip
        if tried.parents[:1] != (tip,):
            commit = self.write(Commit(tried.files, (tip,), tried.message), when)
        kept = self._commit(incumbent).files
        self.tip_ref = self.write(Commit(kept, (commit,), f"Revert {number}"), when)
        return self.tip_ref

    def fall_back(self, commit: str, number: int, when: datetime) -> str:
        tip, files, message = self.tip(), self._commit(commit).files, f"Fall back to {number}"
        if self._commit(tip) != Commit(files, self._commit(tip).parents, message):
            self.tip_ref = self.write(Commit(files, (tip,), message), when)
        return self.tip_ref

    def diff(self, old: str, new: str) -> str:
        before, after = self._commit(old).files, self._commit(new).files
        found: list[str] = []
        for path in sorted({*before, *after}):
            old, new = (files.get(path, "").splitlines() for files in (before, after))
            found += difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="")
        return "\n".join(found)

    def pack(self) -> None:
        pass

    def close(self) -> None:
        pass
