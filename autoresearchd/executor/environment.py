"""What jobs run with: cores of this machine, the task's Python, and what its setup commands make."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autoresearchd.domain.errors import BaselineError, EnvironmentFailure, Interrupted, MissingCapability
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Task
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.launch import Plan, Program, Stage, launch, reap
from autoresearchd.sandbox.view import is_inside, setup_environment


def processor() -> str:
    """The processor's model and how many cores may be used."""
    text = ""
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    found = re.search(r"^model name[^:\n]*:(.*)$", text, re.MULTILINE)
    model = found[1].strip() if found else platform.machine()
    return f"{model} x{len(os.sched_getaffinity(0))}"


def share_cores(slots: int) -> tuple[tuple[int, ...], ...]:
    """The cores that each slot has for itself; empty for a single slot, which has all. MissingCapability: too few."""
    cores = sorted(os.sched_getaffinity(0))
    if slots == 1:
        return ()
    if slots > len(cores):
        raise MissingCapability(
            f"{slots} slots, but this machine has {counted(len(cores), 'core')} for jobs and no GPU",
            hint=f"--slots {len(cores)} at most: runs that share a core would take each other's time",
        )
    each = len(cores) // slots
    return tuple(tuple(cores[i * each : (i + 1) * each]) for i in range(slots))


# ---------------------------------------------------------------------- the Python of a task
_ASK = """
import json, os, site, sys, sysconfig
prefixes = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
finders = [m for name, m in sys.modules.items() if name.startswith("__editable__")]  # of setuptools
editable = [str(p) for m in finders for p in getattr(m, "MAPPING", {}).values()]
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "folders": [*prefixes, user] if user and os.path.isdir(user) else prefixes,
    "purelib": sysconfig.get_path("purelib"), "stdlib": sysconfig.get_path("stdlib"),
    "imports": [p for p in [*sys.path, *editable] if os.path.isabs(p) and os.path.exists(p)],
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python.

    folders: its prefixes, and the user's own site-packages where it uses them; imports: what lies elsewhere and is
    imported by it, as packages of an editable installation and the folders of ``.pth`` files do.
    """

    executable: Path
    version: str
    folders: tuple[Path, ...]
    imports: tuple[Path, ...]
    purelib: Path
    stdlib: Path

    @property
    def bin(self) -> Path:
        return self.executable.parent

    def search_folders(self, tools: Path) -> list[Path]:
        """Folders for PATH where ``python`` and ``python3`` are this one: its own, else ``tools`` before it."""
        names, real = [self.bin / name for name in ("python", "python3")], self.executable.resolve()
        # An environment's are its own, also where they are copies and no links.
        own = (self.bin.parent / "pyvenv.cfg").is_file() and all(os.access(name, os.X_OK) for name in names)
        if own or all(name.resolve() == real for name in names):
            return [self.bin]
        tools.mkdir(exist_ok=True)
        for name in names:
            (tools / name.name).unlink(missing_ok=True)
            (tools / name.name).symlink_to(self.executable)
        return [tools, self.bin]


def resolve_python(task: Task, setup: Path) -> Path:
    """The interpreter that task.yaml names, else that of setup's environment, else ours. MissingCapability."""
    named = task.execution.python
    if named is None:
        made = setup / ".venv" / "bin" / "python"
        return made if os.access(made, os.X_OK) else Path(sys.executable)
    is_path = "/" in named or named.startswith("~")
    place = os.path.normpath(setup / Path(named).expanduser()) if is_path else shutil.which(named)
    if place is None or not Path(place).is_file() or not os.access(place, os.X_OK):
        raise MissingCapability(
            f"execution.python names {named!r}, which is no program on this machine",
            hint="correct execution.python in task.yaml: an interpreter's absolute path (/home/me/venv/bin/python); or "
            "let a setup command make that environment",
        )
    return Path(place)


def inspect(executable: Path) -> Interpreter:
    """Ask an interpreter what it is. Raises MissingCapability: it does not run."""
    environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    try:
        done = subprocess.run(
            [str(executable), "-c", _ASK],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True, env=environment, cwd="/",
        )  # fmt: skip
        facts = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise MissingCapability(
            f"the task's interpreter {executable} does not run: {error}",
            hint="correct execution.python in task.yaml, or remove the setup folder's broken .venv",
        ) from error
    folders = tuple(map(Path, dict.fromkeys(facts["folders"])))
    imports = (Path(os.path.normpath(p)) for p in dict.fromkeys(facts["imports"]))
    elsewhere = tuple(p for p in imports if not is_inside(p, folders))
    own = Path(facts["purelib"]), Path(facts["stdlib"])
    return Interpreter(executable, facts["version"], folders, elsewhere, *own)


# ---------------------------------------------------------------------- setup: run once for each content of a task
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
        Stage(f"setup-{i}", Program(("/bin/sh", "-c", command), setup, env, log), banner=f"$ {command}\n")
        for i, command in enumerate(task.execution.setup_commands)
    )
    run = launch(Plan(run_dir=supervisor_dir, stages=stages, plain=True, output=setup))
    try:
        while (result := run.wait(_LOOK_EVERY)) is None:
            if cancel.is_set():
                run.kill()
                run.wait()
                raise Interrupted("the setup was stopped; it will be done again from the start")
    finally:
        run.kill()
        run.wait()
        remove_tree(str(supervisor_dir))
    last = result.stages[-1]
    if last.outcome == "disk_full":
        raise EnvironmentFailure(f"the disk is full: {last.detail}", hint="free disk space and start again")
    if last.outcome != "ok":
        command = task.execution.setup_commands[len(result.stages) - 1]
        lines = log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace").splitlines() if log.exists() else []
        said = "\n".join(lines[-_TAIL_LINES:])
        raise BaselineError(
            f"the setup command {command!r} failed ({last.detail or last.outcome}):\n{said}",
            hint=f"correct execution.setup_commands in task.yaml; the whole output is in {log}",
        )
