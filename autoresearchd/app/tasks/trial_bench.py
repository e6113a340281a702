"""A bench for trial runs of a task: set up once, as a session would, in a folder that goes with it."""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from autoresearchd.app.compose import require_sandbox
from autoresearchd.app.project import Project
from autoresearchd.app.start import read_task
from autoresearchd.app.start_checks import require_bits
from autoresearchd.app.tasks.pinned_files import empty_submodules, with_large_files
from autoresearchd.app.tasks.scaffold import TASK_FILE
from autoresearchd.config import check_files
from autoresearchd.config.check_file import CHECK_FILE
from autoresearchd.domain.errors import BaselineError
from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.decide import hint_of, require_bounded
from autoresearchd.evaluator.measure.measurement import EVALUATION, EVALUATION_FAILED, TRAINING
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.task_data import find_data
from autoresearchd.loop.measuring.job_hints import hint_job
from autoresearchd.loop.measuring.protected_files import ProtectedFiles
from autoresearchd.loop.measuring.run_files import read_logs, read_result_file, read_sources, read_tail
from autoresearchd.loop.run import RunningProgram, launch
from autoresearchd.resources import bundled
from autoresearchd.sandbox.tiers import AUTO
from autoresearchd.workspace import preflight
from autoresearchd.workspace.files import remove_tree
from autoresearchd.workspace.task_workspace import open_workspace

_SHOWN = 5
_TEXT_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Ended:
    """A trial run: what it gave, and the executor's facts.

    log: of the training, or of the evaluation where that has failed. result_file: its text, None where the job wrote
    none.
    """

    measurement: Measurement
    result: RunResult
    log: str
    result_file: str | None = None


@dataclass
class Trial:
    """A run under way, in folders of its own."""

    program: RunningProgram

    @property
    def task(self) -> Task:
        """With the time that the run has."""
        return self.program.request.task

    def end(self) -> Ended:
        """Wait for the end of the run, and measure it."""
        try:
            result = self.program.handle.wait()
            assert result is not None
            measurement, logs = self.program.measure(result), read_logs(result)
            log = logs.get(EVALUATION if measurement.detail.startswith(EVALUATION_FAILED) else TRAINING, "")
            return Ended(measurement, result, log, read_result_file(self.task, self.program.request.run_dir))
        finally:
            self.close()

    def close(self) -> None:
        """End the run, whatever it does, and remove its folders."""
        request = self.program.request
        if request.workspace.exists():
            self.program.kill()
            remove_tree(request.workspace)
            remove_tree(request.run_dir)


@dataclass
class Bench:
    """Where trial runs of one task are made. notes: what the user should know of the task's folder."""

    task: Task
    executor: LocalExecutor
    source: Path
    top: Path
    notes: tuple[str, ...] = ()
    _made: int = field(default=0, init=False)
    _trials: list[Trial] = field(default_factory=list, init=False)
    _protected: ProtectedFiles = field(init=False)

    def __post_init__(self) -> None:
        self._protected = ProtectedFiles(self.task, self.pristine, lambda: None)

    @property
    def pristine(self) -> Path:
        """The task as it is committed."""
        return self.top / "pristine"

    def text(self, path: str) -> str:
        """A file of the task; empty where there is none."""
        return read_tail(self.pristine / path, _TEXT_BYTES)

    def files(self) -> dict[str, str]:
        """The editable files."""
        return {path: self.text(path) for path in self.task.editable}

    def sources(self) -> dict[str, str]:
        """The protected Python files."""
        return read_sources(self.task, self.pristine)

    def places(self) -> dict[str, str]:
        """What a cheat may know of this machine: where the answers lie, and the scorer."""
        setup = self.top / "setup"
        private = self.task.evaluation.private if self.task.evaluation else ()
        found = find_data(private[:1], (setup, self.source), "evaluation.private")
        return {
            "@PRIVATE@": str(found[0].real if found else setup),
            "@SETUP@": str(setup),
            "@SOURCE@": str(self.source),
            "@PRISTINE@": str(self.pristine),
        }

    def begin(self, seed: int, files: Mapping[str, str] | None = None, budget: float | None = None) -> Trial:
        """Start a run of the program, with ``files`` in place of its own."""
        self._made += 1
        workspace, run_dir = self.top / f"workspace-{self._made}", self.top / f"run-{self._made}"
        task = self.task if budget is None else with_budget(self.task, budget)
        shutil.copytree(self.top / "clean", workspace, symlinks=True)
        for path, text in (files or {}).items():
            (workspace / path).write_text(text, "utf-8")
        request = RunRequest(
            key=f"check/{task.name}",
            task=task,
            commit="",
            seed=seed,
            workspace=workspace,
            pristine=self.pristine,
            setup=self.top / "setup",
            run_dir=run_dir,
            source=self.source,
        )
        trial = Trial(launch(self.executor, self._protected, request))
        self._trials.append(trial)
        return trial

    def run(self, seed: int, files: Mapping[str, str] | None = None, budget: float | None = None) -> Ended:
        """As ``begin``, and wait for its end."""
        return self.begin(seed, files, budget).end()

    def close(self) -> None:
        """End what is still running, so that it does not use a folder that goes."""
        for trial in self._trials:
            trial.close()

    def baseline(self, seed: int, budget: float | None = None) -> Ended:
        """Run the program as it is. Raises BaselineError: it gives no metric, or not all that a constraint bounds."""
        return self.accepted(self.run(seed, budget=budget))

    def accepted(self, ended: Ended) -> Ended:
        """A run of the program as it is, if it gave what it has to. Raises BaselineError: as ``baseline``."""
        found = ended.measurement
        if found.label is not Label.NONE or found.value is None:
            tail = "\n".join(ended.log.rstrip().splitlines()[-15:])
            words = f"the end of its log:\n{tail}" if tail else "it printed nothing"
            known = hint_of(self.task, found.label, found.detail)
            raise BaselineError(
                f"{self.task.name} gives no {self.task.metric.name}: {found.label.value}: {found.detail}",
                hint=hint_job(found.detail, self.source, self.pristine) or (f"{known}; {words}" if known else words),
            )
        require_bounded(self.task, found.metrics, self.task.name)
        unwritten = self.task.scoring.result_file if ended.result_file is None else None
        if unwritten:
            told = f"scoring.result_file: a run wrote no {unwritten} into $AUTORESEARCHD_OUTPUT_DIR, so none was read"
            self.notes = tuple(dict.fromkeys((*self.notes, told)))
        return ended


