"""``task check --run``: trial runs of a task exactly as a session would make them, without leaving a session behind.

A task without a check.yaml only gives its baseline and noise. One that has it is held to what that says: its documented
baseline and noise, honest edits that must be accepted, and cheats of which none may pay.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from types import FrameType
from typing import NamedTuple

from autoresearchd.app.known_secrets import session_redactor
from autoresearchd.app.project import Project
from autoresearchd.app.tasks.job_programs import require_bits
from autoresearchd.app.tasks.task_folder import TASK_FILE, empty_submodules, is_bundled, read_task, with_large_files
from autoresearchd.config import Overrides, check_files
from autoresearchd.config.load_task import CHECK_FILE, load_check
from autoresearchd.config.task_schema import Cheat, CheckFile, Edit, Figures
from autoresearchd.domain.errors import AutoresearchdError, BaselineError, PolicyError
from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.quantities import counted, format_duration, some_of
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.decide import hint_of, require_bounded
from autoresearchd.evaluator.keep.noise import estimate_sigma
from autoresearchd.evaluator.measure.measurement import EVALUATION, EVALUATION_FAILED, TRAINING
from autoresearchd.evaluator.rules.legality import check_edit, required_symbols
from autoresearchd.evaluator.rules.program_text import about_seed
from autoresearchd.evaluator.rules.run_time import STARVED, about_budget, pace_of
from autoresearchd.evaluator.rules.task_variants import Reference, changed, doubts, verdict
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.visible_files import find_data
from autoresearchd.loop.daemon import stopping
from autoresearchd.loop.measuring.advice import hint_job
from autoresearchd.loop.measuring.run_files import ProtectedFiles, clean_logs, read_logs, read_sources
from autoresearchd.loop.run import RunningProgram, launch
from autoresearchd.sandbox.tiers import AUTO
from autoresearchd.workspace import preflight
from autoresearchd.workspace.files import read_tail, remove_tree
from autoresearchd.workspace.git import open_workspace

SEED = 1
PROFILE = "cpu"
"""What tasks are held to unless another is asked for: that of every machine."""
RUNS = 3
"""Of the unedited program, where nobody says how many."""
_AT_ONCE = 2
"""Edits and cheats that run beside each other, where there are as many processors."""
_TEXT_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a check.yaml a task is held to; None: all, and three runs of the unedited program.

    hurried: everything under the budget of the edits.
    """

    runs: int | None = None
    edits: int | None = None
    cheats: int | None = None
    hurried: bool = False


