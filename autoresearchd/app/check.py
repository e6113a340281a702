"""``task check --run``: a trial run of a task exactly as a session would run it, without leaving a session behind."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from autoresearchd.app.compose import open_workspace, require_sandbox
from autoresearchd.app.project import Project
from autoresearchd.app.start import TASK_FILE, read_task
from autoresearchd.app.tools import require_bits
from autoresearchd.config import check_files
from autoresearchd.domain.duration import format_duration
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Task
from autoresearchd.errors import BaselineError
from autoresearchd.evaluator.measure import measure
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.artifacts import read_logs, read_result_file
from autoresearchd.loop.hints import mend_job
from autoresearchd.ports import RunHandle, RunRequest
from autoresearchd.resources import bundled
from autoresearchd.sandbox.tiers import AUTO
from autoresearchd.workspace import preflight

SEED = 1
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """What a trial run gave. measured: a sentence with the metric; notes: what the user should know about it."""

    measured: str
    notes: tuple[str, ...] = ()


def check_run(folder: Path, budget: float | None = None, sandbox: str | None = None) -> Checked:
    """Set the task up as the last commit has it, run it once and measure it.

    Nothing but the commit and the data that task.yaml names is there, as in a session. A bundled task is taken as it
    is, as ``start`` would commit it.

    Raises:
        BaselineError: it gives no metric.
        RepositoryError: the folder is in no repository that a session could start from.
        MissingCapability: the ``sandbox`` (None: any) does not work.
    """
    executor = LocalExecutor(tier=sandbox or AUTO)
    require_sandbox(executor)
    task = read_task(folder, budget)
    source = (folder / task.source_dir).resolve()
    check_files(task, source, folder / TASK_FILE)
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="autoresearchd-check-") as scratch:
        top = Path(scratch)
        notes = _copies(task, folder, source, (top / "pristine", top / "workspace"))
        executor.setup(task, top / "pristine", top / "setup", top / "setup.log", threading.Event())
        request = RunRequest(
            key=f"check/{task.name}",
            task=task,
            commit="",
            seed=SEED,
            workspace=top / "workspace",
            pristine=top / "pristine",
            setup=top / "setup",
            run_dir=top / "run",
            source=source,
        )
        result = _run(executor.start(request))
        if result is None:
            raise BaselineError("the run gave no result", mend="try again")
        logs = read_logs(result)
        measurement = measure(task, result, logs, result_file=read_result_file(task, top / "run"))
        if measurement.label is not Label.NONE or measurement.value is None:
            tail = "\n".join(logs.get("training", "").rstrip().splitlines()[-15:])
            ended = f"the end of its log:\n{tail}" if tail else "it printed nothing"
            raise BaselineError(
                f"{task.name} gives no {task.metric.name}: {measurement.label.value}: {measurement.detail}",
                mend=mend_job(measurement.detail, source, top / "pristine") or ended,
            )
        return Checked(
            f"{task.metric.name} {measurement.value:.6g} in {format_duration(result.duration_s)} "
            f"({result.tier}, {task.scoring.source.value})",
            notes,
        )


def repository_notes(folder: Path) -> tuple[str, ...]:
    """What would stand in the way of ``start`` in a folder, or be left out by it.

    Raises RepositoryError when it is in no repository that a session could start from.
    """
    project = Project.at(folder)
    preflight.check_repository(project.root, modified=True)
    changed = preflight.uncommitted(project.root, folder)
    if not changed:
        return ()
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    return (
        f"not as in the last commit, which is what is run: {', '.join(changed[:_SHOWN])}{more}; "
        "commit what the task needs before `autoresearchd start`",
    )


def is_bundled(folder: Path) -> bool:
    """Whether a folder is that of a bundled task: it needs no repository, ``start`` makes one of a copy."""
    return folder.resolve().parent == bundled("templates").resolve()


def _copies(task: Task, folder: Path, source: Path, targets: tuple[Path, ...]) -> tuple[str, ...]:
    """Write out what a session would start from; notes on what is not part of it."""
    if is_bundled(folder):
        for target in targets:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        return ()
    notes = repository_notes(folder)
    workspace = open_workspace(Project.at(folder), "check", task, source)
    try:
        base = workspace.head()
        workspace.check_tracked(base, [*task.editable, *task.protected])
        require_bits(task, workspace, base)
        for target in targets:
            workspace.materialise(base, target)
    finally:
        workspace.close()
    return notes


def _run(handle: RunHandle) -> RunResult | None:
    """Wait for the end of a run; whatever ends the waiting ends the run, so that it does not use a folder that goes."""
    try:
        return handle.wait(None)
    finally:
        handle.kill()
        handle.wait(None)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """TERM, INT and HUP end the check in an orderly way, once: what was made for it is removed."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def end(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():  # only there may signals be handled
        yield
        return
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
