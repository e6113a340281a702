"""Git objects: trees and commits as bytes, and the object database, the one place that uses GitPython.

Formats as git's own tree.c and commit.c write them: entries ``<mode> <name> NUL <20 bytes>``, sorted with a slash
behind folders. Trees are handled as bytes, since names in a user's repository need not be UTF-8. Objects are read by a
``git cat-file --batch`` that GitPython keeps running, for a fraction of a process start each. They are written by ``git
unpack-objects``, all of a commit in one process: GitPython's own database neither flushes them nor closes its files
when the disk is full. Those of submodules (gitsubmodules(7)) are only read; runs get copies of the files, and nothing
of their git directories.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, RepositoryError
from autoresearchd.workspace.command import ADDRESS, IDENTITY, Git, reading
from autoresearchd.workspace.files import disk_errors
from autoresearchd.workspace.layout import common_dir, git_dir, is_git_dir

if TYPE_CHECKING:
    from git import Git as PythonGit

FOLDER = b"40000"
LINK = b"120000"
SUBMODULE = b"160000"
FETCH = "git submodule update --init --recursive"
"""What brings the pinned commits of all submodules to this machine."""
_PACKED = {"commit": 1, "tree": 2, "blob": 3}
"""Numbers of kinds in a pack."""
_NO_NAMES = (b"", b".", b"..", b".git")
_SHA = re.compile(r"[0-9a-f]{40}")
_T = TypeVar("_T")
_COMMITTER = re.compile(rb"^committer .*<([^>]*)> ([0-9]{1,12}) [+-][0-9]{4}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a tree. mode: as git writes it; pinned: the commit that it is, of a submodule that was opened."""

    mode: bytes
    name: bytes
    sha: str
    pinned: str = ""

    @property
    def is_folder(self) -> bool:
        return self.mode in (FOLDER, b"040000")

    @property
    def is_file(self) -> bool:
        return self.mode.startswith(b"100")

    @property
    def is_executable(self) -> bool:
        return self.is_file and self.mode.endswith(b"755")


@dataclass(frozen=True, slots=True)
class CommitObject:
    """What is needed of a commit. seconds: when it was committed, since 1970; own: by the daemon."""

    tree: str
    parents: tuple[str, ...]
    message: str
    seconds: int
    own: bool


def is_commit_id(text: str) -> bool:
    """40 lower-case hex digits."""
    return bool(_SHA.fullmatch(text))


def object_id(kind: str, data: bytes) -> str:
    """The name that git gives to an object."""
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def parse_tree(data: bytes) -> list[Entry]:
    """Entries of a tree object; ValueError when it is damaged."""
    entries, at = [], 0
    while at < len(data):
        space = data.index(b" ", at)
        end = data.index(b"\0", space)
        sha = data[end + 1 : end + 21]
        if len(sha) != 20:
            raise ValueError("a tree object ends in the middle of an entry")
        entries.append(Entry(data[at:space], data[space + 1 : end], sha.hex()))
        at = end + 21
    return entries


def serialise_tree(entries: list[Entry]) -> bytes:
    """A tree object; sorted as git sorts."""
    ordered = sorted(entries, key=lambda e: e.name + (b"/" if e.is_folder else b""))
    return b"".join(e.mode + b" " + e.name + b"\0" + bytes.fromhex(e.sha) for e in ordered)


def serialise_commit(tree: str, parent: str, message: str, when: datetime) -> bytes:
    """A commit object; author and committer are the daemon, the time is UTC."""
    if when.tzinfo is None:
        raise ValueError("the time of a commit needs a time zone")
    who = f"{IDENTITY} <{ADDRESS}> {int(when.timestamp())} +0000"
    text = message.replace("\0", "").encode("utf-8", "replace")
    return f"tree {tree}\nparent {parent}\nauthor {who}\ncommitter {who}\n\n".encode() + text


def parse_commit(data: bytes) -> CommitObject:
    """The parts of a commit object; ValueError when it is damaged."""
    head, _, message = data.partition(b"\n\n")
    lines = head.split(b"\n")
    if not lines[0].startswith(b"tree "):
        raise ValueError("a commit object without a tree")
    parents = tuple(line[7:].decode("ascii") for line in lines if line.startswith(b"parent "))
    when = _COMMITTER.search(head)
    seconds, own = (int(when[2]), when[1] == ADDRESS.encode()) if when else (0, False)
    return CommitObject(lines[0][5:].decode("ascii"), parents, message.decode("utf-8", "replace"), seconds, own)


