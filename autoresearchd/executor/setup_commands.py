"""Setup commands: run once for each content of a task, on unedited code, with the network."""

from __future__ import annotations

import errno
import math
import os
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from autoresearchd.domain.errors import BaselineError, EnvironmentFailure, Interrupted, MissingCapability
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.task import Task
from autoresearchd.executor.interpreter import inspect, resolve_python
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.launch import Plan, Program, Stage, launch, reap
from autoresearchd.sandbox.view import setup_environment

MARKER = ".autoresearchd-setup-done"
_LOOK_EVERY = 0.1
_TAIL_LINES = 20
_TAIL_BYTES = 16384


def run_setup(
    task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel, user_environment: Mapping[str, str]
) -> None:
    """Copy ``pristine`` to ``setup`` and run the task's setup commands there, unless that has been done.

    They are the user's own and run as the user would run them, but without keys (`view.setup_environment`). What
    an interrupted setup left is removed first. Raises BaselineError where a command failed, EnvironmentFailure where
    the folder cannot be made, or the disk is full; Interrupted.
    """
    if (setup / MARKER).exists():
        return
    try:
        setup.parent.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        lock = setup.with_name(setup.name + ".lock")
        stopped = partial(Interrupted, "the setup was stopped while another daemon ran it")
        with hold(lock, patience=math.inf, pause=cancel.wait, busy=stopped):
            if (setup / MARKER).exists():  # another daemon has done it meanwhile
                return
            _copy(pristine, setup)
            if task.execution.setup_commands:
                _run_commands(task, setup, log, cancel, user_environment)
            temporary = setup / (MARKER + ".tmp")
            with temporary.open("w") as stream:
                os.fsync(stream.fileno())
            temporary.replace(setup / MARKER)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot set up {setup}: {error}", hint="free disk space, or check permissions"
        ) from error


def _copy(pristine: Path, setup: Path) -> None:
    """A fresh copy without .git and without links that lead out of the folder (earlier runs put such there)."""
    if not remove_tree(str(setup)):
        raise OSError(errno.ENOTEMPTY, "an earlier set-up cannot be removed", str(setup))

    def ignored(folder: str, names: list[str]) -> set[str]:
        here = Path(folder)
        links = {n for n in names if (here / n).is_symlink() and (here / n).readlink().is_absolute()}
        return links | ({".git"} & set(names))

    shutil.copytree(pristine, setup, symlinks=True, ignore=ignored)


def _run_commands(task: Task, setup: Path, log: Path, cancel: Cancel, user_environment: Mapping[str, str]) -> None:
    supervisor_dir = setup.with_name(setup.name + ".run")
    reap([supervisor_dir])  # of a daemon that was killed together with the supervisor of its setup
    remove_tree(str(supervisor_dir))
    supervisor_dir.mkdir()
    try:
        python = resolve_python(task, setup)
    except MissingCapability:  # a setup command is there to make it
        python = Path(sys.executable)
    first = inspect(python).search_folders(supervisor_dir / "bin")
    env = setup_environment(user_environment, first=first, profile=task.profile, extra=task.execution.env)
    env["PWD"] = str(setup)
    stages = tuple(
        Stage(f"setup-{i}", Program(("/bin/sh", "-c", command), setup, env, log), append=i > 0, banner=f"$ {command}\n")
        for i, command in enumerate(task.execution.setup_commands)
    )
    run = launch(Plan(run_dir=supervisor_dir, stages=stages, plain=True, output=setup))
    try:
        while (report := run.wait(_LOOK_EVERY)) is None:
            if cancel.is_set():
                run.kill()
                run.wait()
                raise Interrupted("the setup was stopped; it will be done again from the start")
    finally:
        run.kill()
        run.wait()
        remove_tree(str(supervisor_dir))
    last = report.stages[-1]
    if last.outcome == "disk_full":
        raise EnvironmentFailure(f"the disk is full: {last.detail}", hint="free disk space and start again")
    if last.outcome != "ok":
        command = task.execution.setup_commands[len(report.stages) - 1]
        raise BaselineError(
            f"the setup command {command!r} failed ({last.detail or last.outcome}):\n{tail(log)}",
            hint=f"correct execution.setup_commands in task.yaml; the whole output is in {log}",
        )


def tail(log: Path) -> str:
    """The last lines of a log, whatever bytes it holds."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])