ALL = Extent()
SHORT = Extent(runs=1, edits=1, cheats=2, hurried=True)
MANY_TASKS = Extent(runs=2, edits=1, cheats=3)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of an edit. right: whether it ended as it had to."""

    name: str
    label: str
    detail: str
    right: bool


@dataclass(frozen=True, slots=True)
class Held:
    """How a task stood up to its check.yaml.

    values: of the unedited program; run_s: seconds of the median run; evaluation: the share of the evaluation in it;
    seconds: of the whole check, set-up included; known_edits, known_cheats: how many check.yaml has.
    """

    metric: str
    profile: str
    budget: float
    tier: str
    source: str
    values: tuple[float, ...]
    sigma: float | None
    documented: Figures | None
    run_s: float
    evaluation: float
    seconds: float
    edits: tuple[Tried, ...]
    cheats: tuple[Tried, ...]
    known_edits: int
    known_cheats: int
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def over(self) -> str:
        """How often the unedited program was run, and how long a run took."""
        took = format_duration(self.run_s) if self.run_s >= 1 else "less than a second"
        return f"over {counted(len(self.values), 'run')} of {took}"


def check_held(
    folder: Path,
    *,
    extent: Extent = ALL,
    profile: str | None = PROFILE,
    sandbox: str | None = None,
    at_once: int | None = None,
) -> Held:
    """Hold a task to its check.yaml; one that has none only gives its baseline and noise.

    profile: None: what this machine has; at_once: edits and cheats beside each other, None: two where that many
    processors are. Raises RepositoryError where no session could start from the folder.
    """
    began = time.monotonic()
    wanted = load_check(folder) or CheckFile()
    documented = wanted.baseline.get(profile) if profile else None
    budget = wanted.budget if extent.hurried else documented.budget if documented else None
    with _open_bench(folder, budget, profile, sandbox) as bench:
        for variant in (*wanted.edits, *wanted.cheats):  # before anything is run
            bench.edited(variant, {})
        at_once = at_once or (1 if bench.task.profile == "cuda" else min(_AT_ONCE, len(os.sched_getaffinity(0))))
        ended = [bench.accepted(bench.end(bench.begin(SEED + i))) for i in range(extent.runs or RUNS)]  # nothing beside
        honest = wanted.edits[: extent.edits]
        trials = _Trials(bench, wanted.budget, documented, ended, at_once)
        tried = trials.all((*honest, *wanted.cheats[: extent.cheats]))
        edits, cheats = tried[: len(honest)], tried[len(honest) :]
        values = tuple(value for one in ended if (value := one.measurement.value) is not None)
        stages = [stage for one in ended if (stage := one.result.stage(TRAINING))]
        # Hurried, the budget is that of the edits, under which nothing is documented.
        differs = doubts(documented, values) if documented and not extent.hurried and len(values) > 1 else []
        share = median([stage.cpu_s / stage.duration_s for stage in stages if stage.duration_s > 0] or [1.0])
        busy = f"; its training had {share:.0%} of a processor: is this machine busy?" if share < STARVED else ""
        faults = [f"{words}{busy}" for words in differs]
        faults += [f"the edit {one.name!r} was refused: {one.label}: {one.detail}" for one in edits if not one.right]
        faults += [f"the cheat {one.name!r} ended as {one.label}: {one.detail}" for one in cheats if not one.right]
        texts = {**read_sources(bench.task, bench.pristine), **bench.texts(bench.task.editable)}
        took = median(stage.duration_s for stage in stages) if stages else None
        held = Held(
            metric=bench.task.metric.name,
            profile=bench.task.profile,
            budget=bench.task.execution.budget.training,
            tier=ended[0].result.tier,
            source=bench.task.scoring.source.value,
            values=values,
            sigma=estimate_sigma(values),
            documented=documented,
            run_s=median(one.result.duration_s for one in ended),
            evaluation=fmean(map(_evaluation, ended)),
            seconds=time.monotonic() - began,
            edits=edits,
            cheats=cheats,
            known_edits=len(wanted.edits),
            known_cheats=len(wanted.cheats),
            faults=tuple(faults),
            notes=(*bench.notes, *about_budget(bench.task, texts, took), *about_seed(bench.task, texts)),
        )
        return bench.redactor.value(held)


# ---------------------------------------------------------------------- trial runs
class _Ended(NamedTuple):
    """A trial run. log: of the training, or of the evaluation where that failed."""

    measurement: Measurement
    result: RunResult
    log: str


def _evaluation(ended: _Ended) -> float:
    """The share of the evaluation in a run."""
    stage = ended.result.stage(EVALUATION)
    return stage.duration_s / ended.result.duration_s if stage and ended.result.duration_s > 0 else 0.0


def _close(program: RunningProgram) -> None:
    """End a run, whatever it does, and remove its folders."""
    if program.request.workspace.exists():
        program.kill()
        remove_tree(program.request.workspace)
        remove_tree(program.request.run_dir)


@dataclass
class _Bench:
    """Where trial runs of one task are made. notes: what the user should know of the task's folder."""

    task: Task
    executor: LocalExecutor
    source: Path
    top: Path
    notes: tuple[str, ...]
    redactor: Redactor
    trials: list[RunningProgram] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pristine, self.setup = self.top / "pristine", self.top / "setup"
        self._protected = ProtectedFiles(self.task, self.pristine, lambda: None)

    def texts(self, paths: Iterable[str]) -> dict[str, str]:
        """Files of the task; empty where there is none."""
        return {path: read_tail(self.pristine / path, _TEXT_BYTES) for path in paths}

    def edited(self, variant: Edit, places: Mapping[str, str]) -> dict[str, str]:
        """The files as a variant changes them: the editable ones, and what else it names."""
        first = self.task.editable[0]
        paths = {*self.task.editable, *(step.file or first for step in variant.change)}
        return changed(variant, self.texts(paths), first, places)

    def places(self) -> dict[str, str]:
        """What a cheat may know of this machine: where the answers lie, and the scorer."""
        private = self.task.evaluation.private if self.task.evaluation else ()
        found = find_data(private[:1], (self.setup, self.source), "evaluation.private")
        places = {"@PRIVATE@": found[0].real if found else self.setup, "@SETUP@": self.setup}
        places |= {"@SOURCE@": self.source, "@PRISTINE@": self.pristine}
        return {mark: str(place) for mark, place in places.items()}

    def begin(self, seed: int, files: Mapping[str, str] | None = None, budget: float | None = None) -> RunningProgram:
        """Start a run of the program, with ``files`` in place of its own."""
        number = len(self.trials)
        workspace = self.top / f"workspace-{number}"
        task = self.task.lasting(budget)
        shutil.copytree(self.top / "clean", workspace, symlinks=True)
        for path, text in (files or {}).items():
            (workspace / path).write_text(text, "utf-8")
        key, run_dir = f"check/{task.name}", self.top / f"run-{number}"
        request = RunRequest(key, task, "", seed, workspace, self.pristine, self.setup, run_dir, self.source)
        self.trials.append(launch(self.executor, self._protected, request))
        return self.trials[-1]

    def end(self, program: RunningProgram) -> _Ended:
        """Wait for the end of a run, and measure it; its logs lose what is secret before anything is told of them."""
        try:
            result = program.handle.wait()
            assert result is not None
            clean_logs(program.request.run_dir, self.redactor)
            measurement = program.measure(result)
            stage = EVALUATION if measurement.detail.startswith(EVALUATION_FAILED) else TRAINING
            return _Ended(measurement, result, read_logs(result).get(stage, ""))
        finally:
            _close(program)

    def accepted(self, ended: _Ended) -> _Ended:
        """A run of the unedited program. Raises BaselineError: it has no metric, or lacks what a constraint bounds."""
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
        return ended


