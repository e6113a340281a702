"""The Python that a task's jobs run with, and the folders that it needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.task import Task
from autoresearchd.sandbox.view import is_inside

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
