"""The folder that a session's task lies in: the user's own, or an empty one that a bundled task is written to."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from autoresearchd.config.check_file import CHECK_FILE
from autoresearchd.errors import UsageError
from autoresearchd.resources import bundled
from autoresearchd.workspace import preflight

TASK_FILE = "task.yaml"

_LEFT_BEHIND = (CHECK_FILE, "__pycache__", "*.pyc", ".venv", ".git", ".autoresearchd")


def task_folder(task: str | None, directory: Path) -> Path:
    """The folder that holds the task; a bundled one is scaffolded into an empty folder.

    Args:
        task: a bundled name, a folder, None for ``directory`` itself.
        directory: where the user wants to work.
    """
    asked = directory
    directory = directory.resolve()
    if task is None:
        return directory
    template = bundled("templates") / task
    if "/" not in task and (template / TASK_FILE).is_file():
        return _scaffold(template, directory)
    folder = Path(task).expanduser().resolve()
    if folder.is_dir():
        if directory not in (Path.cwd(), folder):
            raise UsageError(
                f"--dir {asked} and the folder --task {task} contradict each other",
                mend="--dir goes with a bundled task; a folder with a task.yaml is used where it is",
            )
        return folder
    names = ", ".join(sorted(p.parent.name for p in bundled("templates").glob(f"*/{TASK_FILE}")))
    raise UsageError(f"no task {task!r}: neither a bundled task nor a folder", mend=f"bundled tasks: {names}")


def _scaffold(template: Path, directory: Path) -> Path:
    if (directory / TASK_FILE).is_file():
        return directory  # scaffolded before, or the user's own variant of it
    with _writing(directory):
        if directory.exists() and any(directory.iterdir()):
            raise UsageError(
                f"{directory} is not empty and has no {TASK_FILE}",
                mend="go to an empty folder, or name one with --dir; `--task DIR` uses a folder that has a task.yaml",
            )
    copy_template(template, directory)
    preflight.init_repository(directory)
    return directory


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
            mend="name a folder that can be made and written to",
        ) from error
