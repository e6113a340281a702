"""Private git directories: the user's objects, and nothing else of the user's.

Files are checked out and objects are read through these. They have their own ``config`` and their own
``info/attributes``, which outranks every ``.gitattributes`` (gitattributes(5)); so no filter, hook, monitor or line-end
rule of the user's repository, or of a commit, is ever looked at, however it changes in the meantime, and files come out
byte for byte as they are stored. Nothing in the user's own git directory (worktree list, HEAD, index) knows of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from autoresearchd.workspace.files import remove_tree

CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogAllRefUpdates = false\n"
ATTRIBUTES = b"* -text !eol -ident !filter !working-tree-encoding !diff !merge\n"
HEADLESS = "ref: refs/heads/none"
_HEAD = re.compile(rb"(?:" + HEADLESS.encode() + rb"|[0-9a-f]{40})\n")
"""Whole, since git takes a folder whose HEAD a power cut cut off after ``ref: `` for no repository at all."""


def is_private(git_dir: Path, objects: Path) -> bool:
    """Whether ``git_dir`` is a private git directory in working order."""
    try:
        return (
            _HEAD.fullmatch((git_dir / "HEAD").read_bytes()) is not None
            and (git_dir / "config").read_bytes() == CONFIG
            and (git_dir / "info" / "attributes").read_bytes() == ATTRIBUTES
            and (git_dir / "objects" / "info" / "alternates").read_bytes() == _alternates(git_dir, objects)
            and (git_dir / "refs").is_dir()
        )
    except OSError:
        return False


def make_private(git_dir: Path, objects: Path, head: str = HEADLESS) -> None:
    """Make a private git directory anew. head: a commit, for one that files are checked out from."""
    if os.path.lexists(git_dir):
        remove_tree(git_dir)
    for folder in ("objects/info", "refs/heads", "info"):
        (git_dir / folder).mkdir(parents=True, exist_ok=True)
    (git_dir / "config").write_bytes(CONFIG)
    (git_dir / "info" / "attributes").write_bytes(ATTRIBUTES)
    (git_dir / "objects" / "info" / "alternates").write_bytes(_alternates(git_dir, objects))
    (git_dir / "HEAD").write_bytes(f"{head}\n".encode())


def _alternates(git_dir: Path, objects: Path) -> bytes:
    """The path is relative, so that the repository can be moved and may lie under any name."""
    return os.fsencode(os.path.relpath(objects, git_dir / "objects")) + b"\n"