@dataclass(frozen=True, slots=True)
class NewObjects:
    """Objects to be written together, by name: kind and data."""

    found: dict[str, tuple[str, bytes]] = field(default_factory=dict)

    def add(self, kind: str, data: bytes) -> str:
        """Take one more; its name."""
        sha = object_id(kind, data)
        self.found[sha] = kind, data
        return sha

    def pack(self) -> bytes:
        """As a pack of whole objects (gitformat-pack(5))."""
        parts = [b"PACK" + struct.pack(">II", 2, len(self.found))]
        for kind, data in self.found.values():
            left = len(data) >> 4
            head = [_PACKED[kind] << 4 | len(data) & 15]
            while left:
                head[-1] |= 128
                head.append(left & 127)
                left >>= 7
            parts += [bytes(head), zlib.compress(data)]
        body = b"".join(parts)
        return body + hashlib.sha1(body, usedforsecurity=False).digest()


class ObjectStore:
    """Reads and writes objects. Safe to use from several threads.

    reader: git in the private repository, whose alternate is the user's object database; writer: git in the user's
    common directory; others: databases that are only read, those of submodules.
    """

    def __init__(self, reader: Git, writer: Git, others: Iterable[Path] = ()) -> None:
        self._writer = writer
        self._git = _python_git(replace(reader, environment={**reader.environment, **reading(others)}))
        self._lock = threading.Lock()
        self._pinned: dict[str, str | None] = {}
        """Trees of the commits that submodules are pinned to; None where no database has them."""
        self._closer = weakref.finalize(self, _end, self._git)

    def close(self) -> None:
        """End the process that reads; it is started again when something is read."""
        with self._lock:
            _end(self._git)

    # -- reading
    def read(self, sha: str, kind: str) -> bytes:
        """Content of an object; RepositoryError when it is missing, damaged or of another kind."""
        if not is_commit_id(sha):
            raise RepositoryError(f"{sha[:60]!r} is not a commit", hint="commits are named by 40 hex digits")
        with self._lock:
            answer = self._read(sha)
        if answer is None:
            raise _missing(sha)
        if answer[0] != kind:
            raise RepositoryError(f"{sha} is a {answer[0]}, not a {kind}", hint="name a commit of this session")
        return answer[1]

    def commit(self, sha: str) -> CommitObject:
        return self._parse(sha, "commit", parse_commit)

    def tree(self, sha: str) -> list[Entry]:
        return self._parse(sha, "tree", parse_tree)

    def _parse(self, sha: str, kind: str, parse: Callable[[bytes], _T]) -> _T:
        try:
            return parse(self.read(sha, kind))
        except ValueError as error:
            raise _missing(sha) from error

    def opened(self, sha: str) -> list[Entry]:
        """Entries of a tree; submodules whose objects are at hand are folders, as the pinned commit has them.

        A name that git never checks out is refused: it would lead out of the folder or into a git directory.
        """
        entries = self.tree(sha)
        names = {entry.name for entry in entries}
        if len(names) != len(entries) or any(b"/" in name or name.lower() in _NO_NAMES for name in names):
            raise RepositoryError(
                f"git tree {sha} has a name that git does not check out",
                hint="run `git fsck` there; a submodule that comes with such a tree is not to be trusted",
            )
        return [self._open(entry) for entry in entries]

    def _open(self, entry: Entry) -> Entry:
        if entry.mode == SUBMODULE and entry.sha not in self._pinned:
            try:
                self._pinned[entry.sha] = self.commit(entry.sha).tree
            except RepositoryError:
                self._pinned[entry.sha] = None
        tree = self._pinned.get(entry.sha) if entry.mode == SUBMODULE else None
        return entry if tree is None else Entry(FOLDER, entry.name, tree, pinned=entry.sha)

    def submodules(self, tree: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bool]]:
        """Paths of the submodules below a tree, outer ones first, and whether their objects are at hand."""
        for entry in self.opened(tree):
            if entry.pinned or entry.mode == SUBMODULE:
                yield prefix + entry.name, bool(entry.pinned)
            if entry.is_folder:
                yield from self.submodules(entry.sha, prefix + entry.name + b"/")

    def lookup(self, tree: str, parts: tuple[bytes, ...]) -> Entry | None:
        """The entry at a path below a tree, never through a symbolic link; None when there is none."""
        entry = Entry(FOLDER, b"", tree)
        for part in parts:
            inner = self.opened(entry.sha) if entry.is_folder else []
            found = next((e for e in inner if e.name == part), None)
            if found is None:
                return None
            entry = found
        return entry

    def _read(self, sha: str) -> tuple[str, bytes] | None:
        """Kind and content of an object; None where it is missing or damaged. EnvironmentFailure: git was killed."""
        code = 0
        for _ in range(2):
            with contextlib.suppress(OSError):  # it has gone (killed with its terminal, out of memory)
                try:
                    kind: Any  # GitPython says that header words are text; they are bytes
                    _, kind, size, data = self._git.get_object_data(sha)
                    if len(data) == size:
                        return kind.decode("ascii"), data
                except ValueError as error:  # an answer that is none: "missing", or the end of the process
                    if "could not be resolved" in str(error):
                        return None
            code = _end(self._git)
        if code < 0:
            raise EnvironmentFailure("git cat-file was killed", hint="the daemon tries again")
        return None  # git ends at an object that breaks off

    # -- writing
    def write(self, objects: NewObjects) -> None:
        """Store objects and bring them to the disk, in one process; damaged loose objects of their names go before."""
        with disk_errors("writing to the git repository"):
            for sha in objects.found:
                loose = self._writer.directory / "objects" / sha[:2] / sha[2:]
                try:
                    zlib.decompress(loose.read_bytes())
                except FileNotFoundError:
                    pass
                except zlib.error:  # a power cut can leave an empty file; git takes it for what it should be
                    loose.unlink(missing_ok=True)
        words, pack = ("unpack-objects", "-q"), objects.pack()
        result = self._writer.run(*words, stdin=pack)
        if "unable to create temporary file" in result.err:  # packing has just removed the folder, which was empty
            result = self._writer.run(*words, stdin=pack)
        result.checked()

    def change_tree(self, tree: str, files: Mapping[tuple[bytes, ...], str], new: NewObjects) -> str:
        """The tree with the blobs of existing files (path → blob) replaced; its name. Modes stay. new: takes trees."""
        entries = self.tree(tree)
        by_name: dict[bytes, dict[tuple[bytes, ...], str]] = {}
        for (first, *rest), blob in files.items():
            by_name.setdefault(first, {})[tuple(rest)] = blob
        changed = []
        for entry in entries:
            below = by_name.pop(entry.name, None)
            if below is not None:
                entry = replace(entry, sha=below[()] if () in below else self.change_tree(entry.sha, below, new))
            changed.append(entry)
        if by_name:
            raise RepositoryError(f"not in the tree: {sorted(by_name)}", hint="only files that exist can be edited")
        return new.add("tree", serialise_tree(changed))


