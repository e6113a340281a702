"""Branches for a user, made of a session's work: trees merged, commits on a base, refs all at once or none.

Nothing here reads or writes a checkout or an index: trees are merged as objects. A rename is a file that went and one
that came; where one side renamed what the other changed, that is a conflict and is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from autoresearchd.domain.errors import RepositoryError, UsageError
from autoresearchd.workspace import preflight
from autoresearchd.workspace.command import Git
from autoresearchd.workspace.history import History
from autoresearchd.workspace.layout import BRANCHES, git_dir
from autoresearchd.workspace.objects import (
    FOLDER,
    Entry,
    NewObjects,
    ObjectStore,
    is_commit_id,
    serialise_commit,
    serialise_tree,
)

TextMerge = Callable[[str, str, str], str | None]
"""(base, ours, theirs) to a text with what both changed; None: they changed the same place."""


class MergeConflict(RepositoryError):
    """Two sides do not go together. path: of a file, from the top of the repository; how: what each did, in words."""

    def __init__(self, path: bytes, how: str) -> None:
        self.path = os.fsdecode(path)
        self.how = how.format(path=self.path)
        super().__init__(self.how)


class Branches:
    """git: of the user's common directory. Made by ``GitWorkspace.branches``."""

    def __init__(self, root: Path, git: Git, objects: ObjectStore, history: History) -> None:
        self._root, self._git, self._objects, self._history = root, git, objects, history

    # -- reading
    def resolve(self, revision: str) -> str:
        """The commit that a user names, as the checkout at the root understands it (HEAD, main~2, a hash)."""
        own = Git(self._git.program, git_dir(self._root))
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        found = own.run(*asked) if "\0" not in revision else None
        if found is None or not found.ok or not is_commit_id(found.text):
            raise UsageError(
                f"{revision[:100]!r} names no commit of {self._root}", hint="name a branch, a tag or a commit"
            )
        return found.text

    def contains(self, commit: str, other: str) -> bool:
        """Whether a commit is another one or has it among its ancestors."""
        result = self._git.run("merge-base", "--is-ancestor", other, commit)
        return result.code == 0 or (result.code != 1 and not result.checked())

    def tree(self, commit: str) -> str:
        return self._objects.commit(commit).tree

    # -- making
    def merge(self, base: str, ours: str, theirs: str, text: TextMerge) -> str:
        """The tree ``ours`` with what changed from base to theirs; MergeConflict where both changed the same."""
        new = NewObjects()
        merged = _Merge(self._objects, new, text).trees(b"", base, ours, theirs) or new.add("tree", b"")
        if merged in new.found:
            self._objects.write(new)
        return merged

    def commit(self, tree: str, parent: str, message: str, when: datetime) -> str:
        """Write a commit of the daemon; no ref names it. The same again gives the same."""
        new = NewObjects()
        made = new.add("commit", serialise_commit(tree, parent, message, when))
        self._objects.write(new)
        return made

    def require_free(self, names: Sequence[str]) -> None:
        """UsageError: git does not allow a name, it is kept for sessions, or there is such a branch."""
        taken = set(self._git.ask("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads/").splitlines())
        for name in names:
            shown = f"{name[:100]!r}"
            if not self._is_name(name):
                hint = "choose one like `night1-final`: no blanks, no '..', no '-' or '/' at its beginning"
                raise UsageError(f"{shown} cannot be the name of a branch", hint=hint)
            if name.split("/")[0] == BRANCHES:
                raise UsageError(f"{shown}: branches below {BRANCHES}/ are those of sessions", hint="choose another")
            above = {"/".join(name.split("/")[:n]) for n in range(1, name.count("/") + 2)}
            found = next((there for there in taken if there in above or there.startswith(f"{name}/")), None)
            if found is not None:
                how = "is there already" if found == name else f"leaves no room for {name}"
                raise UsageError(
                    f"branch {found} {how}; it is left as it is", hint="choose other names with --into NAME"
                )
            preflight.check_not_checked_out(self._root, name, "a branch of that name is to be made")

    def create(self, commits: Mapping[str, str]) -> None:
        """Make branches, all in one transaction of git's; none of them may be there."""
        self.require_free([*commits])
        for commit in commits.values():
            self._objects.commit(commit)
        self._history.create_branches(commits)

    def _is_name(self, name: str) -> bool:
        """As ``git branch`` takes it (git-check-ref-format(1)); what looks like an option or a commit is none."""
        if name.startswith("-") or name == "HEAD" or is_commit_id(name) or "\0" in name:
            return False
        return self._git.run("check-ref-format", f"refs/heads/{name}").ok


def _how_not_both(base: Entry | None, ours: Entry | None, theirs: Entry | None) -> str:
    """What two sides did with a path that is no file on all of them. ours: what is built on."""
    if base is None:
        return "both made {path}"
    if ours is None:
        return "{path}, which it changes, was deleted or renamed there"
    if theirs is None:
        return "it deletes or renames {path}, which was changed there"
    return "{path} is a file on one side only"


class _Merge:
    """Three-way merge of trees, path by path: what one side left alone is as the other has it."""

    def __init__(self, objects: ObjectStore, new: NewObjects, text: TextMerge) -> None:
        self._objects, self._new, self._text = objects, new, text

    def trees(self, path: bytes, base: str | None, ours: str | None, theirs: str | None) -> str | None:
        """Names of trees, None: there is no such folder, or nothing is left in it."""
        if ours == theirs or base == theirs:
            return ours
        if base == ours:
            return theirs
        sides = [{e.name: e for e in self._objects.tree(sha)} if sha else {} for sha in (base, ours, theirs)]
        names = sorted(set().union(*sides))
        merged = [self._entry(path + name, *(side.get(name) for side in sides)) for name in names]
        entries = [entry for entry in merged if entry is not None]
        return self._new.add("tree", serialise_tree(entries)) if entries else None

    def _entry(self, path: bytes, base: Entry | None, ours: Entry | None, theirs: Entry | None) -> Entry | None:
        if ours == theirs or base == theirs:
            return ours
        if base == ours:
            return theirs
        there = [entry for entry in (base, ours, theirs) if entry is not None]
        if all(entry.is_folder for entry in there):
            tree = self.trees(path + b"/", *(entry.sha if entry else None for entry in (base, ours, theirs)))
            return None if tree is None else Entry(FOLDER, there[0].name, tree)
        if base is None or ours is None or theirs is None or not all(entry.is_file for entry in there):
            raise MergeConflict(path, _how_not_both(base, ours, theirs))
        mode = ours.mode if theirs.mode == base.mode else theirs.mode
        if base.sha in (ours.sha, theirs.sha) or ours.sha == theirs.sha:
            return Entry(mode, base.name, ours.sha if theirs.sha == base.sha else theirs.sha)
        return Entry(mode, base.name, self._blob(path, base.sha, ours.sha, theirs.sha))

    def _blob(self, path: bytes, *sides: str) -> str:
        try:
            base, ours, theirs = (self._objects.read(sha, "blob").decode("utf-8") for sha in sides)
        except UnicodeDecodeError:
            raise MergeConflict(path, "both changed {path}, which is no text") from None
        merged = None if "\0" in base + ours + theirs else self._text(base, ours, theirs)
        if merged is None:
            raise MergeConflict(path, "both changed the same place of {path}")
        return self._new.add("blob", merged.encode("utf-8"))
