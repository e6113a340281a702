"""The folder that a session's task lies in: the user's own, or an empty one that a bundled task is written to."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from autoresearchd.config import load_task
from autoresearchd.config.check_file import CHECK_FILE
from autoresearchd.domain.errors import AutoresearchdError, StoreError, UsageError
from autoresearchd.resources import bundled
from autoresearchd.store.reader import Reader
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import remove_tree

TASK_FILE = "task.yaml"

_LEFT_BEHIND = (CHECK_FILE, "__pycache__", "*.pyc", ".venv", ".git", ".autoresearchd")


class Scaffold:
    """The folder that a task lies in; taken back to how it was found where a bundled task was written for nothing.

    A context around all that may still refuse the session.

    task: a bundled name, a folder, None for ``directory`` itself. directory: where the user wants to work.
    """

    def __init__(self, task: str | None, directory: Path) -> None:
        self._task, self._directory = task, directory
        self._written: tuple[Path, frozenset[str]] | None = None
        self._made: list[Path] = []

    def folder(self) -> Path:
        """The folder of the task; a bundled one is written to an empty folder."""
        directory = self._directory.resolve()
        self._made = [folder for folder in (directory, *directory.parents) if not os.path.lexists(folder)]
        return task_folder(self._task, self._directory, self._note)

    def _note(self, folder: Path, names: frozenset[str]) -> None:
        self._written = folder, names

    def keep(self) -> None:
        """A session has begun there."""
        self._written = None

    def __enter__(self) -> Scaffold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self._written is None or _has_session(self._written[0]):
            return
        written, names = self._written
        with contextlib.suppress(OSError):  # of folders that somebody has put something else into
            for name in names:
                remove_tree(written / name)
            for folder in self._made:
                folder.rmdir()


def _has_session(folder: Path) -> bool:
    """Whether somebody else, who came a moment later, has begun one there."""
    database = layout.database_path(folder)
    if not database.exists():
        return False
    try:
        with Reader(database) as reader:
            return bool(reader.sessions())
    except StoreError:
        return True


def task_folder(
    task: str | None, directory: Path, note: Callable[[Path, frozenset[str]], None] = lambda folder, names: None
) -> Path:
    """The folder that holds the task; a bundled one is scaffolded into an empty folder.

    Args:
        task: a bundled name, a folder, None for ``directory`` itself.
        directory: where the user wants to work.
        note: called with the folder, and the names of all in it, where one was scaffolded just now.
    """
    asked = directory
    directory = directory.resolve()
    if task is None:
        with _writing(directory):
            if directory.is_dir() and not any(directory.iterdir()):
                raise UsageError(
                    f"{directory} is empty: there is no task in it",
                    hint="`autoresearchd start --task autoresearch` sets a bundled one up here; "
                    "`autoresearchd task list` names them all",
                )
        return directory
    template = bundled("templates") / task
    if "/" not in task and (template / TASK_FILE).is_file():
        return _scaffold(template, directory, note)
    folder = Path(task).expanduser().resolve()
    if folder.is_dir():
        if directory not in (Path.cwd(), folder):
            raise UsageError(
                f"--dir {asked} and the folder --task {task} contradict each other",
                hint="--dir goes with a bundled task; a folder with a task.yaml is used where it is",
            )
        return folder
    names = ", ".join(sorted(p.parent.name for p in bundled("templates").glob(f"*/{TASK_FILE}")))
    raise UsageError(f"no task {task!r}: neither a bundled task nor a folder", hint=f"bundled tasks: {names}")


def _scaffold(template: Path, directory: Path, note: Callable[[Path, frozenset[str]], None]) -> Path:
    if (directory / TASK_FILE).is_file():
        _require_same(template.name, directory)
        return directory  # scaffolded before, or the user's own variant of it
    with _writing(directory):
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(
                f"{directory} is not empty and has no {TASK_FILE}",
                hint="go to an empty folder, or name one with --dir; `--task DIR` uses a folder that has a task.yaml",
            )
    copy_template(template, directory)
    preflight.init_repository(directory)
    note(directory, frozenset(entry.name for entry in directory.iterdir()))
    return directory


def _require_same(name: str, directory: Path) -> None:
    """Refuse a folder with another task: it would be that one which is begun. What cannot be read is told later."""
    try:
        found = load_task(directory).name
    except AutoresearchdError:
        return
    if found != name:
        raise UsageError(
            f"{directory} holds the task {found}, and --task {name} is another",
            hint=f"leave --task out to begin {found}; {name} needs an empty folder (--dir)",
        )


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
        raise UsageError(
            f"the task cannot be written to {directory}: {error.strerror or error}",
            hint="name a folder that can be made and written to; `start` takes it with --dir",
        ) from error