def with_budget(task: Task, training: float) -> Task:
    """The task with another time of training; what comes on top of it stays."""
    budget = task.execution.budget
    new = replace(
        budget, training=training, wall=max(training + budget.grace, budget.wall - budget.training + training)
    )
    return replace(task, execution=replace(task.execution, budget=new))


@contextmanager
def open_bench(
    folder: Path, *, budget: float | None = None, profile: str | None = None, sandbox: str | None = None
) -> Iterator[Bench]:
    """Set the task of a folder up as the last commit has it; a bundled one is taken as it is.

    Nothing but the commit and the data that task.yaml names is there, as in a session.

    Raises:
        BaselineError: its set-up fails.
        RepositoryError: the folder is in no repository that a session could start from.
        MissingCapability: the ``sandbox`` (None: any) does not work.
    """
    executor = LocalExecutor(tier=sandbox or AUTO)
    require_sandbox(executor)
    task = read_task(folder, budget, profile)
    source = (folder / task.source_dir).resolve()
    check_files(task, source, folder / TASK_FILE)
    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="autoresearchd-check-") as scratch:
        top = Path(scratch)
        task, large = (task, ()) if is_bundled(folder) else with_large_files(task, Project.at(folder).root, source)
        notes = _copies(task, folder, source, (top / "pristine", top / "clean"))
        try:
            executor.setup(task, top / "pristine", top / "setup", top / "setup.log", threading.Event())
        except BaselineError as error:  # the log that it names goes with the bench; its end has been told
            raise BaselineError(error.what, hint="correct execution.setup_commands in task.yaml") from error
        bench = Bench(task, executor, source, top, (*notes, *large))
        try:
            yield bench
        finally:
            bench.close()


def repository_notes(folder: Path) -> tuple[str, ...]:
    """What would stand in the way of ``start`` in a folder, or be left out by it.

    Raises RepositoryError when it is in no repository that a session could start from.
    """
    project = Project.at(folder)
    preflight.check_repository(project.root, modified=True)
    changed = preflight.uncommitted(project.root, folder)
    told = f"{TASK_FILE} is checked as it is here, not as in the last commit; `autoresearchd start` wants it committed"
    notes = [told] if TASK_FILE in changed else []
    notes += empty_submodules(project.root, folder)
    changed = [name for name in changed if name != TASK_FILE]
    if not changed:
        return tuple(notes)
    more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
    notes.append(
        f"not as in the last commit, which is what is run: {', '.join(changed[:_SHOWN])}{more}; "
        "commit what the task needs before `autoresearchd start`"
    )
    return tuple(notes)


def is_bundled(folder: Path) -> bool:
    """Whether a folder is that of a bundled task: it needs no repository, ``start`` makes one of a copy."""
    return folder.resolve().parent == bundled("templates").resolve()


def _copies(task: Task, folder: Path, source: Path, targets: tuple[Path, ...]) -> tuple[str, ...]:
    """Write out what a session would start from; notes on what is not part of it."""
    if is_bundled(folder):
        for target in targets:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", CHECK_FILE), symlinks=True)
        return ()
    notes = repository_notes(folder)
    workspace = open_workspace(Project.at(folder).root, "check", task, source)
    try:
        base = workspace.head()
        workspace.check_tracked(base, [*task.editable, *task.protected])
        require_bits(task, workspace, base)
        for target in targets:
            workspace.materialise(base, target)
    finally:
        workspace.close()
    return notes


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
