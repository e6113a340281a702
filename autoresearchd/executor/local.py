"""The executor for this machine: each run in a sandbox, under a supervisor of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.task import Task
from autoresearchd.executor.devices import Devices, find_devices, processor
from autoresearchd.executor.interpreter import Interpreter, inspect, resolve_python
from autoresearchd.executor.setup_commands import run_setup
from autoresearchd.executor.visible_files import find_data, hidden_places, interpreter_folders, place_links
from autoresearchd.sandbox.environment import job_environment, search_path
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.launch import Plan, Program, RunLimits, Stage, Supervised, Supervisors, read_report, reap
from autoresearchd.sandbox.tiers import AUTO, Tier, check_name, choose
from autoresearchd.sandbox.view import View

OUTPUT = "output"
TRAIN_SECONDS = "AUTORESEARCHD_TRAIN_SECONDS"
"""Tells the evaluation how long training took, start-up included, by a clock that edited code cannot reach."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a fresh folder is made in it
_SHARED_MEMORY_NEEDED = 512 << 20
_SCRATCH_BYTES = 4 << 30


def make_plan(
    request: RunRequest, *, tier: Tier, python: Interpreter, devices: Devices, limits: RunLimits | None = None
) -> Plan:
    """Make the folders of a run, and what is to run in them. BaselineError: data is missing; EnvironmentFailure."""
    planner = _Planner(request, tier, python, devices)
    made = tuple(p for p in (planner.exchange, planner.around_scratch) if p)
    return Plan(
        run_dir=request.run_dir,
        stages=tuple(planner.stages()),
        plain=not tier.isolates,
        output=planner.output,
        wall=request.task.execution.budget.wall,
        memory_mb=request.task.execution.memory_mb,
        remove=made,
        limits=limits or RunLimits(),
        written=made,
        facts={"tier": tier.name.value, "device": str(devices)},
    )


class _Planner:
    """Its folders: ``output``, ``programs`` (for PATH), ``exchange`` (of scorer and model process), and scratch."""

    def __init__(self, request: RunRequest, tier: Tier, python: Interpreter, devices: Devices) -> None:
        self.request, self.task, self.tier, self.python, self.devices = request, request.task, tier, python, devices
        places = (request.setup, request.source)
        self.data = find_data(self.task.data, places, "workspace.data")
        evaluation = self.task.evaluation
        self.private = find_data(evaluation.private, places, "evaluation.private") if evaluation else ()
        place_links(request.workspace, self.data)
        if evaluation:
            place_links(request.pristine, (*self.data, *self.private))
        folder = request.run_dir
        self.output, tools = folder / OUTPUT, folder / "bin"
        try:
            for stale in (self.output, tools):
                if not remove_tree(str(stale)):
                    raise OSError(errno.ENOTEMPTY, "what an earlier run left cannot be removed", str(stale))
            self.output.mkdir(parents=True)
            self.programs = tuple(python.search_folders(tools))
            self.around_scratch = None if tier.scratch else Path(tempfile.mkdtemp(prefix="autoresearchd-"))
            self.exchange = _exchange(folder) if evaluation and evaluation.model_command else None
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot make the folders of a run in {folder}: {error}", hint="free disk space, or check permissions"
            ) from error
        own = (request.source, folder, request.pristine)
        folders = interpreter_folders(python, Path.home(), request.setup, own)
        self.common = [*folders, *self.programs, *(d.real for d in self.data)]

    def stages(self) -> list[Stage]:
        budget = self.task.execution.budget
        run = self.program(self.task.execution.run_command, "training", self.job_view(writes=True))
        stages = [Stage("training", run, budget.limit, "budget_overrun")]
        for index, check in enumerate(self.task.checks):
            name = f"check-{index}"
            program = self.program(check.command, name, self.job_view(writes=False))
            stages.append(Stage(name, program, check.timeout))
        if evaluation := self.task.evaluation:
            companion = None
            if evaluation.model_command:
                view = self.job_view(writes=False, exchange=True)
                companion = self.program(evaluation.model_command, "model", view)
            program = self.program(evaluation.command, "evaluation", self.evaluation_view())
            stage = Stage("evaluation", program, evaluation.timeout, companion=companion, reads=self.output)
            stages.append(replace(stage, seconds={TRAIN_SECONDS: "training"}))
        return stages

    def program(self, command: str, name: str, view: View) -> Program:
        """A command of task.yaml, which is the user's own and may use the shell's syntax, to be run with a view."""
        scratch = self.scratch(name)
        if self.tier.confines:
            view = replace(view, writable=(*view.writable, scratch))
        env = job_environment(
            path=search_path(*self.programs),
            home=scratch if self.tier.confines else Path.home(),
            scratch=scratch,
            output=self.output,
            budget=self.task.execution.budget.training,
            seed=self.request.seed,
            profile=self.task.profile,
            devices=self.devices.visible(self.request.slot),
            extra=self.task.execution.env,
        )
        if self.exchange and name in ("model", "evaluation"):
            env["AUTORESEARCHD_EXCHANGE_DIR"] = str(self.exchange)
        argv = self.tier.command(view, ("/bin/sh", "-c", command))
        return Program(
            argv, view.cwd if not self.tier.isolates else Path("/"), env, self.request.run_dir / f"{name}.log"
        )

    def scratch(self, name: str) -> Path:
        """A program's own folder for temporary files: what training leaves there must not meet the evaluation."""
        if self.tier.scratch:
            return self.tier.scratch
        assert self.around_scratch
        folder = self.around_scratch / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def job_view(self, *, writes: bool, exchange: bool = False) -> View:
        """What edited code sees: the worktree and the data; never what only the evaluation may read."""
        workspace = self.request.workspace
        committed = (workspace / p.name for p in self.private if p.relative)
        return self.view(
            workspace,
            readable=() if writes else (self.output,),
            writable=(*([self.output] if writes else []), *([self.exchange] if exchange and self.exchange else [])),
            hidden=(
                *hidden_places(self.task, self.python),
                *(p.real for p in self.private),
                *(place for place in committed if place.exists()),
            ),
        )

    def evaluation_view(self) -> View:
        """What the evaluator's own command sees: nothing edited but what training left in its output folder."""
        return self.view(
            self.request.pristine,
            readable=(*(p.real for p in self.private), self.output),
            writable=(self.exchange,) if self.exchange else (),
        )

    def view(
        self, cwd: Path, *, readable: tuple[Path, ...], writable: tuple[Path, ...], hidden: tuple[Path, ...] = ()
    ) -> View:
        memory = self.task.execution.memory_mb
        return View(
            cwd=cwd,
            home=Path.home(),
            readable=(*self.common, *readable),
            writable=writable,
            hidden=hidden,
            network=self.task.execution.network,
            gpu=bool(self.devices.ids),
            scratch_bytes=_SCRATCH_BYTES if memory is None else min(_SCRATCH_BYTES, memory << 20),
        )


