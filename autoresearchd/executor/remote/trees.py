"""The content of a folder as a list of files and one hash, which both ends of a transfer agree about."""

# Each file of data sets is looked at before each run: pathlib would double that.
# ruff: noqa: PTH115, PTH116, PTH123, PTH208

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.sandbox.job_files import leads_out

_LEFT_OUT = (".git", "__pycache__")


@dataclass(frozen=True, slots=True)
class Tree:
    """What is in a folder. names: of its files and links, relative to it; hash: of names, contents, executable bits."""

    names: tuple[str, ...]
    hash: str


class Trees:
    """Reads folders; one that has not changed since, by size, time and inode of its files, is not hashed again."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, str, bool], tuple[object, Tree]] = {}

    def read(self, top: Path, name: str = "", *, follow: bool = False, without: Iterable[Path] = ()) -> Tree:
        """The tree of a folder, or that of a folder in which ``top``, a file or a folder, lies as ``name``.

        follow: links are taken for what they lead to (data); else those that lead out of the folder, as the ones to
        data do, are left out, with git's own folder and compiled files. without: what really is one of these, or lies
        in one, is left out, whatever links lead to it. Raises OSError: a link to a folder around it.
        """
        under, left_out = f"{name}/" if name else "", tuple(f"{path}/" for path in without)
        files = sorted(
            (f"{under}{inner}" if inner else name, path, facts) for inner, path, facts in _files(top, follow, left_out)
        )
        key, stamp = (top, name, follow), [(entry, path, *_stamp(facts)) for entry, path, facts in files]
        known = self._known.get(key)
        if known is None or known[0] != stamp:
            digest = hashlib.sha256()
            for entry, path, facts in files:
                digest.update(b"%s\0%s\n" % (os.fsencode(entry), _content(path, facts)))
            known = self._known[key] = stamp, Tree(tuple(entry for entry, *_ in files), digest.hexdigest()[:32])
        return known[1]


def _files(top: Path, follow: bool, left_out: tuple[str, ...]) -> Iterator[tuple[str, str, os.stat_result]]:
    """Name, path and facts of each file and link; follow: through links to folders as well, however often."""
    pending = [("", os.fspath(top), os.path.realpath(top), frozenset[tuple[int, int]]())]
    while pending:
        name, path, real, around = pending.pop()
        try:
            facts = os.lstat(path)
            if stat.S_ISLNK(facts.st_mode) and (follow or not name):
                facts, real = os.stat(path), os.path.realpath(path)
        except FileNotFoundError:
            if not (follow and name):
                raise
            continue  # a link that leads nowhere does so for a run here, too
        if f"{real}/".startswith(left_out):
            continue
        if stat.S_ISDIR(facts.st_mode):
            here = (facts.st_dev, facts.st_ino)
            if here in around:
                raise OSError(f"{path} is a link to a folder around it")
            inside = (inner for inner in os.listdir(path) if inner not in _LEFT_OUT)
            now = around | {here}
            pending += [(f"{name}/{inner}".lstrip("/"), f"{path}/{inner}", f"{real}/{inner}", now) for inner in inside]
        elif stat.S_ISREG(facts.st_mode) or (stat.S_ISLNK(facts.st_mode) and _stays(os.fspath(top), path)):
            yield name, path, facts


def _stays(top: str, link: str) -> bool:
    return not os.readlink(link).startswith("/") and not leads_out(top, link)


def _stamp(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_mode, facts.st_size, facts.st_mtime_ns, facts.st_ino, facts.st_ctime_ns


def _content(path: str, facts: os.stat_result) -> bytes:
    if stat.S_ISLNK(facts.st_mode):
        return b"l" + os.fsencode(os.readlink(path))
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
    return (b"x" if facts.st_mode & stat.S_IXUSR else b"-") + digest
