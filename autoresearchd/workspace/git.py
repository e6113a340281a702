"""``GitWorkspace``: the files of a session under version control, as ``ports.Workspace`` wants them.

Commits are built in the object database, without an index or a worktree, refs are moved by ``git update-ref``, and runs
happen in slots (``folders.py``): the user's checkout, index and configuration are neither read nor written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path, PurePosixPath

from autoresearchd.domain.errors import RepositoryError, UsageError
from autoresearchd.domain.task import Task
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.branches import Branches
from autoresearchd.workspace.command import Git, find_git
from autoresearchd.workspace.files import disk_errors, hold_lock, split_path
from autoresearchd.workspace.folders import Exports, Slots, is_private, make_private
from autoresearchd.workspace.history import FALL_BACK, History, commit_message
from autoresearchd.workspace.objects import FETCH, Entry, NewObjects, ObjectStore, object_databases, serialise_commit

_USAGE = 129
"""Exit code of a git that does not know an option."""


class GitWorkspace:
    """The workspace of one session, on ``branch`` of the checkout that ``root`` is in; ended by ``close``.

    Once made, the daemon's folder is in the git directory, but no ref. task_folder: absolute, or relative to the top of
    the checkout. editable: the only paths in it that ``commit`` takes. history: ``refs`` or ``revert``. keep: data of
    the task; ``checkout`` and ``pristine`` leave links and empty placeholders there alone.
    """

    def __init__(
        self, root: Path, tag: str, *, task_folder: Path, editable: Sequence[str], history: str = "refs",
        keep: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.branch = layout.branch_name(tag)
        program, root = find_git(), layout.find_root(root)
        preflight.check_owner(program, root)
        folder = (root / task_folder).resolve()
        if not folder.is_relative_to(root):
            raise RepositoryError(
                f"the task's folder {folder} is not in the repository {root}",
                hint="move it there, or start in its own repository",
            )
        inner = folder.relative_to(root).as_posix()
        self.root, self.tag, self._folder, self._reverts = root, tag, "" if inner == "." else inner, history == "revert"
        self._parts = split_path(self._folder) if self._folder else ()
        self._editable = {path: split_path(path) for path in editable}
        common, self._state = layout.common_dir(root), layout.state_dir(root)
        objects, private = common / "objects", self._state / "git"
        with disk_errors(f"preparing {self._state}"):
            if not is_private(private, objects):
                make_private(private, objects)
        self._public, self._private = Git(program, common), Git(program, private)
        others = object_databases(program, root, (f"refs/heads/{self.branch}", "HEAD"))
        self._objects = ObjectStore(self._private, self._public, others)
        self._history = History(self._public, tag, self._state / "locks" / "refs", self._objects)
        inside = [path.rstrip("/") for path in keep if not path.startswith(("/", "~"))]
        kept = [PurePosixPath(*(part.decode() for part in split_path(path))) for path in inside]
        self._slots = Slots(
            program, layout.worktrees_dir(root, tag), objects, self._objects, [self._folder / path for path in kept]
        )
        self._exports = Exports(self._objects, self._state / "pristine", kept)

    def close(self) -> None:
        self._objects.close()

    # -- reading
    def head(self) -> str:
        return preflight.head_commit(self.root)

    def read(self, commit: str, path: str) -> str:
        entry = self._file(commit, path)
        data = self._objects.read(entry.sha, "blob")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            what = f"{path} at {commit[:10]} is not UTF-8 text: {error}"
            raise RepositoryError(what, hint="convert it to UTF-8 and commit it") from error

    def check_tracked(self, commit: str, paths: Sequence[str]) -> None:
        """Refuse task files that are not in a commit, or not as files (protected paths may be folders)."""
        tree = self._task_tree(commit)
        submodules = {os.fsdecode(name): there for name, there in self._objects.submodules(tree)}
        for path in paths:
            entry = self._objects.lookup(tree, split_path(path.rstrip("/")))
            around = {name: there for name, there in submodules.items() if f"{path}/".startswith(f"{name}/")}
            for name, there in around.items():
                inside = f"{path} is in the submodule {name}, whose"
                if path in self._editable:
                    raise RepositoryError(
                        f"{inside} commits are not this repository's",
                        hint="start the session in the submodule's own repository, or edit a file outside of it",
                    )
                if not there:
                    raise RepositoryError(f"{inside} pinned commit is not on this machine", hint=FETCH)
            if entry is None:
                raise RepositoryError(
                    f"{path} is not in commit {commit[:10]}, which the session would start from",
                    hint=f"git add -- {path} && git commit; an ignored file needs git add --force",
                )
            if not entry.is_file and (path in self._editable or not entry.is_folder):
                raise RepositoryError(
                    f"{path} is not a regular file in commit {commit[:10]}",
                    hint="commit the file itself, not a link to it",
                )

    def lacks_bit(self, commit: str, path: str) -> bool:
        """Whether a path is a file at a commit that may not be executed; git may know a bit that the disk does not."""
        try:
            parts = split_path(path)
        except RepositoryError:
            return False  # no path of the task: whatever it is, git has no file there
        entry = self._objects.lookup(self._task_tree(commit), parts)
        return entry is not None and entry.is_file and not entry.is_executable

    def fingerprint(self, commit: str, paths: Sequence[str]) -> str:
        """SHA-256 over files (or folders) at a commit; it changes when one of them changes, comes or goes."""
        tree, lines = self._task_tree(commit), []
        for path in sorted(set(paths)):
            entry = self._objects.lookup(tree, split_path(path.rstrip("/")))
            found = f"{entry.mode.decode()} {entry.sha}" if entry else "absent"
            lines.append(f"{path}\0{found}\n")
        return sha256("".join(lines).encode()).hexdigest()

    def diff(self, old: str, new: str) -> str:
        trees = [self._task_tree(commit) for commit in (old, new)]
        options = ("-r", "--patch", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--full-index")
        return self._private.run("diff-tree", *options, *trees).checked().out.decode("utf-8", "replace")

    # -- writing
    def commit(self, *, number: int, parent: str, files: Mapping[str, str], message: str, when: datetime) -> str:
        base, new = self._objects.commit(parent), NewObjects()
        blobs: dict[tuple[bytes, ...], str] = {}
        for path, text in files.items():
            self._file(parent, path)
            if path not in self._editable:
                raise RepositoryError(
                    f"{path} is not an editable file of the task", hint="add it to workspace.target_file"
                )
            try:
                data = text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise RepositoryError(f"the new {path} is not text: {error}", hint="propose text in UTF-8") from error
            blobs[(*self._parts, *self._editable[path])] = new.add("blob", data)
        tree = self._objects.change_tree(base.tree, blobs, new)
        commit = new.add("commit", serialise_commit(tree, parent, message, when))
        self._objects.write(new)
        self._history.set_experiment(number, commit)
        return commit

    def checkout(self, slot: int, commit: str) -> Path:
        self._task_tree(commit)
        return self._slots.checkout(slot, commit) / self._folder

    def pristine(self, commit: str) -> Path:
        """The task's folder at a commit as read-only files, checked each time; the same folder for the same content."""
        return self._exports.pristine(self._task_tree(commit))

    def materialise(self, commit: str, target: Path) -> None:
        self._exports.materialise(self._task_tree(commit), target)

    def history(self) -> History:
        return self._history

    def branches(self) -> Branches:
        return Branches(self.root, self._public, self._objects, self._history)

    # -- the branch and the tip
    def confirmed(self) -> str:
        return self._history.require_confirmed()

    def tip(self) -> str:
        return self._history.tip() or self.confirmed()

    def begin(self, base_commit: str) -> None:
        """Create the branch, the tip and the ref of experiment 0, all or none; hide ``.autoresearchd/``; repeatable."""
        self._task_tree(base_commit)
        preflight.exclude(self.root)
        self._history.begin(base_commit)

    def damaged(self, commits: Mapping[int, str]) -> list[int]:
        named = self._history.experiments()
        return [number for number, commit in commits.items() if named.get(number) != commit or not self._whole(commit)]

    def restore_branch(self, commit: str) -> None:
        self._history.restore_branch(commit)

    def abandon(self) -> None:
        """Remove the branch, refs and worktrees of a session that never got a baseline."""
        self._history.abandon()
        self._slots.remove()

    def forget(self, base: str) -> None:
        """Remove all of a session but its logs; nothing where the branch is at a foreign commit (RepositoryError)."""
        history, at = self._history, self._history.confirmed()
        known = at in (None, base) or at in history.experiments().values()
        if at is not None and not known and ((last := history.read(at)).number is None or not last.own):
            raise RepositoryError(
                f"branch {self.branch} is at {at}, which is none of the session's commits: nothing was removed",
                hint=f"give that commit a branch of its own, then `git branch -D {self.branch}`",
            )
        self._history.forget()
        self._slots.remove()

    def parent(self, commit: str) -> str:
        parents = self._objects.commit(commit).parents
        if not parents:
            raise RepositoryError(f"commit {commit[:10]} has no parent", hint="run `git fsck`")
        return parents[0]

    def advance(self, old: str, new: str) -> None:
        self._objects.commit(new)
        self._history.advance(old, new)

    def move_tip(self, commit: str) -> None:
        self._objects.commit(commit)
        self._history.move_tip(commit)

    def record_discard(self, *, number: int, commit: str, incumbent: str, when: datetime) -> str:
        kept = self._objects.commit(incumbent).tree
        tip, before = self._tip_and_before(2)
        if (  # this discard may be written already: it is when writing it again would give the tip
            before is not None
            and self._objects.commit(before).tree == kept
            and self._discard(before, number=number, commit=commit, when=when, tree=kept) == tip
        ):
            return tip
        if self._objects.commit(tip).tree != kept:
            raise RepositoryError(
                f"{self._history.tip_ref} was moved by somebody else: it is at {tip}, whose files are not those "
                f"of {incumbent}",
                hint=f"git update-ref {self._history.tip_ref} {incumbent}, then `autoresearchd resume`",
            )
        new = self._discard(tip, number=number, commit=commit, when=when, tree=kept)
        self._history.move_tip(new)
        return new

    def _discard(self, tip: str, *, number: int, commit: str, when: datetime, tree: str) -> str:
        """Write the discarded commit on ``tip`` (itself, where that is its parent) and its revert, with ``tree``."""
        tried, written, new = self._objects.commit(commit), commit, NewObjects()
        if tried.parents[:1] != (tip,):
            written = new.add("commit", serialise_commit(tried.tree, tip, tried.message, when))
        subject, trailers = tried.message.split("\n", 1)[0], {"Experiment": str(number), "Status": "discard"}
        message = commit_message(f'Revert "{subject}"', f"This reverts commit {written}.", trailers)
        reverted = new.add("commit", serialise_commit(tree, written, message, when))
        self._objects.write(new)
        return reverted

    def fall_back(self, commit: str, number: int, when: datetime) -> str:
        tree = self._objects.commit(commit).tree
        tip, before = self._tip_and_before(1)
        trailers = {"Experiment": str(number), "Status": FALL_BACK}
        why = "What was kept since is not better than it, as runs of both side by side have shown."
        message = commit_message(f"Fall back to experiment {number}", why, trailers)
        for parent in (before, tip) if before is not None else (tip,):
            new = NewObjects()
            fallen = new.add("commit", serialise_commit(tree, parent, message, when))
            if fallen == tip:
                return tip
        self._objects.write(new)
        self._history.move_tip(fallen)
        return fallen

    def _tip_and_before(self, generations: int) -> tuple[str, str | None]:
        """The tip, and its ancestor so many generations before it, if any. UsageError: none but keeps are written."""
        if not self._reverts:
            raise UsageError("discards are not written down", hint="set history: revert in task.yaml")
        tip = self.tip()
        before: str | None = tip
        for _ in range(generations):
            before = None if before is None else next(iter(self._objects.commit(before).parents), None)
        return tip, before

    # -- upkeep
    def pack(self) -> None:
        """Pack loose refs and objects. Nothing is pruned, whether reachable or not; may run beside everything else."""
        with hold_lock(self._state / "locks" / "pack") as lock:
            run = partial(self._public.run, keep_open=[lock], gently=True)
            result = run("pack-refs", "--include", f"{self._history.prefix}*")
            if result.code == _USAGE:
                # Before 2.42 git packs all refs or none; how a ref is stored is nothing that a user can see.
                result = run("pack-refs", "--all")
            result.checked()
            # Geometric: each pack at least twice the next, so that neither packs nor time spent packing add up.
            run("repack", "--geometric=2", "-d", "-l", "-n", "-q").checked()

    # -- parts
    def _task_tree(self, commit: str) -> str:
        entry = self._objects.lookup(self._objects.commit(commit).tree, self._parts)
        if entry is None or not entry.is_folder:
            raise RepositoryError(
                f"commit {commit[:10]} has no folder {self._folder!r}",
                hint=f"git add -- {self._folder} && git commit, then start from that commit",
            )
        return entry.sha

    def _whole(self, commit: str) -> bool:
        """Whether a commit can be read, with its trees and the editable files in it."""
        try:
            for path in self._editable:
                self._objects.read(self._file(commit, path).sha, "blob")
        except RepositoryError:
            return False
        return True

    def _file(self, commit: str, path: str) -> Entry:
        entry = self._objects.lookup(self._task_tree(commit), split_path(path))
        if entry is None or not entry.is_file:
            kind = "is not there" if entry is None else "is not a regular file"
            raise RepositoryError(
                f"{path} {kind} in commit {commit[:10]}", hint="commit it as a regular file, not as a link"
            )
        return entry


def open_workspace(root: Path, tag: str, task: Task, folder: Path) -> GitWorkspace:
    """The git adapter for a task's folder in the checkout at ``root``."""
    return GitWorkspace(
        root,
        tag,
        task_folder=folder,
        editable=task.editable,
        history=task.history,
        keep=(*task.data, *(task.evaluation.private if task.evaluation else ())),
    )


def setup_dir(root: Path, workspace: GitWorkspace, base_commit: str, task: Task) -> Path:
    """One folder for each content of protected files, commands, profile and interpreter."""
    files, execution = workspace.fingerprint(base_commit, task.protected), task.execution
    text = json.dumps([files, execution.setup_commands, task.profile, execution.python or sys.executable])
    return layout.setup_dir(root, sha256(text.encode()).hexdigest()[:16])
