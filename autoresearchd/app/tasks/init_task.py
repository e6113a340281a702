"""``task init``: a task.yaml for a program that is there, its baseline measured, its history brought along."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autoresearchd.app.start import read_task
from autoresearchd.app.start_checks import program_notes, require_programs
from autoresearchd.app.tasks.check_task import Extent, check_held
from autoresearchd.app.tasks.import_log import import_log
from autoresearchd.app.tasks.scaffold import TASK_FILE
from autoresearchd.config import read_task_text
from autoresearchd.config.foreign_layouts import Layout
from autoresearchd.config.python_environments import environment_of, how_to_run
from autoresearchd.config.write_task import Draft, render_task_yaml, write_new
from autoresearchd.domain.errors import MissingCapability, RepositoryError, UsageError
from autoresearchd.domain.quantities import format_duration
from autoresearchd.workspace import preflight
from autoresearchd.workspace.layout import find_root

RUNS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """What the baseline's runs gave: mean, noise, and seconds of one run. notes: what the user should know of them."""

    metric: str
    value: float
    sigma: float
    runs: int
    run_s: float
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """All of it but the metric's name."""
        return f"{self.value:.6g} ± {self.sigma:.2g} over {self.runs} runs of {format_duration(self.run_s)}"


def write_task(directory: Path, name: str, layout: Layout | None, draft: Draft) -> None:
    """Write the task.yaml of a folder.

    Args:
        directory: the project.
        name: of the task.
        layout: whose layout the project has, None where it is nobody's.
        draft: what the file says; of a project whose own file is taken as it is, nothing.

    Raises:
        UsageError: an editable file is not there, or a task.yaml is.
        ConfigError: what was found or asked for makes no task.
        MissingCapability: the command begins with a program that is not there; nothing is written.
    """
    path = directory / TASK_FILE
    if layout is not None and layout.text is not None:
        write_new(path, f"# Adopted from {layout.kind}, as it was there.\n{layout.text}")
        return
    for target in draft.target_file:
        if not (directory / target).is_file():
            raise UsageError(
                f"{directory / target} does not exist", hint="--file is a path in DIR: put the program there first"
            )
    text = render_task_yaml(named(draft, name, layout))
    if layout is None:  # what others have run is as it is, and `task check` says what is wrong with it
        task = read_task_text(text, file=str(path))
        if draft.python is not None and not Path(draft.python).exists():  # its environment is yet to be made
            task = replace(task, execution=replace(task.execution, python=None))
        try:
            require_programs(task, directory)
        except MissingCapability as error:
            what = error.what.replace("execution.run_command", "--command", 1)
            hint = how_to_run(draft.run_command, directory) or "correct the command, or install the program there"
            raise MissingCapability(what, hint=hint) from error
    write_new(path, text)


def named(draft: Draft, name: str, layout: Layout | None) -> Draft:
    """The draft with the task's name, and with where it comes from."""
    remarks = (f"Adopted from {layout.kind}: the program prints its own score.",) if layout else ()
    return replace(draft, name=name, remarks=remarks)


def notes_of(directory: Path) -> tuple[str, ...]:
    """What the user should know of the program in a folder and its budget, before it has been run."""
    task = read_task(directory, None)
    return program_notes(task, directory / task.source_dir)


def in_its_environment(draft: Draft, directory: Path) -> tuple[Draft, str]:
    """The draft with its command as a job can run it and the interpreter that it needs; the sentence about it."""
    found = environment_of(draft.run_command, directory)
    if found is None:
        return draft, ""
    python = str(found.python) if found.python is not None else None
    return replace(draft, run_command=found.command, python=python), found.note


def longest(directory: Path) -> float:
    """The most seconds that measuring the baseline may take, set-up not counted."""
    return RUNS * read_task(directory, None).execution.budget.wall


def not_measurable(directory: Path) -> str:
    """Why the baseline cannot be measured yet: what is run is the program as committed. Empty where it can."""
    task = read_task(directory, None)
    try:
        root = find_root(directory)
        for path in (*task.editable, *task.protected):
            preflight.check_committed(root, directory / task.source_dir / path)
    except RepositoryError as error:
        return error.what
    python = task.execution.python
    if python is not None and not task.execution.setup_commands and not Path(python).expanduser().exists():
        return f"its environment is not there yet ({python})"
    return ""


def measure_baseline(directory: Path, sandbox: str | None = None) -> Measured:
    """Run the program as committed, several times under different seeds.

    Raises BaselineError: it does not run, or gives no metric; RepositoryError: there is no repository, or the program
    is not committed.
    """
    held = check_held(directory, extent=Extent(runs=RUNS), profile=None, sandbox=sandbox)
    runs = len(held.values)
    value = math.fsum(held.values) / runs
    return Measured(held.metric, value, held.sigma or 0.0, runs, held.run_s, held.notes)


def note_baseline(directory: Path, name: str, layout: Layout | None, draft: Draft, measured: Measured) -> None:
    """Write a measured baseline into the task.yaml that ``write_task`` has written."""
    path = directory / TASK_FILE
    words = f"measured: {measured.words}"
    if layout is not None and layout.text is not None:
        text = f"# Adopted from {layout.kind}, as it was there. Baseline, {words}.\n{layout.text}"
    else:
        fields = replace(named(draft, name, layout), baseline=float(f"{measured.value:.6g}"), measured=words)
        text = render_task_yaml(fields)
    path.write_text(text, "utf-8")


def bring_history(directory: Path, layout: Layout | None) -> str:
    """Import the experiments that a project has made so far; the sentence to show, empty where it has none.

    Raises RepositoryError: there is no repository to keep them in.
    """
    if layout is None or layout.log is None:
        return ""
    return import_log(directory, layout.log)


def next_commands(directory: Path, *, whole: bool = False) -> Iterator[str]:
    """What is left to do before ``start``: the commands, in order. whole: all that is in the folder is the task's."""
    from autoresearchd.policy.search.find_constants import searchable  # its parser is only needed here

    shown = shlex.quote(str(directory))  # whoever pastes these lines runs no name of a file
    git = "git" if shown == "." else f"git -C {shown}"
    root = None
    with contextlib.suppress(RepositoryError):
        root = find_root(directory)
    task = read_task(directory, None)
    if root is None:
        yield f"{git} init && {git} add -A && {git} commit -m 'my task'"
    elif whole:
        yield f"{git} add -- . && {git} commit -m 'autoresearchd: the task' -- ."
    else:
        names = [TASK_FILE, *(os.path.normpath(f"{task.source_dir}/{p}") for p in (*task.editable, *task.protected))]
        missing = [name for name in names if not _committed(root, directory / name)]
        if missing:
            yield f"{git} add -- {shlex.join(missing)} && {git} commit -m 'autoresearchd: the task'"
    yield f"autoresearchd task check {shown} --run"
    tunable = any(searchable(path) for path in task.editable)  # else the usual policy would be refused
    yield f"autoresearchd start --task {shown}{'' if tunable else ' --policy command:CMD'}"


def _committed(root: Path, path: Path) -> bool:
    try:
        preflight.check_committed(root, path)
    except RepositoryError:
        return False
    return True
