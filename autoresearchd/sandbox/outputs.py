"""A look through the folder that a job has written, before anything is told of it that the job was not to know.

Whoever reads a result by its name follows a symbolic link, and may read what the job itself was not allowed to: the
answers it is scored against. A link like ``/proc/self/cwd/data`` even means another place to each process that follows
it. So nothing is followed here: each step of a link is taken by hand, and a way that leaves the folder is refused. The
look is taken when every process of the job is dead, so nothing can change behind it.

C modules only, see `supervise`. Background: path_resolution(7), link(2).
"""
# pathlib and contextlib are among what the supervisor must not import:
# ruff: noqa: PTH108, PTH115

from __future__ import annotations

import errno
import os
import stat

from autoresearchd.sandbox.log_files import dump

_MOST_LINKS = 40
"""Links on the way of one path; the kernel follows no more (path_resolution(7))."""
_MOST_NAMED = 3
_LONGEST = 120
_OUT_OF_REACH = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


def sift(folder: str) -> tuple[str, list[str]]:
    """What in a folder leads out of it, in words (empty: nothing does), and what was removed from it.

    Removed are named pipes, sockets and devices: no result, and a reader would wait for them. Symbolic and hard links
    stay where all that they lead to lies in the folder. Raises OSError where the disk fails.
    """
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return "the output folder itself was replaced", []
    except FileNotFoundError:
        return "the output folder itself was removed", []
    links: list[str] = []
    special: list[str] = []
    shared: dict[tuple[int, int, int], list[str]] = {}
    pending = [folder]
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
            told = f"a symbolic link to {_quoted(os.readlink(link))}, which leads out of the output folder"
            return f"{_name(folder, link)} is {told}", gone
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
    if not removed:
        return ""
    more = f" and {len(removed) - _MOST_NAMED} more" if len(removed) > _MOST_NAMED else ""
    return f"removed from the output folder, being neither files nor folders: {', '.join(removed[:_MOST_NAMED])}{more}"


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _name(folder: str, path: str) -> str:
    return _quoted(path[len(folder) :].lstrip("/") or ".")


def _quoted(text: str) -> str:
    """A name that a job has chosen, as it can be shown: quoted, without control characters, cut short."""
    return dump(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
