"""The commands task list, task init and task check."""

from __future__ import annotations

import math
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autoresearchd.cli import render
from autoresearchd.cli.failure import say, tell
from autoresearchd.cli.options import JsonOption, SandboxOption
from autoresearchd.cli.render import Paint, clean, json_text
from autoresearchd.cli.session import here
from autoresearchd.errors import AutoresearchdError, ConfigError, MissingCapability, RepositoryError, UsageError

if TYPE_CHECKING:
    from autoresearchd.domain.task import Task

TASK_FILE = "task.yaml"
_LEFT_BEHIND = ("__pycache__", "*.pyc", ".venv", ".git", ".autoresearchd")


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


def check(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|DIR]", help="A bundled task or a folder (default: here).", show_default=False),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All bundled tasks.")] = False,
    run: Annotated[bool, typer.Option("--run", help="Also run it once and measure it.")] = False,
    sandbox: SandboxOption = None,
) -> None:
    """Check a task and its files.

    With --run it is also run once, to see that it gives its metric: the last commit, as `start` would run it.
    """
    if every and which is not None:
        raise UsageError("--all checks the bundled tasks, a name only one", mend="use one of them")
    if sandbox is not None and not run:
        raise UsageError("--sandbox is about running", mend="add --run, or leave --sandbox out")
    folders = bundled_tasks() if every else [find_task(which)]
    worst = 0
    for folder in folders:
        worst = max(worst, _check_one(folder, run, sandbox))
    raise typer.Exit(worst)


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


def _check_one(folder: Path, run: bool, sandbox: str | None) -> int:
    from autoresearchd.app.check import check_run
    from autoresearchd.app.start import read_task
    from autoresearchd.config import check_files

    paint = Paint(sys.stdout)
    measured, notes = "", tuple[str, ...]()
    name = folder.resolve().name
    try:
        task = read_task(folder, None)
        name = task.name
        check_files(task, folder / task.source_dir, folder / TASK_FILE)
        if run:
            say(f"running the baseline of {task.name} once: {_longest(task)}")
            checked = check_run(folder, sandbox=sandbox)
            measured, notes = checked.measured, checked.notes
        else:
            notes = _notes(folder)
    except MissingCapability as error:
        tell(f"{folder}: {error.what}", error.mend)
        return error.exit_code
    except AutoresearchdError as error:
        print(f"{paint('✗', 'red')} {clean(name)}")
        tell(error.what, error.mend)
        return error.exit_code
    words = f"{task.metric.name} ({task.metric.direction.value}), edits {', '.join(task.editable)}"
    print(f"{paint('✓', 'green')} {clean(task.name)}: {clean(words)}" + (f"; {clean(measured)}" if measured else ""))
    for note in notes:
        say(f"note: {note}")
    return 0


def _longest(task: Task) -> str:
    """How long a trial run may take, so that nobody waits in doubt."""
    wall = task.execution.budget.wall
    most = f"up to {math.ceil(wall / 60)} min" if wall > 90 else f"up to {wall:.0f} s"
    return f"{most}, after its set-up" if task.execution.setup_commands else most


def _notes(folder: Path) -> tuple[str, ...]:
    """What would keep ``start`` from a task that is in order itself."""
    from autoresearchd.app.check import is_bundled, repository_notes

    if is_bundled(folder):
        return ()
    try:
        return repository_notes(folder)
    except RepositoryError as error:
        return (f"`autoresearchd start` needs a git repository: {error.what}; {error.mend}",)


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
