"""The folder that a task lies in: the user's own, a bundled one, or an empty one that a bundled task is written to."""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from autoresearchd.config import Overrides, detect, load_task
from autoresearchd.config.load_task import CHECK_FILE
from autoresearchd.domain.errors import AutoresearchdError, ConfigError, MissingCapability, RepositoryError, UsageError
from autoresearchd.domain.quantities import some_of
from autoresearchd.domain.task import MetricSource, Task
from autoresearchd.evaluator.measure.log_text import compile_pattern
from autoresearchd.evaluator.rules.program_text import about_seed
from autoresearchd.evaluator.rules.run_time import about_budget
from autoresearchd.executor.gpus import find_devices
from autoresearchd.executor.visible_files import pointers
from autoresearchd.loop.measuring.run_files import RESULT_BYTES, read_sources
from autoresearchd.resources import bundled
from autoresearchd.store import shared
from autoresearchd.store.reader import Reader
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import read_tail, remove_tree
from autoresearchd.workspace.objects import FETCH

TASK_FILE = "task.yaml"
_LEFT_BEHIND = (CHECK_FILE, "__pycache__", "*.pyc", ".venv", ".git", ".autoresearchd")
_EXTRAS = {
    "torch": ("train", "torch"),
    "numpy": ("train", "numpy"),
    "tokenizers": ("train", "tokenizers"),
    "sklearn": ("tasks", "scikit-learn"),
    "gguf": ("tasks", "gguf"),
    "transformers": ("learn", "transformers"),
}
"""What the bundled tasks import beside the standard library: the extra that brings it, and what it is called there."""

_OF_SOME_PROFILES = ("tokenizers", "transformers")
"""What a task may be run without."""
_MOST = 32
"""How many large files are given to jobs one by one."""


def read_task(
    folder: Path, *, overrides: Overrides | None = None, profile: str | None = None, device: str | None = None
) -> Task:
    """The task of a folder: its task.yaml, or what its layout says. Checks what this machine must have.

    device: what runs compute on, where that is another machine.
    """
    device = device or str(find_devices())
    overrides = overrides or Overrides()
    if (folder / TASK_FILE).exists():
        profile = profile or ("cuda" if device.startswith("cuda") else "cpu")
        task = load_task(folder, profile=profile, overrides=overrides)
    elif (found := detect(folder, overrides=overrides)) is not None:
        task = found
    else:
        raise ConfigError(
            "there is no such file",
            file=str(folder / TASK_FILE),
            hint="`autoresearchd task init` writes one; `start --task autoresearch` uses the bundled task",
        )
    if task.execution.needs_gpu and not device.startswith("cuda"):
        raise MissingCapability(
            "execution.needs_gpu is true, but no NVIDIA GPU was found",
            hint="set needs_gpu: auto, or use a machine with one",
        )
    if task.scoring.pattern is not None:
        compile_pattern(task.scoring.pattern, key="scoring.pattern")
    if task.curve.pattern != "auto":
        compile_pattern(task.curve.pattern, key="curve.pattern")
    return task


# ---------------------------------------------------------------------- bundled tasks
def bundled_tasks() -> list[Path]:
    """Folders of the bundled tasks, by name."""
    return sorted(path.parent for path in bundled("templates").glob(f"*/{TASK_FILE}"))


def named_folder(name: str) -> Path:
    """The folder of a bundled task by name, else a folder. Raises UsageError when it is neither."""
    tasks = {path.name: path for path in bundled_tasks()}
    folder = tasks.get(name) or Path(name).expanduser()
    if not folder.is_dir():
        raise UsageError(f"{name!r} is neither a bundled task nor a folder", hint=f"bundled tasks: {', '.join(tasks)}")
    return folder


def is_bundled(folder: Path) -> bool:
    """Whether a folder is that of a bundled task: it needs no repository, ``start`` makes one of a copy."""
    return folder.resolve().parent == bundled("templates").resolve()


