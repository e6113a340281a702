"""Slots: worktrees in which runs happen, one folder for each slot, with a private git directory beside it.

The first checkout of a process is ``git reset --hard`` in the slot's own git directory, named outright. Later ones
write the few files that differ themselves (a process of git takes longer than all the rest) and leave the index to the
next reset. Each then removes all that is not in the commit, compared here with its trees. Whatever is not as it was
left, by hand, by a job or by a crash, is git's affair again; what git cannot mend is made anew.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from autoresearchd.errors import RepositoryError
from autoresearchd.workspace.command import Git
from autoresearchd.workspace.files import disk_errors, held, is_placeholder, remove_tree
from autoresearchd.workspace.objects import LINK, SUBMODULE, Entry, ObjectStore, write_index
from autoresearchd.workspace.private import is_private, make_private
from autoresearchd.workspace.touched import Held, Seen, Stamp, index_rows, own_files, stamp, write_file


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
        self._trees: dict[str, dict[bytes, Entry]] = {}
        """Those of the last checkout: commits of a session share nearly all of them."""
        self._held: dict[int, Held] = {}
        """By slot: the tracked files as this process left them."""

    def checkout(self, slot: int, commit: str) -> Path:
        """Make a slot hold exactly ``commit``; the top of its worktree."""
        if slot < 0:
            raise ValueError(f"slots are numbered from 0: {slot}")
        tree = self._folder / f"slot{int(slot)}"
        git = Git(self._program, self._folder / f"slot{int(slot)}.git", tree)
        with disk_errors(f"checking out into {tree}"), held(self._folder / f"slot{int(slot)}.lock") as lock:
            held_before = self._held.pop(slot, None)
            if not self._usable(git, tree):
                self._make(git, tree, commit)
                held_before = None
            if held_before is not None and self._update(git, tree, commit, held_before):
                self._held[slot] = held_before
                return tree
            try:
                self._held[slot] = self._reset(git, tree, commit, lock)
            except (RepositoryError, OSError):
                # Whatever is wrong with it, a new one has nothing wrong. What fails then is not the worktree's fault.
                self._make(git, tree, commit)
                self._held[slot] = self._reset(git, tree, commit, lock)
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

    def _make(self, git: Git, tree: Path, commit: str) -> None:
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

    def _update(self, git: Git, tree: Path, commit: str, held_before: Held) -> bool:
        """Write what differs from the last checkout; False where that is more than regular files, and git has to."""
        try:
            if own_files(git.directory) != held_before.own:
                return False
            top, known = os.fsencode(tree) + b"/", held_before.paths
            wanted = dict(self._paths(self._store.commit(commit).tree, b""))
            if wanted.keys() != known.keys() or not stat.S_ISREG((tree / ".git").lstat().st_mode):
                return False
            different = [
                (path, entry)
                for path, entry in wanted.items()
                if not known[path].same(entry, stamp(top + path.rstrip(b"/")))
            ]
            if not all(entry.is_file for _, entry in different):
                return False
            self._clean(tree, commit)
            for path, entry in different:
                known[path] = Seen(entry, write_file(top + path, entry, self._store.read(entry.sha, "blob")))
            if different:
                write_index(git.directory / "index", index_rows(known))
            (git.directory / "HEAD").write_bytes(f"{commit}\n".encode())
            held_before.own = own_files(git.directory)
        except (RepositoryError, OSError, ValueError):  # ValueError: a path that the index writer will not take
            return False
        return True

    def _paths(self, sha: str, prefix: bytes) -> Iterator[tuple[bytes, Entry]]:
        """All that is tracked below a tree, by path; folders end with a slash."""
        for entry in self._entries(sha).values():
            if entry.is_folder:
                yield prefix + entry.name + b"/", entry
                yield from self._paths(entry.sha, prefix + entry.name + b"/")
            else:
                yield prefix + entry.name, entry

    def _entries(self, sha: str) -> dict[bytes, Entry]:
        """A tree's entries by name, remembered until the checkout after the next."""
        entries = self._trees.get(sha)
        if entries is None:
            entries = {entry.name: entry for entry in self._store.opened(sha)}
            self._trees[sha] = entries
        return entries

    def _reset(self, git: Git, tree: Path, commit: str, lock: int) -> Held:
        # We hold the slot's lock and no git of an earlier daemon does, so lock files in it are stale.
        for stale in ("index.lock", "HEAD.lock", "ORIG_HEAD.lock"):
            (git.directory / stale).unlink(missing_ok=True)
        pointer = tree / ".git"
        if pointer.is_symlink() or not pointer.is_file():
            remove_tree(pointer)
            pointer.write_text(
                f"gitdir: ../{git.directory.name}\n"
            )  # for people and programs that look around in there
        root = self._store.commit(commit).tree
        for name, _ in self._store.submodules(root):
            _vacate(tree, name)
        result = git.run("reset", "--quiet", "--hard", commit, keep_open=[lock])
        if not result.ok:
            raise result.failure()
        self._clean(tree, commit)
        top, paths = os.fsencode(tree) + b"/", {}
        for path, entry in self._paths(root, b""):
            found = stamp(top + path.rstrip(b"/"))
            paths[path] = Seen(entry, self._place(top + path, entry) if found is None else found)
        return Held(paths, own_files(git.directory))

    def _place(self, path: bytes, entry: Entry) -> Stamp | None:
        """Write what git leaves out, since it is in a submodule."""
        if entry.is_file:
            return write_file(path, entry, self._store.read(entry.sha, "blob"))
        place = Path(os.fsdecode(path))
        if entry.mode == LINK:
            place.symlink_to(os.fsdecode(self._store.read(entry.sha, "blob")))
        else:
            place.mkdir()
        return stamp(path.rstrip(b"/"))

    def _clean(self, tree: Path, commit: str) -> None:
        """Remove what is untracked, in folders that are known to be folders."""
        top = self._store.commit(commit).tree
        self._remove_untracked(tree, b"", top)
        used = {top, *(entry.sha for _, entry in self._paths(top, b"") if entry.is_folder)}
        self._trees = {sha: entries for sha, entries in self._trees.items() if sha in used}

    def _remove_untracked(self, top: Path, prefix: bytes, sha: str) -> None:
        """Compare a folder with its tree; in that of a submodule that is not at hand nothing is tracked."""
        entries = self._entries(sha) if sha else {}
        with os.scandir(os.fsencode(top) + b"/" + prefix) as found:
            names = [child.name for child in found]
        for name in names:
            entry = entries.get(name)
            if entry is None:
                if prefix or name != b".git":
                    self._clear(top, PurePosixPath(os.fsdecode(prefix + name)))
            elif entry.is_folder or entry.mode == SUBMODULE:
                self._remove_untracked(top, prefix + name + b"/", entry.sha if entry.is_folder else "")

    def _clear(self, tree: Path, name: PurePosixPath) -> None:
        """Remove what is untracked at a path, but for what is to be kept at or below it."""
        path = tree / name
        if is_placeholder(path) and any(name.is_relative_to(kept) for kept in self._keep):
            return
        holds_kept = (
            path.is_dir() and not path.is_symlink() and any(k.is_relative_to(name) for k in self._keep if k != name)
        )
        if holds_kept:
            for child in sorted(path.iterdir()):
                self._clear(tree, name / child.name)
            if any(path.iterdir()):
                return
        if not remove_tree(path):
            raise RepositoryError(f"{path} cannot be removed", mend="remove it by hand")


def _vacate(tree: Path, name: bytes) -> None:
    """Remove the folder of a submodule: git looks at nothing in there. A link on the way to it goes in its stead."""
    place = tree
    for part in PurePosixPath(os.fsdecode(name)).parts:
        place = place / part
        if place.is_symlink():
            break
    remove_tree(place)
