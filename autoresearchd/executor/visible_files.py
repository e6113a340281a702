"""What edited code may see of the machine beside its own folder: interpreter, data, and what is hidden in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autoresearchd.domain.errors import BaselineError, DataMissing, EnvironmentFailure
from autoresearchd.domain.file_content import LARGEST, pointed_to
from autoresearchd.domain.task import Task
from autoresearchd.executor.environment import Interpreter, inspect, resolve_python
from autoresearchd.sandbox.agent_shell import Surroundings
from autoresearchd.sandbox.view import is_inside, way_to

_PROJECT = Path(__file__).parents[1]
_NO_IMPORTS = (".git", ".autoresearchd", ".env*")
"""What lies in a checkout that is imported from, and is no part of a program: history, sessions' data, keys."""
_PREFIX_PARTS = ("bin", "lib", "lib64", "include", "share", "etc", "ssl", "nvvm", "targets", "pyvenv.cfg")


@dataclass(frozen=True, slots=True)
class DataEntry:
    """One entry of ``workspace.data`` or ``evaluation.private``: as written, and the real file or folder it names."""

    name: str
    real: Path

    @property
    def relative(self) -> bool:
        return not self.name.startswith(("/", "~"))


def at_home(entries: Iterable[DataEntry]) -> Iterator[DataEntry]:
    """Those below the user's home, as entries relative to it."""
    for entry in entries:
        path, home = Path(entry.name).expanduser(), Path.home()
        if path.is_relative_to(home):
            yield DataEntry(str(path.relative_to(home)), entry.real)


def find_data(names: Iterable[str], places: Sequence[Path], key: str) -> tuple[DataEntry, ...]:
    """Entries of a key of task.yaml, relative ones in the first of ``places``; DataMissing where one is nowhere."""
    return tuple(DataEntry(name, _find(name, places, key)) for name in names)


def _find(name: str, places: Sequence[Path], key: str) -> Path:
    path = Path(name).expanduser()
    if ".." in path.parts:
        raise BaselineError(f"{key}: {name!r} leaves the task's folder", hint="name the data without '..'")
    tried = [place / path for place in places] or [path]  # an absolute one stays what it is
    there = [candidate for candidate in dict.fromkeys(tried) if _has_content(candidate)]
    if not there:
        nothing = "empty" if any(map(os.path.exists, tried)) else "not there"
        raise DataMissing(
            f"{key}: {name!r} is {nothing} (looked for {', '.join(map(str, dict.fromkeys(tried)))})",
            hint="let execution.setup_commands make it, or correct the entry in task.yaml",
        )
    # What set-up has copied from the commit may be pointers of Git LFS, and the files themselves the user's.
    return (there[0] if len(there) == 1 or not pointers(there[0]) else min(there, key=pointers)).resolve()


def _has_content(path: Path) -> bool:
    """Whether it is there; an empty folder is where a disk would be mounted."""
    try:
        if not path.is_dir():
            return path.exists()
        with os.scandir(path) as entries:  # a listing of millions would take seconds
            return next(entries, None) is not None
    except OSError as error:
        return isinstance(error, PermissionError)  # it may be entered, and not be listed


def committed_places(entries: Iterable[DataEntry], places: Sequence[Path]) -> Iterator[Path]:
    """Where in a folder of the commit what ``find_data`` found in ``places`` may lie, too.

    At its name, and where links of the commit lead from there: links to data may have taken the place of those.
    """
    tops = [place.resolve() for place in places]
    for entry in entries:
        if entry.relative:
            yield Path(entry.name)
            yield from (entry.real.relative_to(top) for top in tops if is_inside(entry.real, [top]))


def pointers(path: Path) -> int:
    """How many files at or below a path are pointers of Git LFS, and not what these stand for."""
    if path.is_dir():
        return sum(pointers(Path(top) / name) for top, _, names in os.walk(path) for name in names)
    try:
        return int(path.is_file() and path.stat().st_size <= LARGEST and bool(pointed_to(path.read_bytes())))
    except OSError:
        return 0


def place_links(folder: Path, entries: Iterable[DataEntry]) -> None:
    """Show relative entries at their place in ``folder`` by symbolic links to the real ones; no link is followed.

    What the commit itself has there stays, but for a pointer of Git LFS; where that is a folder, the link is made for
    each entry of it that is missing. Links of an earlier run are replaced.
    """
    try:
        for entry in entries:
            if entry.relative:
                _place(folder, Path(entry.name), entry.real)
    except OSError as error:
        raise EnvironmentFailure(
            f"cannot link data into {folder}: {error}", hint="free disk space, or check the folder's permissions"
        ) from error


