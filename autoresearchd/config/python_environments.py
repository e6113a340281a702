"""Python environments that a tool keeps for a project: what a command by that tool is without it, by files alone.

A job has neither the home nor the network that uv, poetry, pipenv and conda need, so it runs the interpreter itself.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.config.task_paths import start_of

_READ = 64 * 1024
_WORD = re.compile(r"\s*([\w./~:@%+=,-]+)(?=\s|$)")
_ASSIGNMENTS = re.compile(r"\s*(?:[A-Za-z_]\w*=[\w./~:@%+,-]*\s+)*")
_ACTIVATE = (
    ("venv", re.compile(r"\s*(?:source|\.)\s+([\w./~-]+)/bin/activate\s*&&\s*")),
    ("conda", re.compile(r"\s*(?:conda|mamba|micromamba)\s+activate\s+([\w.-]+)\s*&&\s*")),
)
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_NAME = re.compile(r"^name:[ \t]*['\"]?([\w.-]+)['\"]?[ \t]*$", re.MULTILINE)
_CONDAS = ("conda", "mamba", "micromamba")
RUNNERS = ("uv", "poetry", "pipenv", *_CONDAS)
"""Programs of which ``<program> run …`` runs a command in an environment."""

_FLAGS: Mapping[str, str] = {
    "uv": "-q --quiet -v --verbose --frozen --locked --offline --no-sync --dev --no-dev --all-extras --all-groups "
    "--all-packages --exact --inexact -n --no-cache --no-progress --native-tls",
    "poetry": "-q --quiet -n --no-interaction -v",
    "pipenv": "-q --quiet",
    "conda": "--no-capture-output --live-stream -v --verbose",
}
"""Options that say nothing about which environment it is, and need not be said to its interpreter."""
_VALUED: Mapping[str, str] = {
    "uv": "--extra --no-extra --group --no-group --only-group --package -p --python",
    "conda": "-n --name -p --prefix",
}
_TELL = {"poetry": "`poetry env info --executable`", "pipenv": "`pipenv --py`"}
"""What names the interpreter, of tools that keep environments out of sight."""
_RUN = {"-m": "python -m ", "--module": "python -m ", "-s": "python ", "--script": "python "}
"""Options of ``uv run`` that say what the next word is."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A command of a project that has an environment of its own, as a job runs it; make: what makes the environment.

    python: None where nobody knows the interpreter, or where it is that which runs now.
    """

    tool: str
    command: str
    changed: bool
    python: Path | None
    there: bool
    make: str

    @property
    def note(self) -> str:
        """The sentence about it; empty where everything is as it was given."""
        parts = []
        if self.changed:
            parts.append(f"jobs run without {self.tool}, so run_command is `{self.command}`")
        if self.python is not None:
            parts.append(f"execution.python is the interpreter of the project's own environment, {self.python}")
        if not self.there and self.tool in _TELL:
            parts.append(f"name its interpreter in execution.python: {_TELL[self.tool]} (`{self.make}` makes it)")
        elif not self.there:
            parts.append(f"that environment is not there yet: `{self.make}` makes it")
            parts += ["then name its interpreter in execution.python"] if self.python is None else []
        return "; ".join(parts)


def environment_of(
    command: str, folder: Path, *, environ: Mapping[str, str] = os.environ, running: Path = Path(sys.prefix)
) -> Environment | None:
    """What a shell's command needs to run as a job; None where no tool keeps an environment for it that is known.

    running: the environment of this process, which jobs have without being told.
    """
    finder = _Finder(folder.resolve(), environ)
    assignments, given = _after_assignments(command)
    asked = _asked_for(given, finder.folder)
    tool, rest, named = asked or (finder.tool(), given, "")
    if not tool or (not asked and tool != "venv" and _begins(given) in RUNNERS):
        return None
    prefix, make = finder.find(tool, named)
    there = prefix is not None and (prefix / "bin" / "python").exists()
    if prefix is not None and there and prefix.resolve() == running.resolve():
        prefix = None
    if not asked and not there:
        prefix = None  # nobody asked for it: it is told, and not written
    new = assignments + rest
    if new == command and there and prefix is None:
        return None
    return Environment(tool, new, new != command, prefix / "bin" / "python" if prefix else None, there, make)


def how_to_run(command: str, folder: Path) -> str:
    """What to write in place of a command by one of ``RUNNERS``; empty for any other."""
    first = _begins(_after_assignments(command)[1])
    if first not in RUNNERS:
        return ""
    found = environment_of(command, folder)
    if found is None:
        return (
            f"a job has no home and no network, which {first} needs: write the command without it, and name the "
            "interpreter of the environment in execution.python"
        )
    return f"{found.note}; a job has no home and no network, which {first} needs"


def how_to_make(folder: Path) -> str:
    """The command that makes the environment of a project; empty where no tool keeps one."""
    finder = _Finder(folder.resolve(), os.environ)
    tool = finder.tool()
    return finder.find(tool, "")[1] if tool else ""


# ---------------------------------------------------------------------- what a command says
def _after_assignments(command: str) -> tuple[str, str]:
    rest = _ASSIGNMENTS.sub("", command, count=1)
    return command.removesuffix(rest), rest


def _begins(command: str) -> str:
    """The program of a command like ``uv run …``; empty for any other."""
    words = command.split(maxsplit=2)
    return words[0] if len(words) > 1 and words[1] == "run" else ""


def _asked_for(command: str, folder: Path) -> tuple[str, str, str] | None:
    """(tool, the command without it, the environment as it is named) of one that names a tool or an environment."""
    for tool, pattern in _ACTIVATE:
        if found := pattern.match(command):
            return tool, _plain(command[found.end() :]), found[1]
    if _begins(command) in RUNNERS:
        return _by_runner(command)
    word = _WORD.match(command)
    if word is None or "/bin/" not in word[1] or not _PYTHON.fullmatch(Path(word[1]).name):
        return None
    prefix = word[1].rsplit("/", 2)[0]
    there = _is_environment(folder / Path(prefix).expanduser())
    return ("venv", "python" + command[word.end() :], prefix) if there else None


def _by_runner(command: str) -> tuple[str, str, str] | None:
    tool = "conda" if _begins(command) in _CONDAS else _begins(command)
    found = _WORD.match(command, command.index("run") + len("run"))
    named, lead = "", ""
    while found is not None and found[1].startswith("-"):
        option, given, value = found[1].partition("=")
        found = _WORD.match(command, found.end())
        if option == "--":
            break
        if tool == "uv" and option in _RUN and not given:
            lead = _RUN[option]
            break
        if option in _VALUED.get(tool, "").split():
            if not given:
                if found is None:
                    return None
                value, found = found[1], _WORD.match(command, found.end())
            named = value if tool == "conda" else named
        elif given or option not in _FLAGS[tool].split():
            return None  # whatever it asks for cannot be had without the tool
    if found is None:
        return None
    rest = command[found.start(1) :]
    if not lead and tool == "uv" and found[1].endswith(".py"):
        lead = "python "
    return tool, lead + rest if lead else _plain(rest), named


def _plain(command: str) -> str:
    found = _WORD.match(command)
    return "python" + command[found.end() :] if found and _PYTHON.fullmatch(found[1]) else command


# ---------------------------------------------------------------------- where environments lie
class _Finder:
    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder, self._environ = folder, environ
        self._home = Path(environ.get("HOME") or "/")
        files = (folder / name for name in ("environment.yml", "environment.yaml"))
        self._conda_file = next((path for path in files if path.is_file()), None)

    def tool(self) -> str:
        """What keeps the project's environment, as its files say."""
        project = _text(self.folder / "pyproject.toml")
        for tool, lock, section in (("uv", "uv.lock", "[tool.uv"), ("poetry", "poetry.lock", "[tool.poetry]")):
            if (self.folder / lock).is_file() or section in project:
                return tool
        if (self.folder / "Pipfile").is_file():
            return "pipenv"
        return "venv" if self._own(".venv", "venv") else "conda" if self._conda_file else ""

    def find(self, tool: str, named: str) -> tuple[Path | None, str]:
        """(the environment, where it is or will be; the command that makes it)."""
        match tool:
            case "uv":
                return self._uv()
            case "poetry" | "pipenv":
                return self._own(".venv"), f"{tool} install"
            case "conda":
                return self._conda(named)
        return self._at(named) if named else self._own(".venv", "venv"), f"python -m venv {named or '.venv'}"

    def _own(self, *names: str) -> Path | None:
        return next((place for name in names if _is_environment(place := self.folder / name)), None)

    def _at(self, named: str) -> Path:
        return Path(os.path.normpath(self.folder / Path(named).expanduser()))

    def _uv(self) -> tuple[Path, str]:
        """That of the workspace, whose lock lies at its top (docs.astral.sh/uv, Project structure)."""
        tops = [self.folder, *self.folder.parents]
        last = next((i for i, top in enumerate(tops) if (top / ".git").exists()), len(tops))
        for name in ("uv.lock", "pyproject.toml"):
            if top := next((top for top in tops[: last + 1] if (top / name).is_file()), None):
                return self._at(str(top / (self._environ.get("UV_PROJECT_ENVIRONMENT") or ".venv"))), "uv sync"
        packages = " && uv pip install -r requirements.txt" if (self.folder / "requirements.txt").is_file() else ""
        return self.folder / ".venv", f"uv venv{packages}"

    def _conda(self, named: str) -> tuple[Path | None, str]:
        """By path, or by name among the environments that conda has listed or keeps beside the active one."""
        file = self._conda_file
        if file is not None and not named and (told := _NAME.search(_text(file))):
            named = told[1]
        make = f"conda env create -f {file.name}" if file is not None else f"conda create -n {named or 'NAME'} python"
        if "/" in named or not named:
            return self._at(named) if named else None, make
        active, executable = (self._environ.get(name) for name in ("CONDA_PREFIX", "CONDA_EXE"))
        roots = [Path(executable).parent.parent] if executable else []
        listed = [Path(row) for row in _text(self._home / ".conda" / "environments.txt").split("\n") if row]
        known = [*([Path(active)] if active else []), *listed, *(root / "envs" / named for root in roots)]
        candidates = roots if named == "base" else [path for path in known if path.name == named]
        return next((path for path in candidates if (path / "conda-meta").is_dir()), None), make


def _text(path: Path) -> str:
    return start_of(path, _READ)


def _is_environment(prefix: Path) -> bool:
    marked = (prefix / "pyvenv.cfg").is_file() or (prefix / "conda-meta").is_dir()
    return marked and (prefix / "bin" / "python").exists()
