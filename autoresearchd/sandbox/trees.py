"""Removing folders that jobs wrote to, however deep they are. C modules only, see `supervise`."""
# pathlib and contextlib are among what the supervisor must not import:
# ruff: noqa: PTH101, PTH104, PTH106, PTH108, SIM105

from __future__ import annotations

import os
import stat

_DEEP = 1000
"""Characters below the top: what lies deeper is moved up first, as paths end at 4,095 (path_resolution(7))."""


def remove_tree(path: str) -> bool:
    """Remove a file, a link or a folder with all in it, as far as that can be; whether it is gone.

    Links are removed, never followed. No level costs a call: a job can nest folders deeper than Python can, and deeper
    than a path can name, and whoever removes them must not fail on that. Read-only folders go, too.
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