def _place(folder: Path, name: Path, real: Path) -> None:
    parent = folder
    for part in name.parts[:-1]:
        parent = parent / part
        if parent.is_symlink():
            if (folder / name).exists() and (folder / name).resolve() == real:
                return  # inside an entry that is linked as a whole
            parent.unlink()
        parent.mkdir(exist_ok=True)
    if name.parts:
        _link(parent / name.name, real)


def _link(place: Path, real: Path) -> None:
    if place.is_symlink():
        if place.readlink() == real:
            return
    elif place.is_dir() and real.is_dir():
        for child in sorted(real.iterdir()):
            _link(place / child.name, child)
        return
    elif place == real or (place.exists() and not (pointers(place) and not pointers(real))):
        return
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(real)
    temporary.replace(place)


def agent_surroundings(task: Task, tools: Path, *, setup: Path, source: Path, pristine: Path) -> Surroundings:
    """What the commands of an agent see: as a job of the task does, without its output folder and its GPUs.

    tools: a folder of its own, where links to the interpreter may be made. Raises BaselineError: data that task.yaml
    names is not there; MissingCapability: ``execution.python`` names no interpreter, or it does not run.
    """
    python = inspect(resolve_python(task, setup))
    data = find_data(task.data, (setup, source), "workspace.data")
    names = task.evaluation.private if task.evaluation else ()
    private = find_data(names, (setup, source), "evaluation.private")
    programs = tuple(python.search_folders(tools))
    folders = interpreter_folders(python, Path.home(), setup, (source, pristine))
    return Surroundings(
        readable=(*folders, *programs, *(entry.real for entry in data)),
        hidden=(*hidden_places(task, python), *(entry.real for entry in private)),
        programs=programs,
        withheld=tuple(committed_places(private, (setup, source))),
    )


def link_data(folder: Path, task: Task, *, setup: Path, source: Path) -> None:
    """Show the task's data at its place in a copy of the task's folder, by links."""
    place_links(folder, find_data(task.data, (setup, source), "workspace.data"))


def interpreter_folders(python: Interpreter, home: Path, setup: Path, own: Iterable[Path]) -> list[Path]:
    """The interpreter's folders and what else it imports; nothing that would show home, set-up or one of ``own``.

    Of a prefix around one of them only the parts that an interpreter has; no import path around one of them, and none
    inside of a repository of ``own``: edited code imports what was committed, never the user's checkout beside it. A
    checkout of this project is left out as well: sessions that were started in it have their data there.
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
    if hide:
        found += _conda_copies(python)
    found += [place for path in python.imports for name in _NO_IMPORTS for place in path.glob(name)]
    return [p for p in found if p.exists()]


def _conda_copies(python: Interpreter) -> list[Path]:
    """Package caches and other environments in conda's prefixes: what is hidden may lie there once more."""
    used = [path.resolve() for path in (python.executable, *python.folders)]
    prefixes = [root for root in _roots(python) if (root / "conda-meta").is_dir()]
    places = [place for prefix in prefixes for place in (*prefix.glob("pkgs"), *prefix.glob("envs/*"))]
    return [place for place in places if not any(is_inside(path, [place.resolve()]) for path in used)]


def _roots(python: Interpreter) -> Iterable[Path]:
    """The prefixes that a job can see."""
    return dict.fromkeys([*python.folders, Path("/usr"), Path("/usr/local")])


@lru_cache(maxsize=16)
def visible_libraries(python: Interpreter) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Standard libraries and packages that jobs can see: what is hidden in one is hidden in its neighbours, too."""
    own = [lib for root in _roots(python) for lib in root.glob("lib*/python3*") if lib.is_dir()]
    libraries = dict.fromkeys([python.stdlib, *own])
    inner = [lib / name for lib in own for name in ("site-packages", "dist-packages")]
    elsewhere = [place for path in python.imports for place in (path, path.parent)]  # packages, or one
    packages = dict.fromkeys([python.purelib, *python.folders, *elsewhere, *(p for p in inner if p.is_dir())])
    return tuple(libraries), tuple(packages)