@contextmanager
def _open_bench(folder: Path, budget: float | None, profile: str | None, sandbox: str | None) -> Iterator[_Bench]:
    """Set a task up as a session would: the last commit and the data that task.yaml names; a bundled one as it is."""
    executor = LocalExecutor(tier=sandbox or AUTO)
    _ = executor.tier  # refused where nothing isolates here
    task = read_task(folder, overrides=Overrides(budget=budget), profile=profile)
    source = (folder / task.source_dir).resolve()
    check_files(task, source, folder / TASK_FILE)
    redactor = session_redactor(folder if is_bundled(folder) else Project.at(folder).root, task.execution.env)
    with _ended_by_signals(), _hidden(redactor), tempfile.TemporaryDirectory(prefix="autoresearchd-check-") as scratch:
        top = Path(scratch)
        notes: tuple[str, ...] = ()
        targets = top / "pristine", top / "clean"
        if is_bundled(folder):
            for target in targets:
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", CHECK_FILE))
        else:
            project = Project.at(folder)
            task, large = with_large_files(task, project.root, source)
            notes = (*repository_notes(folder), *large)
            with closing(open_workspace(project.root, "check", task, source)) as workspace:
                base = workspace.head()
                workspace.check_tracked(base, [*task.editable, *task.protected])
                require_bits(task, workspace, base)
                for target in targets:
                    workspace.materialise(base, target)
        try:
            executor.setup(task, top / "pristine", top / "setup", top / "setup.log", threading.Event())
        except BaselineError as error:  # the log that it names goes with the bench; its end has been told
            raise BaselineError(error.what, hint="correct execution.setup_commands in task.yaml") from error
        bench = _Bench(task, executor, source, top, notes, redactor)
        try:
            yield bench
        finally:
            for trial in bench.trials:  # what is still running would use a folder that goes
                _close(trial)


@contextmanager
def _hidden(redactor: Redactor) -> Iterator[None]:
    """What an error quotes of a job or of a set-up command, who may have been given secrets, holds none."""
    try:
        yield
    except AutoresearchdError as error:
        error.what, error.hint = redactor.text(error.what), redactor.text(error.hint)
        raise


def repository_notes(folder: Path) -> tuple[str, ...]:
    """What would be left out by ``start`` in a folder. Raises RepositoryError where no session could start."""
    project = Project.at(folder)
    preflight.check_repository(project.root, modified=True)
    preflight.check_branches(project.root)
    different = preflight.uncommitted(project.root, folder)
    told = f"{TASK_FILE} is checked as it is here, not as in the last commit; `autoresearchd start` wants it committed"
    notes = [told] if TASK_FILE in different else []
    notes += empty_submodules(project.root, folder)
    if others := [name for name in different if name != TASK_FILE]:
        told = f"not as in the last commit, which is what is run: {some_of(others)}"
        notes.append(f"{told}; commit what the task needs before `autoresearchd start`")
    return tuple(notes)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """TERM, INT and HUP end the check in an orderly way, once: what was made for it is removed."""
    numbers = stopping()

    def end(number: int, frame: FrameType | None) -> None:
        for other in numbers:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    with ExitStack() as stack:
        for number in numbers:
            stack.callback(signal.signal, number, signal.signal(number, end))
        yield


