"""What edited code may see of the machine beside its own folder: interpreter, data, and what is hidden in them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from autoresearchd.domain.task import Task
from autoresearchd.executor.interpreter import Interpreter, inspect, resolve_python
from autoresearchd.executor.task_data import find_data, place_links
from autoresearchd.sandbox.agent_shell import Surroundings
from autoresearchd.sandbox.view import is_inside, way_to

_PROJECT = Path(__file__).parents[1]
_NO_IMPORTS = (".git", ".autoresearchd", ".env*")
"""What lies in a checkout that is imported from, and is no part of a program: history, sessions' data, keys."""
_PREFIX_PARTS = ("bin", "lib", "lib64", "include", "share", "etc", "ssl", "nvvm", "targets", "pyvenv.cfg")


def agent_surroundings(task: Task, tools: Path, *, setup: Path, source: Path, pristine: Path) -> Surroundings:
    """What the commands of an agent see: as a job of the task does, without its output folder and its GPUs.

    tools: a folder of its own, where links to the interpreter may be made; setup: where setup commands left their data;
    source: the task's folder in the user's checkout. Raises BaselineError: data that task.yaml names is not there;
    MissingCapability: ``execution.python`` names no interpreter, or it does not run.
    """
    python = inspect(resolve_python(task, setup))
    data = find_data(task.data, (setup, source), "workspace.data")
    names = task.evaluation.private if task.evaluation else ()
    private = find_data(names, (setup, source), "evaluation.private")
    programs = tuple(python.search_folders(tools))
    return Surroundings(
        readable=(
            *interpreter_folders(python, Path.home(), setup, (source, pristine)),
            *programs,
            *(entry.real for entry in data),
        ),
        hidden=(*hidden_places(task, python), *(entry.real for entry in private)),
        programs=programs,
    )


def link_data(folder: Path, task: Task, *, setup: Path, source: Path) -> None:
    """Show the task's data at its place in a copy of the task's folder, by links."""
    place_links(folder, find_data(task.data, (setup, source), "workspace.data"))


def interpreter_folders(python: Interpreter, home: Path, setup: Path, own: Iterable[Path]) -> list[Path]:
    """The interpreter's folders and what else it imports; nothing that would show home, set-up or one of ``own``.

    Of a prefix around one of them only the parts that an interpreter has. An import path around one of them is left
    out, and so is one inside of a repository of ``own``: edited code imports what was committed, never the user's
    checkout beside it.
    A checkout of this project is left out as well: sessions that were started in it have their data there.
    """
    theirs = [way_to(place).real for place in own]
    inner = [_checkout(place, way_to(home).real) for place in theirs]
    places = [way_to(home).real, way_to(setup).real, *theirs, *inner, way_to(_PROJECT).real]
    found = [python.executable]
    for folder in python.folders:
        real = way_to(folder).real
        if any(is_inside(place, [real]) for place in places):
            found += [folder / part for part in _PREFIX_PARTS if (folder / part).exists()]
        else:
            found.append(folder)
    for path in python.imports:
        real = way_to(path).real
        if not is_inside(real, inner) and not any(is_inside(place, [real]) for place in places):
            found.append(path)
    return found


def _checkout(place: Path, home: Path) -> Path:
    """The top of the repository that a folder lies in, or the folder: a repository around home is no task's own."""
    for folder in (place, *place.parents):
        if is_inside(home, [folder]):
            break
        if (folder / ".git").exists():
            return folder
    return place


def hidden_places(task: Task, python: Interpreter) -> list[Path]:
    """The task's ``evaluation.hide``, in every Python that a job can see, and sessions beside what it imports."""
    hide = task.evaluation.hide if task.evaluation else ()
    libraries, packages = visible_libraries(python)
    found = []
    for entry in hide:
        mark, _, inner = entry.partition("/")
        folders = {"{stdlib}": libraries, "{purelib}": packages}.get(mark)
        found += [Path(entry).expanduser()] if folders is None else [folder / inner.lstrip("/") for folder in folders]
    found += [place for path in python.imports for name in _NO_IMPORTS for place in path.glob(name)]
    return [p for p in found if p.exists()]


@lru_cache(maxsize=16)
def visible_libraries(python: Interpreter) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Standard libraries and packages that jobs can see: what is hidden in one is hidden in its neighbours, too."""
    roots = dict.fromkeys([*python.folders, Path("/usr"), Path("/usr/local")])
    own = [lib for root in roots for lib in root.glob("lib*/python3*") if lib.is_dir()]
    libraries = dict.fromkeys([python.stdlib, *own])
    inner = [lib / name for lib in own for name in ("site-packages", "dist-packages")]
    elsewhere = [place for path in python.imports for place in (path, path.parent)]  # packages, or one
    packages = dict.fromkeys([python.purelib, *python.folders, *elsewhere, *(p for p in inner if p.is_dir())])
    return tuple(libraries), tuple(packages)