def needs_of(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(extras that bring what a task imports, packages of them that are not here); nothing is imported."""
    used = {name for path in folder.rglob("*.py") for name in _imported(path)}
    wanted = {name: package for name, package in _EXTRAS.items() if name in used}
    extras = tuple(dict.fromkeys(extra for extra, _ in wanted.values()))
    return extras, tuple(package for name, (_, package) in wanted.items() if find_spec(name) is None)


def _imported(path: Path) -> Iterator[str]:
    with contextlib.suppress(OSError, ValueError, SyntaxError):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def copy_template(template: Path, directory: Path) -> None:
    """Write a bundled task to a folder, which is made where it is not there."""
    with _writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        shutil.copytree(template, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))


@contextlib.contextmanager
def _writing(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # shutil.Error is one, too: it holds those of all files
        what = f"the task cannot be written to {directory}: {error.strerror or error}"
        hint = "name a folder that can be made and written to; `start` takes it with --dir"
        raise UsageError(what, hint=hint) from error


# ---------------------------------------------------------------------- the folder of a session
def task_folder(task: str | None, directory: Path, undo: contextlib.ExitStack) -> Path:
    """The folder of a session's task; a bundled one is written to an empty ``directory``, which ``undo`` takes back."""
    asked, directory = directory, directory.resolve()
    if task is None:
        if directory.is_dir() and not any(directory.iterdir()):
            how = "`autoresearchd start --task autoresearch` sets a bundled one up here"
            what = f"{directory} is empty: there is no task in it"
            raise UsageError(what, hint=f"{how}; `autoresearchd task list` names them all")
        return directory
    folder = named_folder(task).resolve()
    if is_bundled(folder) and "/" not in task:
        return _scaffold(folder, directory, undo)
    if directory not in (Path.cwd(), folder):
        raise UsageError(
            f"--dir {asked} and the folder --task {task} contradict each other",
            hint="--dir goes with a bundled task; a folder with a task.yaml is used where it is",
        )
    return folder


def _scaffold(template: Path, directory: Path, undo: contextlib.ExitStack) -> Path:
    name = template.name
    if (directory / TASK_FILE).is_file():  # scaffolded before, or the user's own variant of it
        try:
            found = load_task(directory).name
        except AutoresearchdError:  # told later
            return directory
        if found != name:
            what = f"{directory} holds the task {found}, and --task {name} is another"
            raise UsageError(what, hint=f"leave --task out to begin {found}; {name} needs an empty folder (--dir)")
        return directory
    with _writing(directory):
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(
                f"{directory} is not empty and has no {TASK_FILE}",
                hint="go to an empty folder, or name one with --dir; `--task DIR` uses one that has a task.yaml",
            )
    extras, lacking = needs_of(template)
    if missing := [package for package in lacking if package not in _OF_SOME_PROFILES]:
        raise MissingCapability(
            f"the task {name} needs {', '.join(missing)}, not installed here",
            hint=f"pip install 'autoresearchd[{','.join(extras)}]'; for another interpreter, `autoresearchd task "
            f"init {name} DIR` first, and execution.python in its task.yaml",
        )
    made = [folder for folder in (directory, *directory.parents) if not os.path.lexists(folder)]
    copy_template(template, directory)
    preflight.init_repository(directory)
    undo.callback(_take_back, directory, list(directory.iterdir()), made)
    return directory


def nested_in(directory: Path) -> Path | None:
    """The top of the repository around that of a folder's own; None: there is none, or it is a worktree of that one."""
    with contextlib.suppress(AutoresearchdError):
        if (own := layout.find_root(directory)) == directory:
            around = layout.find_root(own.parent)
            return around if layout.common_dir(around) != layout.common_dir(own) else None
    return None


def _take_back(directory: Path, written: list[Path], made: list[Path]) -> None:
    """Leave a folder as it was found, unless somebody else, who came a moment later, has begun a session there."""
    try:
        place = shared.where(layout.database_path(directory))
        if isinstance(place, shared.Shared) or place.exists():
            with Reader(place) as reader:
                if reader.sessions():
                    return
    except AutoresearchdError:
        return
    with contextlib.suppress(OSError):  # of folders that somebody has put something else into
        for path in written:
            remove_tree(path)
        for folder in made:
            folder.rmdir()


# ---------------------------------------------------------------------- what to know of a task before it is run
def who_measures(task: Task, code: Mapping[str, str]) -> tuple[str, ...]:
    """What to know where the score is the edited program's own; none where it is not. code: the editable files."""
    if task.scoring.source is MetricSource.EVALUATOR:
        return ()
    from autoresearchd.policy.search.find_constants import warnings_of  # only needed here

    return warnings_of(task, code)


def program_notes(task: Task, source: Path) -> tuple[str, ...]:
    """What the user should know of a program in a folder, its budget and its seed, before anything is run."""
    texts = {path: read_tail(source / path, RESULT_BYTES) for path in task.editable} | read_sources(task, source)
    return (*about_budget(task, texts), *about_seed(task, texts))


def empty_submodules(root: Path, folder: Path) -> tuple[str, ...]:
    """The sentence about submodules of the last commit whose files no run will see."""
    absent = preflight.absent_submodules(root, folder)
    what = f"runs see empty folders in place of submodules that are not on this machine: {', '.join(absent)}"
    return (f"{what}; `{FETCH}` brings them",) if absent else ()


def with_large_files(task: Task, root: Path, source: Path) -> tuple[Task, tuple[str, ...]]:
    """The task with the files of Git LFS among its data, as the commit has only pointers; sentences to show."""
    found = preflight.lfs_pointers(root, source)
    edited = [name for name in found if name in task.editable]
    if edited:
        raise RepositoryError(
            f"{edited[0]} is in the commit as a pointer of Git LFS, and not as text",
            hint=f"git lfs untrack {edited[0]} && git add --renormalize -- {edited[0]} && git commit",
        )
    named = (*task.data, *(task.evaluation.private if task.evaluation else ()))
    absent = [name for name in found if not (source / name).is_file() or pointers(source / name)]
    if needed := [name for name in absent if _is_below(name, (*named, *task.protected))]:
        raise RepositoryError(f"of {some_of(needed)} only the pointer of Git LFS is here", hint="git lfs pull")
    notes = [f"of {some_of(absent)} only the pointer of Git LFS is here: `git lfs pull`"] if absent else []
    given = [name for name in found if name not in absent and not _is_below(name, named)]
    what = f"the commit has pointers of Git LFS in place of {some_of(given)}"
    if len(given) > _MOST:
        folders = ", ".join(sorted({name.rpartition("/")[0] or name for name in given}))
        notes.append(f"{what}, and so have runs; to give runs the files: workspace.data: [{folders}]")
    elif given:
        notes.append(f"{what}: runs read your files, as data")
        task = replace(task, data=(*task.data, *given))
    return task, tuple(notes)


def _is_below(name: str, places: Iterable[str]) -> bool:
    return any(PurePosixPath(name).is_relative_to(place.rstrip("/")) for place in places)