# ---------------------------------------------------------------------- edits and cheats
class _Trials:
    """Runs of edits and cheats beside the unedited program, all under one budget and one seed."""

    def __init__(
        self, bench: _Bench, budget: float | None, documented: Figures | None, ended: Sequence[_Ended], at_once: int
    ) -> None:
        self._bench, self._budget, self._documented, self._ended = bench, budget, documented, ended
        self._at_once = at_once
        self._files, self._sources = bench.texts(bench.task.editable), read_sources(bench.task, bench.pristine)
        self._required = required_symbols(bench.task, self._sources)
        self._places = bench.places()

    def all(self, variants: Sequence[Edit]) -> tuple[Tried, ...]:
        """Try them in their order, a few at a time: what they gain is far more than what a busy machine costs.

        Where the unedited program has not run under their budget yet it is the first of them, kept waiting as they are.
        """
        if not variants:
            return ()
        tried: list[Tried] = []
        waiting, running = deque(variants), deque[tuple[Edit, RunningProgram | PolicyError]]()
        same = self._budget in (None, self._bench.task.execution.budget.training)
        unedited = self._reference(self._ended) if same else self._bench.begin(SEED, None, self._budget)
        while waiting or running:
            if waiting and len(running) + isinstance(unedited, RunningProgram) < self._at_once:
                variant = waiting.popleft()
                running.append((variant, self._begin(variant)))
            elif isinstance(unedited, RunningProgram):
                unedited = self._reference([self._bench.accepted(self._bench.end(unedited))])
            else:
                tried.append(self._judge(*running.popleft(), unedited))
        return tuple(tried)

    def _reference(self, unedited: Sequence[_Ended]) -> Reference:
        stages = [stage for one in unedited for stage in one.result.stages]
        pace = pace_of(self._bench.task.lasting(self._budget), {**self._sources, **self._files}, stages)
        value = unedited[0].measurement.value or 0.0
        noise = estimate_sigma([v for one in self._ended if (v := one.measurement.value) is not None]) or 0.0
        if self._documented is not None:  # what is larger on this machine is noisier on it, too
            scale = abs(value / (self._documented.value or value or 1.0))
            noise = max(noise, self._documented.sigma * max(1.0, scale))
        return Reference(value, unedited[0].measurement.metrics, pace, noise)

    def _begin(self, variant: Edit) -> RunningProgram | PolicyError:
        files = self._bench.edited(variant, self._places)
        try:
            check_edit(self._bench.task, self._files, files, required=self._required)
        except PolicyError as error:
            return error
        return self._bench.begin(SEED, files, self._budget)

    def _judge(self, variant: Edit, running: RunningProgram | PolicyError, unedited: Reference) -> Tried:
        """An honest edit has to be legal and to give a metric, a cheat to end with a label that it may end with."""
        if isinstance(running, PolicyError):
            label, detail = running.label, running.what
        else:
            ended = self._bench.end(running)
            label, detail = verdict(running.request.task, ended.measurement, ended.result, unedited)
        right = variant.expect if isinstance(variant, Cheat) else (Label.NONE, Label.NO_GAIN)
        if label is Label.NONE and label not in right:
            label, detail = self._beside(variant, unedited)
        return Tried(variant.name, label.value or "better", detail, label in right)

    def _beside(self, variant: Edit, before: Reference) -> tuple[Label, str]:
        """What came of a cheat beside the unedited program, on another seed.

        The one run that it beat may have been a slow one: in the second or so that cheats get, the curve is steep.
        """
        unedited = self._bench.begin(SEED + 1, None, self._budget)
        cheat = self._bench.begin(SEED + 1, self._bench.edited(variant, self._places), self._budget)
        value, ended = self._bench.end(unedited).measurement.value, self._bench.end(cheat)
        reference = before if value is None else replace(before, value=value)
        return verdict(cheat.request.task, ended.measurement, ended.result, reference)
