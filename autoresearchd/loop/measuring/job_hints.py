"""How to fix a program that runs in the user's folder but not as a job: what a job sees is only what was committed.

The evaluator says why a run failed without looking at any file; here the user's own folder is looked at, by name only.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.evaluator.measure.measurement import is_read_only, missing_module, missing_paths
from autoresearchd.workspace.preflight import absent_submodules
from autoresearchd.workspace.submodules import FETCH

_ENVIRONMENTS = (".venv", "venv", "env")
_SOURCES = ("src", "lib", "python")
"""Where a project keeps packages that are not at its top."""
_SYSTEM = ("bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "usr")
"""Folders at the top that jobs see: what is missing there is missing for everybody."""


def hint_job(detail: str, source: Path, committed: Path) -> str:
    """What a user can do about a job that failed with ``detail``; empty when its surroundings are not to blame.

    Args:
        detail: why the run failed, in the evaluator's words.
        source: the task's folder in the user's checkout.
        committed: the same folder as it was committed.
    """
    absent = _absent(source) if missing_module(detail) or missing_paths(detail) else ""
    hint = _hint(detail, source, committed)
    return f"{absent}\nif that is not it: {hint}" if absent and hint else absent or hint


def _absent(source: Path) -> str:
    """How to get the submodules whose files a job misses, since they are not on this machine; empty: none is absent."""
    try:
        names = absent_submodules(source, source)
    except RepositoryError:  # a task that is in no repository
        return ""
    if not names:
        return ""
    return f"{FETCH}: the files of {', '.join(names)} are not on this machine, and jobs see an empty folder there"


def _hint(detail: str, source: Path, committed: Path) -> str:
    denied = "ermission denied" in detail  # a relative path is then there, and is not to be written
    for name in missing_paths(detail):
        if denied and _lacks_bit(name, committed):
            return f"{name} may not be executed as it was committed: {set_bit(name)}"
        hint = "" if denied and not name.startswith("/") else _hint_missing(name, source, committed)
        if hint:
            return hint
    module = missing_module(detail)
    below = _below(module.partition(".")[0], committed)
    if below:
        return (
            f"{module} is in {below}/ of the commit; jobs import that copy, never your checkout, when task.yaml says "
            f"execution.env: {{PYTHONPATH: {below}}}"
        )
    own = _environment(source)
    if module and own:
        return (
            f"jobs run with the Python that runs autoresearchd, which has no {module}: name your own in task.yaml, "
            f"execution.python: {own}"
        )
    if module:
        return (
            f"the Python that jobs run with has no {module}: install it there, or name another one in task.yaml, "
            "execution.python: /path/to/env/bin/python"
        )
    if is_read_only(detail):
        return (
            "a job may write only to the folder that AUTORESEARCHD_OUTPUT_DIR names: "
            "let the program write its files there"
        )
    return ""


def set_bit(path: str) -> str:
    """How a file of the task's folder is made executable, in the commit as well, where git looks at no bits of files.

    path: relative to the folder.
    """
    name = shlex.quote(path)
    return f"chmod +x -- {name} && git add --chmod=+x -- {name} && git commit -m 'executable'"


def _lacks_bit(name: str, committed: Path) -> bool:
    """Whether a name is that of a committed file without its executable bit, written as a shell executes it."""
    if "/" not in name or name.startswith(("/", "~")) or ".." in name.split("/"):
        return False
    try:
        return (committed / name).is_file() and not (committed / name).stat().st_mode & 0o111
    except (OSError, ValueError):
        return False


def _hint_missing(name: str, source: Path, committed: Path) -> str:
    try:
        path = Path(name).expanduser()
        place = path if path.is_absolute() else source / path
        seen = (committed / path).exists() if not path.is_absolute() else path.parts[1:2] in [(p,) for p in _SYSTEM]
        if seen or not place.exists() or place.resolve() == source.resolve():
            return ""
    except (OSError, RuntimeError, ValueError):
        return ""
    inside = not path.is_absolute() and ".." not in path.parts
    if path.name.startswith("python") and path.parent.name == "bin":
        return (
            "a job sees no environment in your folder unless task.yaml names it, "
            f"execution.python: {place.absolute()}; then write `python` in run_command"
        )
    if inside:
        where, entry = "is in your folder but not in the commit", path.as_posix()
    else:
        where, entry = "is on this machine, but a job does not see it", str(place.resolve())
    return f"{name} {where}; let jobs read it by naming it in task.yaml, workspace.data: [{entry}]"


def _below(module: str, committed: Path) -> str:
    """The folder of the commit that holds a package which is installed from the user's checkout; empty: none."""
    if not module.isidentifier():
        return ""
    places = ((name, committed / name) for name in _SOURCES)
    return next((n for n, p in places if (p / module).is_dir() or (p / f"{module}.py").is_file()), "")


def _environment(source: Path) -> str:
    """The Python of an environment in the task's folder, empty when there is none."""
    for name in _ENVIRONMENTS:
        if (source / name / "bin" / "python").exists():
            return str(source.resolve() / name / "bin" / "python")
    return ""
