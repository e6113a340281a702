"""``task init``: a task.yaml for a program that is there, its baseline measured, its history brought along."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from autoresearchd.app.project import Project
from autoresearchd.app.tasks.check_task import Held, check_held
from autoresearchd.app.tasks.job_programs import require_programs
from autoresearchd.app.tasks.task_folder import TASK_FILE, read_task
from autoresearchd.config import read_task_text
from autoresearchd.config.draft_task import Draft, Layout, render_task_yaml, write_new
from autoresearchd.config.python_environments import environment_of, how_to_run
from autoresearchd.domain.errors import MissingCapability, RepositoryError, UsageError
from autoresearchd.domain.task import Task
from autoresearchd.report.log_files import read_log, store_log
from autoresearchd.workspace import preflight
from autoresearchd.workspace.layout import find_root


def write_task(directory: Path, name: str, layout: Layout | None, draft: Draft) -> None:
    """Write the task.yaml of a folder; nothing where it would be none. layout: None where it is nobody's."""
    path = directory / TASK_FILE
    if layout is not None and layout.text is not None:
        write_new(path, _render(draft, name, layout))
        return
    for target in draft.target_file:
        if not (directory / target).is_file():
            hint = "--file is a path in DIR: put the program there first"
            raise UsageError(f"{directory / target} does not exist", hint=hint)
    text = _render(draft, name, layout)
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


def _render(draft: Draft, name: str, layout: Layout | None, held: Held | None = None) -> str:
    """The text of the task.yaml; held: with the baseline that was measured."""
    words = f"measured: {baseline_words(held)}" if held else ""
    if layout is not None and layout.text is not None:
        told = f" Baseline, {words}." if words else ""
        return f"# Adopted from {layout.kind}, as it was there.{told}\n{layout.text}"
    if held:
        draft = replace(draft, baseline=float(f"{fmean(held.values):.6g}"), measured=words)
    remarks = (f"Adopted from {layout.kind}: the program prints its own score.",) if layout else ()
    return render_task_yaml(replace(draft, name=name, remarks=remarks))


def in_its_environment(draft: Draft, directory: Path) -> tuple[Draft, str]:
    """The draft with its command as a job can run it and the interpreter that it needs; the sentence about it."""
    found = environment_of(draft.run_command, directory)
    if found is None:
        return draft, ""
    python = str(found.python) if found.python is not None else None
    return replace(draft, run_command=found.command, python=python), found.note


def not_measurable(directory: Path, task: Task) -> str:
    """Why the baseline cannot be measured yet: what is run is the program as committed. Empty where it can."""
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


def measure_baseline(directory: Path, name: str, layout: Layout | None, draft: Draft, sandbox: str | None) -> Held:
    """Run the program as committed under different seeds, and write what it gave into its task.yaml.

    One that somebody has changed since it was written stays as it is, and a note says so.
    """
    held = check_held(directory, profile=None, sandbox=sandbox)
    path, part = directory / TASK_FILE, directory / f"{TASK_FILE}.part"
    try:
        if path.read_bytes() == _render(draft, name, layout).encode():
            part.write_text(_render(draft, name, layout, held), "utf-8")
            part.replace(path)
            return held
        why = "was changed meanwhile and stays as it is"
    except OSError as error:
        why = f"cannot be written ({error.strerror})"
        part.unlink(missing_ok=True)
    return replace(held, notes=(*held.notes, f"{path} {why}: the baseline is not in it"))


def baseline_words(held: Held) -> str:
    """What the baseline's runs gave: mean, noise, and how long one took."""
    return f"{fmean(held.values):.6g} ± {held.sigma or 0.0:.2g} {held.over}"


def bring_history(directory: Path, layout: Layout | None) -> str:
    """Import the experiments that a project has made so far; the sentence to show, empty where it has none."""
    if layout is None or layout.log is None:
        return ""
    try:
        log = read_log(layout.log)
    except UsageError as error:  # it may have no run yet, and then there is nothing to bring later
        return f"its experiments were not imported: {error.what}"
    try:
        with Project.at(directory).open_store() as store:
            return store_log(store, log)
    except UsageError as error:
        later = f"`autoresearchd import {layout.log.relative_to(directory)}` in that folder does it later"
        return f"its experiments were not imported ({error.what}): {later}"


def next_commands(directory: Path, *, whole: bool = False) -> Iterator[str]:
    """What is left to do before ``start``: the commands, in order. whole: all that is in the folder is the task's."""
    from autoresearchd.policy.search.find_constants import searchable  # its parser is only needed here

    shown = shlex.quote(str(directory))  # whoever pastes these lines runs no name of a file
    git = "git" if shown == "." else f"git -C {shown}"
    task = read_task(directory)
    try:
        root = find_root(directory)
    except RepositoryError:
        yield f"{git} init && {git} add -A && {git} commit -m 'my task'"
    else:
        names = [TASK_FILE, *(os.path.normpath(f"{task.source_dir}/{p}") for p in (*task.editable, *task.protected))]
        missing = [name for name in names if not _committed(root, directory / name)]
        if whole:
            yield f"{git} add -- . && {git} commit -m 'autoresearchd: the task' -- ."
        elif missing:
            yield f"{git} add -- {shlex.join(missing)} && {git} commit -m 'autoresearchd: the task'"
    yield f"autoresearchd task check {shown} --run"
    tunable = any(searchable(path) for path in task.editable)  # else the usual policy would be refused
    yield f"autoresearchd start --task {shown}{'' if tunable else ' --policy command:CMD'}"


def _committed(root: Path, path: Path) -> bool:
    with contextlib.suppress(RepositoryError):
        preflight.check_committed(root, path)
        return True
    return False
