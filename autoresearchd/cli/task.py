"""The commands task list and task init, and where tasks are found."""

from __future__ import annotations

import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from autoresearchd.cli import render
from autoresearchd.cli.failure import say
from autoresearchd.cli.options import JsonOption
from autoresearchd.cli.render import Paint, json_text
from autoresearchd.cli.session import here
from autoresearchd.errors import ConfigError, UsageError

TASK_FILE = "task.yaml"
_LEFT_BEHIND = ("check.yaml", "__pycache__", "*.pyc", ".venv", ".git", ".autoresearchd")


class DirectionName(StrEnum):
    """Values of --direction."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"


def list_tasks(as_json: JsonOption = False) -> None:
    """List the bundled tasks."""
    found = [_facts(folder) for folder in bundled_tasks()]
    if as_json:
        print(json_text(found, indent=2))
        return
    rows = [[f["name"], f["metric"], f["direction"], ", ".join(f["profiles"]) or "—", f["path"]] for f in found]
    headers = ("name", "metric", "direction", "profiles", "path")
    print("\n".join(render.table(headers, rows, paint=Paint(sys.stdout))))


def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A bundled task; with --file, the name of a new one.")],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; made when missing.")],
    file: Annotated[str | None, typer.Option("--file", metavar="PATH", help="The file that may be edited.")] = None,
    command: Annotated[str | None, typer.Option("--command", metavar="CMD", help="What runs one experiment.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="The metric that CMD prints.")] = None,
    direction: Annotated[DirectionName, typer.Option("--direction", help="What is better.")] = DirectionName.MINIMIZE,
    budget: Annotated[str, typer.Option("--budget", metavar="DUR", help="Training time of a run.")] = "5m",
) -> None:
    """Make a task.

    A copy of a bundled one; or, with --file, --command and --metric, a task.yaml for a program of your own.
    """
    if file or command or metric:
        if not (file and command and metric):
            raise UsageError(
                "a new task needs --file, --command and --metric",
                mend=f"autoresearchd task init {name} {directory} --file train.py --command 'python train.py' "
                "--metric loss",
            )
        _write_new(
            directory,
            name=name,
            target_file=file,
            run_command=command,
            metric=metric,
            direction=direction.value,
            budget=budget,
        )
    else:
        _copy_bundled(name, directory)
    say(f"wrote {directory / TASK_FILE}")
    say(f"  next: autoresearchd task check {directory} --run, then autoresearchd start --task {directory}")


def bundled_tasks() -> list[Path]:
    """Folders of the bundled tasks, by name."""
    from autoresearchd.resources import bundled

    return sorted(path.parent for path in bundled("templates").glob(f"*/{TASK_FILE}"))


def find_task(which: str | None) -> Path:
    """The folder of a bundled task by name, else a folder. Raises UsageError when it is neither."""
    if which is None:
        return here()
    for folder in bundled_tasks():
        if folder.name == which:
            return folder
    folder = Path(which).expanduser()
    if folder.is_dir():
        return folder
    names = ", ".join(path.name for path in bundled_tasks())
    raise UsageError(f"{which!r} is neither a bundled task nor a folder", mend=f"bundled tasks: {names}")


def _facts(folder: Path) -> dict[str, Any]:
    """What ``task list --json`` says of a task, read from its file as it is written."""
    from autoresearchd.config.document import parse_yaml, read_text

    path = folder / TASK_FILE
    root = parse_yaml(read_text(path), str(path)).root
    inner = root.get("task")
    task: dict[str, Any] = inner if isinstance(inner, dict) else root
    scoring, profiles = task.get("scoring"), task.get("profiles")
    if not isinstance(scoring, dict):
        raise ConfigError(
            "is missing", file=str(path), key="scoring", mend="scoring: {metric: loss, direction: minimize}"
        )
    return {
        "name": str(task.get("name") or folder.name),
        "metric": str(scoring.get("metric") or ""),
        "direction": str(scoring.get("direction") or "minimize"),
        "path": str(folder),
        "profiles": sorted(profiles) if isinstance(profiles, dict) else [],
    }


def _copy_bundled(name: str, directory: Path) -> None:
    folders = {folder.name: folder for folder in bundled_tasks()}
    if name not in folders:
        raise UsageError(
            f"there is no bundled task {name!r}",
            mend=f"one of {', '.join(folders)}; or --file, --command and --metric for a program of your own",
        )
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is there already and not an empty folder", mend="name a new folder")
    shutil.copytree(folders[name], directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))


def _write_new(directory: Path, **fields: str) -> None:
    from autoresearchd.config import TaskFields, write_task_yaml

    if not (directory / fields["target_file"]).is_file():
        raise UsageError(
            f"{directory / fields['target_file']} does not exist",
            mend="--file is a path in DIR: put the program there first",
        )
    write_task_yaml(directory / TASK_FILE, TaskFields(**fields))
