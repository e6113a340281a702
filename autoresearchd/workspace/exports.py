"""Exports: the task's folder at a commit as plain files, for evaluation, set-up and policies.

A pristine export is content-addressed, made once and looked at each time it is handed out: a file that was altered is
written again and one that was added is removed, so that what a job without a sandbox did there does not outlive it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from autoresearchd.domain.file_content import pointed_to
from autoresearchd.errors import RepositoryError
from autoresearchd.workspace.command import Git
from autoresearchd.workspace.files import disk_errors, is_placeholder, remove_tree
from autoresearchd.workspace.objects import LINK, SUBMODULE, Entry, ObjectStore, object_id

_Stamp = tuple[int, int, int, int]


class Exports:
    """Writes folders of the repository out.

    Args:
        reader: git in the private repository that objects are read through.
        store: the same objects.
        folder: where pristine exports lie.
        keep: paths in an export; added links and empty placeholders at and below them stay.
    """

    def __init__(self, reader: Git, store: ObjectStore, folder: Path, keep: Iterable[PurePosixPath] = ()) -> None:
        self._reader, self._store, self._folder, self._keep = reader, store, folder, frozenset(keep)
        self._manifests: dict[str, dict[bytes, Entry]] = {}
        self._stamps: dict[str, dict[bytes, _Stamp]] = {}

    def pristine(self, tree: str) -> Path:
        """The export of a tree, files read-only; checked, and mended where somebody altered it."""
        target = self._folder / tree
        with disk_errors(f"exporting the task's folder to {target}"):
            if target.is_symlink() or not target.is_dir():
                self._make(tree, target)
            self._check(tree, target)
        return target

    def materialise(self, tree: str, target: Path) -> None:
        """Fill an empty folder with a tree; files may be written to."""
        with disk_errors(f"copying the task's folder to {target}"):
            target.mkdir(parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise RepositoryError(f"{target} is not empty", mend="name an empty folder")
            self._write_out(tree, target)
            self._fill_submodules(tree, target)

    def _fill_submodules(self, tree: str, target: Path) -> None:
        """Write what git leaves out: the files of submodules."""
        inside: tuple[bytes, ...] = ()
        for name, entry in self._manifest(tree).items():
            path = target / os.fsdecode(name)
            if entry.pinned:
                inside += (name + b"/",)
            if not name.startswith(inside):
                continue
            if entry.is_folder or entry.mode == SUBMODULE:
                path.mkdir(exist_ok=True)
            else:
                self._rewrite(path, entry, _mode(entry) | 0o200)

    def _make(self, tree: str, target: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_tree(target)
        temporary = Path(tempfile.mkdtemp(prefix="making-", dir=self._folder))
        try:
            files = temporary / "files"
            files.mkdir()
            self._write_out(tree, files)
            self._fill_submodules(tree, files)
            for name, entry in self._manifest(tree).items():
                if entry.is_file:
                    (files / os.fsdecode(name)).chmod(_mode(entry))
            files.rename(target)
        finally:
            remove_tree(temporary)

    def _write_out(self, tree: str, target: Path) -> None:
        """``git read-tree -u`` with an index that is thrown away; attributes are those of the private directory."""
        with tempfile.TemporaryDirectory(prefix="autoresearchd-index-") as scratch:
            git = Git(self._reader.program, self._reader.directory, target.resolve(), self._reader.environment)
            git.ask("read-tree", "--reset", "-u", tree, index=Path(scratch) / "index")

    def _manifest(self, tree: str) -> dict[bytes, Entry]:
        if tree not in self._manifests:
            self._manifests[tree] = dict(self._walk(tree, b""))
        return self._manifests[tree]

    def _walk(self, tree: str, prefix: bytes) -> list[tuple[bytes, Entry]]:
        found: list[tuple[bytes, Entry]] = []
        for entry in self._store.opened(tree):
            name = prefix + entry.name
            found.append((name, entry))
            if entry.is_folder:
                found.extend(self._walk(entry.sha, name + b"/"))
        return found

    def _check(self, tree: str, target: Path) -> None:
        """Compare with the manifest: by content the first time, then by the stamps that the kernel keeps (ctime)."""
        manifest, stamps = self._manifest(tree), self._stamps.setdefault(tree, {})
        self._remove_strangers(target, b"", manifest)
        for name, entry in manifest.items():
            path = target / os.fsdecode(name)
            if entry.is_folder or entry.mode == SUBMODULE:
                path.mkdir(exist_ok=True)
                continue
            stamp = _stamp(path)
            if stamp is not None and stamps.get(name) == stamp:
                continue
            if stamp is None or not _matches(path, entry):
                if self._stands_for(name, path, entry):
                    continue
                self._rewrite(path, entry, _mode(entry))
            fresh = _stamp(path)
            if fresh is not None:
                stamps[name] = fresh

    def _stands_for(self, name: bytes, path: Path, entry: Entry) -> bool:
        """Whether it is data's link in place of a pointer of Git LFS, which another session may be reading through."""
        place = PurePosixPath(os.fsdecode(name))
        if not (entry.is_file and path.is_symlink() and any(place.is_relative_to(kept) for kept in self._keep)):
            return False
        return bool(pointed_to(self._store.read(entry.sha, "blob")))

    def _remove_strangers(self, top: Path, prefix: bytes, manifest: dict[bytes, Entry]) -> None:
        with os.scandir(top / os.fsdecode(prefix)) as found:
            children = list(found)
        for child in children:
            name = prefix + os.fsencode(child.name)
            entry = manifest.get(name)
            is_folder = child.is_dir(follow_symlinks=False)
            if entry is None:
                self._remove_stranger(Path(child.path), PurePosixPath(os.fsdecode(name)))
            elif is_folder != (entry.is_folder or entry.mode == SUBMODULE):
                remove_tree(Path(child.path))
            elif is_folder:
                self._remove_strangers(top, name + b"/", manifest)

    def _remove_stranger(self, path: Path, name: PurePosixPath) -> None:
        if is_placeholder(path) and any(name.is_relative_to(kept) for kept in self._keep):
            return
        if path.is_dir() and not path.is_symlink() and any(kept.is_relative_to(name) for kept in self._keep):
            for child in sorted(path.iterdir()):
                self._remove_stranger(child, name / child.name)
        else:
            remove_tree(path)

    def _rewrite(self, path: Path, entry: Entry, mode: int) -> None:
        data = self._store.read(entry.sha, "blob")
        temporary = path.with_name(f".{os.getpid()}.making")
        temporary.unlink(missing_ok=True)
        if entry.mode == LINK:
            temporary.symlink_to(os.fsdecode(data))
        else:
            temporary.write_bytes(data)
            temporary.chmod(mode)
        temporary.rename(path)


def _mode(entry: Entry) -> int:
    return 0o555 if entry.is_executable else 0o444


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _matches(path: Path, entry: Entry) -> bool:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        return entry.mode == LINK and object_id("blob", os.fsencode(path.readlink())) == entry.sha
    if not stat.S_ISREG(found.st_mode) or entry.mode == LINK or stat.S_IMODE(found.st_mode) != _mode(entry):
        return False
    return object_id("blob", path.read_bytes()) == entry.sha