def _exchange(run_dir: Path) -> Path:
    """A fresh folder in shared memory; in the run's own folder where that is small or missing."""
    parent = run_dir
    if os.access(_SHARED_MEMORY, os.W_OK):
        space = os.statvfs(_SHARED_MEMORY)
        if space.f_bavail * space.f_frsize >= _SHARED_MEMORY_NEEDED:
            parent = _SHARED_MEMORY
    return Path(tempfile.mkdtemp(prefix="autoresearchd-", dir=parent))


class LocalHandle:
    """A run on this machine. When the handle goes, the run ends."""

    def __init__(self, supervised: Supervised) -> None:
        self.run_dir, self.supervisor_pid, self._supervised = supervised.plan.run_dir, supervised.pid, supervised

    def wait(self, timeout: float | None = None) -> RunResult | None:
        report = self._supervised.wait(timeout)
        return None if report is None else report.result

    def kill(self) -> None:
        self._supervised.kill()


class LocalExecutor:
    """Runs jobs on this machine.

    slots: how many runs may be under way at once; None: one for each GPU, else one. tier: the isolation to use, or its
    name; ``auto``: the best that works here, found at the first use. python: the interpreter to describe, where the
    task names one; None: the daemon's. limits: what a run may use beside its memory and its time.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        tier: Tier | str = AUTO,
        python: Path | None = None,
        devices: Devices | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        self._tier = check_name(tier) if isinstance(tier, str) else tier
        self._limits = limits
        self._devices = devices if devices is not None else find_devices()
        self.slots = slots if slots is not None else max(1, len(self._devices.ids))
        self._python = python or Path(sys.executable)
        self._interpreters: dict[Path, Interpreter] = {}
        self._supervisors = Supervisors()

    @property
    def tier(self) -> Tier:
        """The isolation that runs get; probed once. Raises MissingCapability where it does not work."""
        if isinstance(self._tier, str):
            self._tier = choose(self._tier)
        return self._tier

    def warnings(self, task: Task | None = None) -> list[str]:
        """What a user should know before runs start here; with a task, also what that task cannot have."""
        found = self.tier.warnings()
        evaluation = task.evaluation if task else None
        if evaluation and not self.tier.isolates and (evaluation.private or evaluation.hide):
            found.append("evaluation.private and evaluation.hide cannot be kept from edited code without isolation")
        return found

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        run_setup(task, pristine, setup, log, cancel, os.environ)

    def start(self, request: RunRequest) -> LocalHandle:
        python = self._interpreter(resolve_python(request.task, request.setup))
        plan = make_plan(request, tier=self.tier, python=python, devices=self._devices, limits=self._limits)
        return LocalHandle(self._supervisors.launch(plan))

    def recover(self, run_dir: Path) -> RunResult | None:
        reap([run_dir])
        report = read_report(run_dir)
        if report is None or report.stages[-1].outcome in ("killed", "lost") or not report.whole:
            return None
        return report.result

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        python = self._python
        if task is not None and setup is not None:
            with contextlib.suppress(MissingCapability):  # one that set-up has yet to make
                python = resolve_python(task, setup)
        return {
            "tier": self.tier.name.value,
            "device": str(self._devices),
            "host": platform.node(),
            "cpu": processor(),
            "python": self._interpreter(python).version,
        }

    def _interpreter(self, executable: Path) -> Interpreter:
        if executable not in self._interpreters:
            self._interpreters[executable] = inspect(executable)
        return self._interpreters[executable]
