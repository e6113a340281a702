"""The files of a run, for its supervisor: capped logs and reports, a look through what the job wrote, and its removal.

C modules only, see `supervise`. Background: path_resolution(7), link(2).
"""
# pathlib and contextlib are among what the supervisor must not import:
# ruff: noqa: PTH101, PTH104, PTH105, PTH106, PTH108, PTH115, SIM105

from __future__ import annotations

import errno
import os
import stat
from _json import encode_basestring_ascii

FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_LINKS = 40  # on the way of one path; the kernel follows no more (path_resolution(7))
_MOST_NAMED = 3
_LONGEST = 120
_OUT_OF_REACH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
_DEEP = 1000
"""Characters below the top: what lies deeper is moved up first, as paths end at 4,095 (path_resolution(7))."""


# -- what the supervisor writes --------------------------------------------------------------------------------------


class Log:
    """A log that keeps the last ``limit`` to ``2 × limit`` bytes, in the file and in the file with ``.1`` added."""

    def __init__(self, path: str, limit: int, append: bool) -> None:
        self.path, self.limit, self.full = path, limit, False
        if not append:
            unlink(path + ".1")
        self.fd = self.open(os.O_APPEND if append else os.O_TRUNC)
        self.size = os.fstat(self.fd).st_size if self.fd >= 0 else 0

    def open(self, mode: int) -> int:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_CREAT | mode, 0o644)
        except OSError as error:
            self.note(error)
            return -1

    def note(self, error: OSError) -> None:
        """Remember that the disk is full; any other error is raised."""
        if error.errno not in FULL:
            raise error
        self.full = True

    def write(self, data: bytes) -> None:
        if self.size >= self.limit and not self.full:
            os.close(self.fd)
            os.replace(self.path, self.path + ".1")
            self.fd, self.size = self.open(os.O_TRUNC), 0
        while data and not self.full:
            try:
                written = os.write(self.fd, data)
                self.size += written
                data = data[written:]
            except OSError as error:
                self.note(error)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def unlink(path: str) -> None:
    """Remove a file if it is there."""
    try:
        os.unlink(path)
    except OSError:
        pass


def dump(value: object) -> str:
    """JSON text of dicts, lists, strings and numbers."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(k)}: {dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    return "null" if value is None else repr(value)


def write_json(path: str, value: object) -> None:
    """Write a JSON file that is there whole or not at all."""
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, dump(value).encode())
    finally:
        os.close(fd)
    os.replace(path + ".tmp", path)


# -- what a job has written, looked through before anything is told of it that the job was not to know -----------------
#
# Whoever reads a result by its name follows a symbolic link, and may read what the job itself was not allowed to: the
# answers it is scored against. A link like ``/proc/self/cwd/data`` even means another place to each process that
# follows it. So nothing is followed here: each step of a link is taken by hand, and a way that leaves the folder is
# refused. The look is taken when every process of the job is dead, so nothing can change behind it.


def sift(folder: str) -> tuple[str, list[str]]:
    """What in a folder leads out of it, in words (empty: nothing does), and what was removed from it.

    Removed are named pipes, sockets and devices: a reader would wait for them. Links stay where all that they lead to
    lies in the folder. Raises OSError where the disk fails.
    """
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return "the output folder itself was replaced", []
    except FileNotFoundError:
        return "the output folder itself was removed", []
    links, special, pending = list[str](), list[str](), [folder]
    shared: dict[tuple[int, int, int], list[str]] = {}
    place = folder
    try:
        while pending:
            place = pending.pop()
            with os.scandir(place) as entries:
                for entry in entries:
                    facts = entry.stat(follow_symlinks=False)
                    kind = stat.S_IFMT(facts.st_mode)
                    if kind == stat.S_IFDIR:
                        pending.append(entry.path)
                    elif kind == stat.S_IFLNK:
                        links.append(entry.path)
                    elif kind != stat.S_IFREG:
                        special.append(entry.path)
                    elif facts.st_nlink > 1:
                        shared.setdefault((facts.st_nlink, facts.st_dev, facts.st_ino), []).append(entry.path)
        for place in special:
            os.unlink(place)
    except OSError as error:
        if error.errno not in _OUT_OF_REACH:
            raise
        return f"{_name(folder, place)} in the output folder cannot be looked into: {error.strerror}", []
    gone = [_name(folder, place) for place in special]
    for link in links:
        if leads_out(folder, link):
            target = _quoted(os.readlink(link))
            what = f"is a symbolic link to {target}, which leads out of the output folder"
            return f"{_name(folder, link)} {what}", gone
    for (count, *_), names in shared.items():
        if len(names) < count:
            return f"{_name(folder, names[0])} is a hard link to a file outside of the output folder", gone
    return "", gone


def leads_out(folder: str, link: str) -> bool:
    """Whether the way of a symbolic link in a folder leaves the folder; a way that ends nowhere does not."""
    tops = [_parts(folder), _parts(os.path.realpath(folder))]
    at = _parts(link)[len(tops[0]) : -1]
    ahead = [_parts(link)[-1]]
    followed = 0
    while ahead:
        part = ahead.pop(0)
        if part == "..":
            if not at:
                return True
            at.pop()
            continue
        path = "/".join([folder, *at, part])
        try:
            if not stat.S_ISLNK(os.lstat(path).st_mode):
                at.append(part)
                continue
            target = os.readlink(path)
        except OSError:
            return False
        followed += 1
        if followed > _MOST_LINKS:
            return True
        steps = _parts(target)
        if target.startswith("/"):
            top = next((top for top in tops if steps[: len(top)] == top), None)
            if top is None:
                return True
            at, steps = [], steps[len(top) :]
        ahead = steps + ahead
    return False


def removal(removed: list[str]) -> str:
    """A sentence for the log on what was removed; empty for nothing."""
    more = f" and {len(removed) - _MOST_NAMED} more" if len(removed) > _MOST_NAMED else ""
    names = ", ".join(removed[:_MOST_NAMED]) + more
    return f"removed from the output folder, being neither files nor folders: {names}" if removed else ""


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _name(folder: str, path: str) -> str:
    return _quoted(path[len(folder) :].lstrip("/") or ".")


def _quoted(text: str) -> str:
    """A name that a job has chosen, as it can be shown: quoted, without control characters, cut short."""
    return dump(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")


# -- removing folders that jobs wrote to, however deep they are --------------------------------------------------------


def remove_tree(path: str) -> bool:
    """Remove a file, a link (never followed) or a folder with all in it, as far as that can be; whether it is gone.

    A job can nest folders deeper than Python can call itself, and deeper than a path can name; read-only ones go, too.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return True
    except OSError:
        return not os.path.lexists(path)
    pending, folders = [path], list[str]()
    while pending:
        place = pending.pop()
        folders.append(place)
        _open_up(place)
        try:
            with os.scandir(place) as entries:
                children = list(entries)
        except OSError:
            continue
        for entry in children:
            try:
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                elif len(entry.path) - len(path) < _DEEP:
                    pending.append(entry.path)
                else:
                    near = f"{path}/.{os.urandom(8).hex()}"
                    _open_up(entry.path)  # whoever moves a folder changes its ``..``
                    os.rename(entry.path, near)
                    pending.append(near)
            except OSError:
                pass
    for place in reversed(folders):
        try:
            os.rmdir(place)
        except OSError:
            pass
    return not os.path.lexists(path)


def _open_up(folder: str) -> None:
    """Let its owner change a folder; somebody else's may be open to all as it is."""
    try:
        os.chmod(folder, 0o700)
    except OSError:
        pass
