"""Folders that hold exactly a git tree: worktrees of slots, pristine exports, copies for policies.

Files are written here and not by git, byte for byte as they are stored: no filter, attribute or line-end rule has a
say. A folder is compared with the tree each time: by content the first time in a process, then by the stamps that the
kernel keeps (as git's index does, gitformat-index(5)). So what a job left there does not outlive it.

A slot's worktree has a private git directory beside it, for programs that look around in it (``git rev-parse HEAD``).
It has the user's objects and nothing else of the user's: by its own ``config`` and ``info/attributes``, which outranks
every ``.gitattributes`` (gitattributes(5)), no filter, hook or monitor is ever looked at, and nothing in the user's own
git directory knows of it. Whatever is wrong with a worktree: it is made anew.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.file_content import pointed_to
from autoresearchd.workspace.command import Git
from autoresearchd.workspace.files import disk_errors, hold_lock, is_placeholder, remove_tree
from autoresearchd.workspace.objects import LINK, SUBMODULE, Entry, ObjectStore, object_id

_Stamp = tuple[int, ...]
CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogAllRefUpdates = false\n"
ATTRIBUTES = b"* -text !eol -ident !filter !working-tree-encoding !diff !merge\n"
HEADLESS = "ref: refs/heads/none"
_HEAD = re.compile(rb"(?:" + HEADLESS.encode() + rb"|[0-9a-f]{40})\n")
"""Whole, since git takes a folder whose HEAD a power cut cut off after ``ref: `` for no repository at all."""


class TreeFolder:
    """A folder (``top``, which is there) that is filled with one tree after another.

    keep: paths in it; untracked links and empty placeholders at and below them stay. readonly: files may not be written
    to. own: a name at its top that is none of the tree's and stays.
    """

    def __init__(
        self, store: ObjectStore, top: Path, keep: Iterable[PurePosixPath] = (), *,
        readonly: bool = False, own: bytes = b"",
    ) -> None:  # fmt: skip
        self._store, self.top, self._keep, self._readonly, self._own = store, top, frozenset(keep), readonly, own
        self._written: dict[bytes, tuple[Entry, _Stamp]] = {}
        """Files as this process left them."""
        self._trees: dict[str, list[Entry]] = {}
        """Those of the last tree and below it: commits of a session share nearly all of them."""

    def fill(self, tree: str) -> None:
        """Make the folder hold exactly a tree, submodules that are at hand included. Raises OSError."""
        trees: dict[str, list[Entry]] = {}
        wanted = dict(self._walk(tree, b"", trees))
        self._trees = trees
        self._remove_untracked(b"", wanted)
        written = {}
        for name, entry in wanted.items():
            path = self.top / os.fsdecode(name)
            if entry.is_folder or entry.mode == SUBMODULE:
                path.mkdir(exist_ok=True)
                continue
            stamp = _stamp(path)
            if stamp is None or self._written.get(name) != (entry, stamp):
                if stamp is None or not self._matches(path, entry):
                    if self._is_data(name, path, entry):
                        continue
                    self._write(path, entry)
                stamp = _stamp(path)
            if stamp is not None:
                written[name] = entry, stamp
        self._written = written

    def _walk(self, tree: str, prefix: bytes, trees: dict[str, list[Entry]]) -> Iterable[tuple[bytes, Entry]]:
        """All that is tracked below a tree, a folder before what is in it."""
        entries = trees[tree] = self._trees.get(tree) or self._store.opened(tree)
        for entry in entries:
            yield prefix + entry.name, entry
            if entry.is_folder:
                yield from self._walk(entry.sha, prefix + entry.name + b"/", trees)

    def _remove_untracked(self, prefix: bytes, wanted: dict[bytes, Entry]) -> None:
        """Remove what is not in the tree, or is of another kind, in folders that are known to be folders."""
        for child in list(os.scandir(self.top / os.fsdecode(prefix))):
            name = prefix + os.fsencode(child.name)
            entry, is_folder = wanted.get(name), child.is_dir(follow_symlinks=False)
            if entry is None:
                if name != self._own:
                    self._remove(Path(child.path), PurePosixPath(os.fsdecode(name)))
            elif is_folder != (entry.is_folder or entry.mode == SUBMODULE):
                remove_tree(Path(child.path))
            elif is_folder:
                self._remove_untracked(name + b"/", wanted)

    def _remove(self, path: Path, name: PurePosixPath) -> None:
        """Remove what is untracked at a path, but for what is to be kept at or below it."""
        if is_placeholder(path) and self._is_kept(name):
            return
        if path.is_dir() and not path.is_symlink() and any(kept.is_relative_to(name) for kept in self._keep):
            for child in sorted(path.iterdir()):
                self._remove(child, name / child.name)
            if any(path.iterdir()):
                return
        if not remove_tree(path):
            raise RepositoryError(f"{path} cannot be removed", hint="remove it by hand")

    def _is_data(self, name: bytes, path: Path, entry: Entry) -> bool:
        """Whether it is data's link in place of a pointer of Git LFS, which another session may be reading through."""
        if not (self._readonly and entry.is_file and path.is_symlink()) or not self._is_kept(os.fsdecode(name)):
            return False
        return bool(pointed_to(self._store.read(entry.sha, "blob")))

    def _is_kept(self, name: str | PurePosixPath) -> bool:
        return any(PurePosixPath(name).is_relative_to(kept) for kept in self._keep)

    def _matches(self, path: Path, entry: Entry) -> bool:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return entry.mode == LINK and object_id("blob", os.fsencode(path.readlink())) == entry.sha
        if not stat.S_ISREG(mode) or entry.mode == LINK:
            return False
        fits = stat.S_IMODE(mode) == _readonly(entry) if self._readonly else bool(mode & 0o100) == entry.is_executable
        return fits and object_id("blob", path.read_bytes()) == entry.sha

    def _write(self, path: Path, entry: Entry) -> None:
        data = self._store.read(entry.sha, "blob")
        temporary = path.with_name(f".{os.getpid()}.making")
        temporary.unlink(missing_ok=True)
        if entry.mode == LINK:
            temporary.symlink_to(os.fsdecode(data))
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(temporary, flags, 0o777 if entry.is_executable else 0o666), "wb") as file:
                file.write(data)
            if self._readonly:
                temporary.chmod(_readonly(entry))
        temporary.rename(path)


