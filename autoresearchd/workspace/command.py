"""Running git: a clean environment, settings under which it runs no program, its errors in the project's words.

Settings are handed over through ``GIT_CONFIG_COUNT`` (git-config(1)), which outranks every configuration file. No
argument, setting or ref name is ever made from a model's text: that goes through standard input only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Self

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, MissingCapability, RepositoryError
from autoresearchd.workspace.files import disk_errors

OLDEST = (2, 32)
IDENTITY = "autoresearchd"
ADDRESS = "autoresearchd@localhost"
_TIMEOUT_S = 900.0

SETTINGS: Mapping[str, str] = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.autocrlf": "false",
    "core.quotePath": "false",
    "core.pager": "cat",
    "core.editor": "false",
    # A ref or an object that a power cut emptied breaks the user's gc. The second is what git before 2.36 knows.
    "core.fsync": "loose-object,reference",
    "core.fsyncObjectFiles": "true",
    "core.filesRefLockTimeout": "500",
    "core.packedRefsTimeout": "2000",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "credential.helper": "",
    "protocol.allow": "never",  # a partial clone must not fetch what it lacks
}

_LOCKED = re.compile(r"Unable to create '([^'\n]+\.lock)': File exists")
_PASSING = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Input/output error|Too many open files"
    r"|Cannot allocate memory|[Oo]ut of memory|Resource temporarily unavailable|File too large|Stale file handle"
    r"|couldn't (?:write|set|close) '"  # a ref's lock, which git could make: it does not say why no more
)
_DAMAGED = re.compile(
    r"object file \S+ is empty|is corrupt|unable to read tree|bad object|missing blob|missing tree"
    r"|inflate: data stream error|unable to unpack|unable to read sha1 file|unable to read \S* ?[0-9a-f]{40}"
    r"|nonexistent object|invalid object|[Cc]ould not parse object|not a valid object|missing necessary objects"
)


@dataclass(frozen=True, slots=True)
class Result:
    """What a git command answered."""

    args: tuple[str, ...]
    code: int
    out: bytes
    err: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "surrogateescape").rstrip("\n")

    @property
    def lock(self) -> Path | None:
        found = _LOCKED.search(self.err)
        return Path(found.group(1)) if found else None

    def checked(self) -> Self:
        """The result; its failure is raised."""
        if not self.ok:
            raise self.failure()
        return self

    def failure(self) -> AutoresearchdError:
        name = f"git {self.args[0]}"
        said = " ".join(self.err.split())[:400] or f"exit code {self.code}"
        if self.lock is not None:
            return EnvironmentFailure(
                f"git is locked: {self.lock} is there",
                hint="another git is at work and the daemon tries again; if none is, delete that file",
            )
        if _PASSING.search(self.err):
            return EnvironmentFailure(f"{name}: {said}", hint="free some space or fix the disk; the daemon tries again")
        if self.code < 0:
            return EnvironmentFailure(f"{name} was ended by signal {-self.code}", hint="the daemon tries again")
        what, hint = f"{name} failed: {said}", "run `git fsck`; then `autoresearchd resume`"
        if _DAMAGED.search(self.err):
            what = f"the repository is damaged: {name}: {said}"
            hint = "run `git fsck`; fetch what is missing from a clone"
        elif "Permission denied" in self.err:
            hint = "the user that runs the daemon must be able to write to the repository"
        return RepositoryError(what, hint=hint)


def find_git() -> str:
    """Path of the git program; MissingCapability when there is none."""
    found = shutil.which("git")
    if found is None:
        raise MissingCapability("git was not found", hint="install git, e.g. `apt install git`, or put it on PATH")
    return found


def surroundings(settings: Mapping[str, str] = SETTINGS) -> dict[str, str]:
    """The environment that git gets: nothing of ours but what a program needs to start."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
    pairs = list(settings.items())
    numbered = {f"GIT_CONFIG_KEY_{i}": key for i, (key, _) in enumerate(pairs)}
    numbered |= {f"GIT_CONFIG_VALUE_{i}": value for i, (_, value) in enumerate(pairs)}
    return {
        **kept,
        **numbered,
        "GIT_CONFIG_COUNT": str(len(pairs)),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_AUTHOR_NAME": IDENTITY,
        "GIT_AUTHOR_EMAIL": ADDRESS,
        "GIT_COMMITTER_NAME": IDENTITY,
        "GIT_COMMITTER_EMAIL": ADDRESS,
        "LC_ALL": "C",
    }


def reading(objects: Iterable[Path]) -> dict[str, str]:
    """The part of git's environment that names further object databases to read; a colon there ends a path."""
    quoted = (str(path).replace("\\", "\\\\").replace('"', '\\"') for path in objects)
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(f'"{path}"' for path in quoted)}


@dataclass(frozen=True, slots=True)
class Git:
    """git at work in one git directory, named outright so that git never goes looking for one. tree: its files."""

    program: str
    directory: Path
    tree: Path | None = None
    environment: Mapping[str, str] = field(default_factory=surroundings)

    def run(self, *args: str, stdin: bytes = b"", keep_open: Sequence[int] = (), gently: bool = False) -> Result:
        """Run a command to its end. keep_open: descriptors that it inherits; gently: leave the processors to others."""
        tree = {} if self.tree is None else {"GIT_WORK_TREE": str(self.tree)}
        with disk_errors(f"running git {args[0]}"):
            process = Popen(
                [self.program, *args],
                cwd=self.tree or self.directory,
                env={**self.environment, "GIT_DIR": str(self.directory), **tree},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=tuple(keep_open),
                process_group=0,  # Ctrl-C in the terminal is for the daemon, which lets git finish
            )
        with process:
            if gently:
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, process.pid, 10)
            try:
                out, err = process.communicate(stdin, timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise EnvironmentFailure(
                    f"git {args[0]} did not end within {_TIMEOUT_S:.0f} s",
                    hint="look at the disk; the daemon tries again",
                ) from None
            except BaseException:
                process.kill()
                raise
        return Result(args, process.returncode, out, err.decode("utf-8", "replace"))

    def ask(self, *args: str, stdin: bytes = b"") -> str:
        return self.run(*args, stdin=stdin).checked().text