def _python_git(reader: Git) -> PythonGit:
    try:
        # Here and not at the top: importing GitPython fails where git is missing, and takes 0.1 s where it is not.
        from git import Git as PythonGit
    except ImportError as error:
        raise MissingCapability(f"GitPython cannot be used: {error}", hint="install git and put it on PATH") from error
    git, directory = PythonGit(str(reader.directory)), str(reader.directory)
    # GitPython adds this to our own environment, so what could lead it astray from there is named as well.
    private = {"GIT_DIR": directory}
    if (reader.directory / "objects").is_dir():  # not a linked worktree's
        private |= {"GIT_COMMON_DIR": directory, "GIT_OBJECT_DIRECTORY": f"{directory}/objects"}
    git.update_environment(**{**reader.environment, **private, "GIT_CONFIG_PARAMETERS": "", "GIT_TRACE": "0"})
    return git


def _end(git: PythonGit) -> int:
    """End the process that reads, which is started again when something is read; its exit code, −signal when killed."""
    process: Any = git.cat_file_all
    code = 0
    if process is not None:
        for stream in (process.stdin, process.stdout, process.stderr):  # else they are left to the garbage collector
            with contextlib.suppress(OSError):
                stream.close()
        code = process.proc.wait() if getattr(process, "proc", None) is not None else 0
    git.clear_cache()
    return code


def _missing(sha: str) -> RepositoryError:
    return RepositoryError(
        f"git object {sha} is missing or damaged", hint="run `git fsck`; fetch what is missing from a clone"
    )


# ---------------------------------------------------------------------- submodules
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