def _readonly(entry: Entry) -> int:
    return 0o555 if entry.is_executable else 0o444


def _stamp(path: Path) -> _Stamp | None:
    """What changes when a file does; None where there is none."""
    try:
        s = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return s.st_ino, s.st_mode, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_dev


class Exports:
    """Writes folders of the repository out, pristine ones into ``folder``. keep: see ``TreeFolder``."""

    def __init__(self, store: ObjectStore, folder: Path, keep: Iterable[PurePosixPath] = ()) -> None:
        self._store, self._folder, self._keep = store, folder, frozenset(keep)
        self._made: dict[str, TreeFolder] = {}

    def pristine(self, tree: str) -> Path:
        """The export of a tree, files read-only; written anew where somebody altered it."""
        target = self._folder / tree
        with disk_errors(f"exporting the task's folder to {target}"), hold_lock(self._folder / "lock"):
            if target.is_symlink() or not target.is_dir():
                remove_tree(target)
                target.mkdir()
            if tree not in self._made:
                self._made[tree] = TreeFolder(self._store, target, self._keep, readonly=True)
            self._made[tree].fill(tree)
        return target

    def materialise(self, tree: str, target: Path) -> None:
        with disk_errors(f"copying the task's folder to {target}"):
            target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise RepositoryError(f"{target} is not empty", hint="name an empty folder")
            TreeFolder(self._store, target).fill(tree)


def _own_files(git_dir: Path, objects: Path) -> dict[str, bytes]:
    """All but HEAD in a private git directory; its path to ``objects`` is relative, so that both can be moved."""
    alternates = os.fsencode(os.path.relpath(objects, git_dir / "objects")) + b"\n"
    return {"config": CONFIG, "info/attributes": ATTRIBUTES, "objects/info/alternates": alternates}


def is_private(git_dir: Path, objects: Path) -> bool:
    """Whether ``git_dir`` is a private git directory in working order."""
    try:
        files = _own_files(git_dir, objects).items()
        head = _HEAD.fullmatch((git_dir / "HEAD").read_bytes())
        whole = all((git_dir / name).read_bytes() == content for name, content in files)
        return head is not None and whole and (git_dir / "refs").is_dir()
    except OSError:
        return False


def make_private(git_dir: Path, objects: Path, head: str = HEADLESS) -> None:
    """Make a private git directory anew. head: a commit, for one that files are checked out from."""
    remove_tree(git_dir)
    (git_dir / "refs" / "heads").mkdir(parents=True)
    for name, content in {**_own_files(git_dir, objects), "HEAD": f"{head}\n".encode()}.items():
        (git_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (git_dir / name).write_bytes(content)


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
        tree = self._folder / f"slot{int(slot)}"
        git = Git(self._program, self._folder / f"{tree.name}.git", tree)
        with disk_errors(f"checking out into {tree}"), hold_lock(self._folder / f"{tree.name}.lock") as lock:
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
            self._filled[slot] = TreeFolder(self._store, tree, self._keep, own=b".git")
        self._filled[slot].fill(self._store.commit(commit).tree)
        # We hold the slot's lock and no git of an earlier daemon does, so lock files in it are stale.
        for stale in ("index.lock", "HEAD.lock"):
            (git.directory / stale).unlink(missing_ok=True)
        git.check("read-tree", "--reset", commit, keep_open=[lock])
        (git.directory / "HEAD").write_bytes(f"{commit}\n".encode())
