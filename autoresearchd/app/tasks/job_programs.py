"""Whether the programs are there that the commands of a task, or of a ``command:`` policy, begin with.

A command is a line for ``sh``; what only a shell can tell of it is let pass.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from autoresearchd.config.python_environments import how_to_make, how_to_run
from autoresearchd.domain.errors import MissingCapability, RepositoryError, UsageError
from autoresearchd.domain.task import Task
from autoresearchd.executor.environment import resolve_python
from autoresearchd.loop.measuring.advice import set_bit
from autoresearchd.sandbox.view import search_path
from autoresearchd.workspace.git import GitWorkspace

_INTERPRETERS = ("sh", "bash", "dash", "zsh", "python", "python3", "perl", "ruby", "node", "uv")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_SYNTAX = "();<>|&"
_EXPANDED = frozenset("$`*?[]{}#\\")
_PATIENCE_S = 10.0


def require_tool(command: str, workspace: GitWorkspace, commit: str, source: Path) -> None:
    """Refuse a ``command:`` whose program is nowhere, or in the task's folder (``source``) but not in the commit."""
    words = _first_words(command)
    if not words:
        return
    first, script = words[0], words[1] if len(words) > 1 and Path(words[0]).name in _INTERPRETERS else ""
    if "/" in first:
        _require_file(first, workspace, commit, source)
        _require_bit("--policy command", first, workspace, commit)
    elif not _known_to_shell(first):
        here = f"; a script of the task's folder is written ./{first}" if (source / first).is_file() else ""
        what = f"--policy command: there is no program {first!r} on PATH"
        raise UsageError(what, hint=f"install it, or correct its name{here}")
    if not script or script.startswith("-") or _EXPANDED & set(script):
        return
    named_as_file = "/" in script or "." in script
    if (source / script).is_file() or (named_as_file and Path(first).name != "uv" and not shutil.which(script)):
        _require_file(script, workspace, commit, source)


def require_bits(task: Task, workspace: GitWorkspace, commit: str) -> None:
    """Refuse a task one of whose commands begins with a committed file that may not be executed."""
    # A later one may be a file whose bit an earlier one has set: set-up runs in a copy that it may write to.
    first = [("execution.setup_commands", command) for command in task.execution.setup_commands[:1]]
    for key, command in [*_job_commands(task), *first]:
        words = _first_words(command)
        if words and "/" in words[0]:
            _require_bit(f"task.yaml: {key}", words[0], workspace, commit)


def require_programs(task: Task, source: Path) -> tuple[str, ...]:
    """Refuse a command that begins with a program no job will find; sentences on what set-up has to make."""
    path, made = task.execution.env.get("PATH", ""), bool(task.execution.setup_commands)
    notes = []
    for key, command in _job_commands(task):
        words = _first_words(command)
        if not words or words[0].startswith("~"):
            continue
        path = path or search_path(_python(task, source).parent)
        runner = how_to_run(command, source)
        # Links to the task's own interpreter are made for each run.
        own = words[0] in ("python", "python3") and "PATH" not in task.execution.env
        if own or _is_there(words[0], source, path):
            notes += [f"{key} begins with {words[0]!r}: {runner}"] if runner and not made else []
            continue
        where = "at that place" if "/" in words[0] else f"on its PATH ({path})"
        what = f"{key} begins with {words[0]!r}, and a job finds no such program {where}"
        if not made:
            hint = "correct the command in task.yaml, or install the program there; `python` is the interpreter that "
            raise MissingCapability(what, hint=runner or f"{hint}execution.python names")
        notes.append(f"{what}: a setup command has to make it")
    return tuple(notes)


def _job_commands(task: Task) -> Iterator[tuple[str, str]]:
    yield "execution.run_command", task.execution.run_command
    yield from (("checks", check.command) for check in task.checks)
    if task.evaluation is not None:
        yield "evaluation.command", task.evaluation.command
        yield "evaluation.model_command", task.evaluation.model_command or ""


def _python(task: Task, source: Path) -> Path:
    """The interpreter of the jobs, as far as it can be known before set-up."""
    try:
        return Path(sys.executable) if task.execution.python is None else resolve_python(task, source)
    except MissingCapability as error:
        if task.execution.setup_commands:
            return Path(sys.executable)
        if make := how_to_make(source):
            error.hint = f"make the environment of the project: {make}; or {error.hint}"
        raise


def _is_there(word: str, source: Path, path: str) -> bool:
    if "/" not in word:
        return _known_to_shell(word, path)
    place = source / word
    return place.is_file() and (not word.startswith("/") or os.access(place, os.X_OK))


def _first_words(command: str) -> list[str]:
    """The words of a command line after variables, up to the first sign of its syntax; empty: only a shell can tell."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=_SYNTAX)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for word in lexer:
            if word and set(word) <= set(_SYNTAX):
                if word.startswith("("):  # a function is defined, or a subshell begins
                    return []
                break
            if words or not _ASSIGNMENT.match(word):
                words.append(word)
    except ValueError:
        return []  # the shell will say what is wrong with it
    return [] if words and _EXPANDED & set(words[0]) else words


def _known_to_shell(word: str, path: str | None = None) -> bool:
    """Whether ``sh`` knows a program, a built-in or a word of its syntax by this name; path: PATH, None: ours."""
    look = ["/bin/sh", "-c", 'command -v -- "$1"', "sh", word]
    env = None if path is None else {"PATH": path}
    try:
        return subprocess.run(look, env=env, capture_output=True, check=False, timeout=_PATIENCE_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return True  # not known: the session itself will show


def _require_bit(key: str, word: str, workspace: GitWorkspace, commit: str) -> None:
    """Refuse a word that a shell would execute, where it is a committed file without its executable bit."""
    path = posixpath.normpath(word)
    if not path.startswith(("/", "~", "..")) and workspace.lacks_bit(commit, path):
        raise UsageError(
            f"{key}: {word} may not be executed: its executable bit is not set in commit {commit[:10]}",
            hint=f"{set_bit(path)}; or name its interpreter, e.g. sh {word}",
        )


def _require_file(word: str, workspace: GitWorkspace, commit: str, source: Path) -> None:
    if word.startswith("~") and not word.startswith("~/"):
        return  # somebody else's home: the shell knows where
    if word.startswith(("/", "~/")):
        if not Path(word).expanduser().exists():
            raise UsageError(f"--policy command: there is no {word}", hint="correct the path, or put the tool there")
        return
    path = posixpath.normpath(word)
    if not path.startswith(".."):
        with contextlib.suppress(RepositoryError):
            workspace.check_tracked(commit, [path])
            return
    if (source / word).is_file():
        what = f"runs in a copy of the task's folder as committed ({commit[:10]}), and {word} is not in that"
        add = f"git add -- {shlex.quote(path)} && git commit"
        hint = f"commit it ({add}), or name it by {(source / word).resolve()}"
    else:
        what = f"there is no {word}, neither in the task's folder nor in its commit {commit[:10]}"
        hint = "correct the path, or commit the script; a tool that lies elsewhere is named by its absolute path"
    raise UsageError(f"--policy command: {what}", hint=hint)
