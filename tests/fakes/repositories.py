"""Small real git repositories for tests, and snapshots that show whether a user's checkout was touched.

The git that makes them ignores the configuration of whoever runs the tests.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

TRAIN = "learning_rate = 0.1\nprint('val_bpb:', 1.0)\n"
FILES: Mapping[str, str] = {"train.py": TRAIN, "prepare.py": "print('prepared')\n", "lib/model.py": "WIDTH = 64\n"}

_REFLOG = ".git/logs/refs/heads/autoresearch"
_NOT_THE_USERS = (".git/objects", ".git/autoresearchd", ".autoresearchd", ".git/refs", ".git/packed-refs", _REFLOG)


def git(folder: Path, *args: str, stdin: str = "", check: bool = True) -> str:
    """Run git in a folder as a user would; its output."""
    who = {"NAME": "A User", "EMAIL": "user@example.org", "DATE": "2026-05-04T03:02:01Z"}
    environment = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in who.items()}
    environment |= {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C"}
    environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(
        ["git", *args], cwd=folder, env=environment, input=stdin, capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        raise AssertionError(f"git {' '.join(args)}: {done.stderr}")
    return done.stdout.rstrip("\n")


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files (path → content) below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_repository(folder: Path, files: Mapping[str, str | bytes] = FILES) -> str:
    """Make a repository with one commit on ``main``; the commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    write_files(folder, files)
    return commit_all(folder, "the user's first commit")


def commit_all(folder: Path, message: str = "another commit of the user's") -> str:
    """Commit everything in a checkout; the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def checkout_snapshot(root: Path) -> dict[str, str]:
    """What belongs to the user: working files with their times, index, HEAD, branches, stash, configuration.

    Left out: what a session may add (objects, its refs and branch, its own folder, ``.autoresearchd``), and how refs
    are stored: their values are compared instead.
    """
    found: dict[str, str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith(_NOT_THE_USERS):
            continue
        status = path.lstat()
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_dir():
            content = ""
        else:
            content = f"{hashlib.sha256(path.read_bytes()).hexdigest()} {status.st_mtime_ns}"
        found[name] = f"{oct(status.st_mode)} {content}"
    found["stash"] = git(root, "stash", "list")
    found["refs"] = "\n".join(
        line
        for line in git(root, "for-each-ref").splitlines()
        if "refs/autoresearch/" not in line and "/autoresearch/" not in line
    )
    return found
