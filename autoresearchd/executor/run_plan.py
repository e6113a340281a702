"""From a run request to the plan that a supervisor follows: stages, what each process sees, its environment."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.ports import RunRequest
from autoresearchd.executor.devices import Devices
from autoresearchd.executor.interpreter import Interpreter
from autoresearchd.executor.task_data import find_data, place_links
from autoresearchd.executor.visible_files import hidden_places, interpreter_folders
from autoresearchd.sandbox.environment import job_environment, search_path
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.launch import Plan, Program, RunLimits, Stage
from autoresearchd.sandbox.tiers import Tier
from autoresearchd.sandbox.view import View

OUTPUT = "output"
TRAIN_SECONDS = "AUTORESEARCHD_TRAIN_SECONDS"
"""Tells the evaluation how long training took, start-up included, by a clock that edited code cannot reach."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a fresh folder is made in it
_SHARED_MEMORY_NEEDED = 512 << 20
_SCRATCH_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one run.

    scratch: around the folders for temporary files, None where the sandbox has its own; programs: for PATH; exchange:
    of scorer and model process.
    """

    output: Path
    scratch: Path | None
    programs: tuple[Path, ...]
    exchange: Path | None


def make_plan(
    request: RunRequest, *, tier: Tier, python: Interpreter, devices: Devices, limits: RunLimits | None = None
) -> Plan:
    """Prepare the folders of a run and say what is to run in them.

    Raises BaselineError: data that task.yaml names is not there; EnvironmentFailure: the folders cannot be made.
    """
    return _Planner(request, tier, python, devices).plan(limits or RunLimits())


class _Planner:
    def __init__(self, request: RunRequest, tier: Tier, python: Interpreter, devices: Devices) -> None:
        self.request, self.task, self.tier, self.python, self.devices = request, request.task, tier, python, devices
        self.home = Path.home()
        places = (request.setup, request.source)
        self.data = find_data(self.task.data, places, "workspace.data")
        evaluation = self.task.evaluation
        self.private = find_data(evaluation.private, places, "evaluation.private") if evaluation else ()
        place_links(request.workspace, self.data)
        if evaluation:
            place_links(request.pristine, (*self.data, *self.private))
        self.places = self.make_places()
        own = (request.source, request.run_dir, request.pristine)
        folders = interpreter_folders(python, self.home, request.setup, own)
        self.common = [*folders, *self.places.programs, *(d.real for d in self.data)]

    def make_places(self) -> Places:
        folder = self.request.run_dir
        evaluation = self.task.evaluation
        try:
            output, tools = folder / OUTPUT, folder / "bin"
            for stale in (output, tools):
                if not remove_tree(str(stale)):
                    raise OSError(errno.ENOTEMPTY, "what an earlier run left cannot be removed", str(stale))
            output.mkdir(parents=True)
            programs = tuple(self.python.search_folders(tools))
            scratch = None if self.tier.scratch else Path(tempfile.mkdtemp(prefix="autoresearchd-"))
            exchange = _exchange(folder) if evaluation and evaluation.model_command else None
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot make the folders of a run in {folder}: {error}", hint="free disk space, or check permissions"
            ) from error
        return Places(output, scratch, programs, exchange)

    def plan(self, limits: RunLimits) -> Plan:
        made = tuple(p for p in (self.places.exchange, self.places.scratch) if p)
        return Plan(
            run_dir=self.request.run_dir,
            stages=tuple(self.stages()),
            plain=not self.tier.isolates,
            output=self.places.output,
            wall=self.task.execution.budget.wall,
            memory_mb=self.task.execution.memory_mb,
            remove=made,
            limits=limits,
            written=made,
            facts={"tier": self.tier.name.value, "device": str(self.devices)},
        )

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
            stages.append(
                Stage(
                    "evaluation",
                    program,
                    evaluation.timeout,
                    companion=companion,
                    reads=self.places.output,
                    seconds={TRAIN_SECONDS: "training"},
                )
            )
        return stages

    def program(self, command: str, name: str, view: View) -> Program:
        """A command of task.yaml, which is the user's own and may use the shell's syntax, to be run with a view."""
        scratch = self.scratch(name)
        if self.tier.confines:
            view = replace(view, writable=(*view.writable, scratch))
        env = job_environment(
            path=search_path(*self.places.programs),
            home=scratch if self.tier.confines else self.home,
            scratch=scratch,
            output=self.places.output,
            budget=self.task.execution.budget.training,
            seed=self.request.seed,
            profile=self.task.profile,
            devices=self.devices.visible(self.request.slot),
            extra=self.task.execution.env,
        )
        if self.places.exchange and name in ("model", "evaluation"):
            env["AUTORESEARCHD_EXCHANGE_DIR"] = str(self.places.exchange)
        argv = self.tier.command(view, ("/bin/sh", "-c", command))
        return Program(
            argv, view.cwd if not self.tier.isolates else Path("/"), env, self.request.run_dir / f"{name}.log"
        )

    def scratch(self, name: str) -> Path:
        """A program's own folder for temporary files: what training leaves there must not meet the evaluation."""
        if self.tier.scratch:
            return self.tier.scratch
        assert self.places.scratch
        folder = self.places.scratch / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def room(self) -> int:
        """Bytes in memory that each of a sandbox's own folders may take."""
        memory = self.task.execution.memory_mb
        return _SCRATCH_BYTES if memory is None else min(_SCRATCH_BYTES, memory << 20)

    def job_view(self, *, writes: bool, exchange: bool = False) -> View:
        """What edited code sees: the worktree and the data; never what only the evaluation may read."""
        workspace, output = self.request.workspace, self.places.output
        return View(
            cwd=workspace,
            home=self.home,
            readable=(*self.common, *([] if writes else [output])),
            writable=(*([output] if writes else []), *self.exchange_folder(exchange)),
            hidden=(
                *hidden_places(self.task, self.python),
                *(p.real for p in self.private),
                *self.private_in(workspace),
            ),
            network=self.task.execution.network,
            gpu=bool(self.devices.ids),
            scratch_bytes=self.room(),
        )

    def evaluation_view(self) -> View:
        """What the evaluator's own command sees: nothing edited but what training left in its output folder."""
        return View(
            cwd=self.request.pristine,
            home=self.home,
            readable=(*self.common, *(p.real for p in self.private), self.places.output),
            writable=tuple(self.exchange_folder(True)),
            network=self.task.execution.network,
            gpu=bool(self.devices.ids),
            scratch_bytes=self.room(),
        )

    def exchange_folder(self, wanted: bool) -> list[Path]:
        return [self.places.exchange] if wanted and self.places.exchange else []

    def private_in(self, folder: Path) -> list[Path]:
        """Private entries that the commit itself holds."""
        return [folder / p.name for p in self.private if p.relative and (folder / p.name).exists()]


def _exchange(run_dir: Path) -> Path:
    """A fresh folder in shared memory; in the run's own folder where that is small or missing."""
    parent = run_dir
    if os.access(_SHARED_MEMORY, os.W_OK):
        space = os.statvfs(_SHARED_MEMORY)
        if space.f_bavail * space.f_frsize >= _SHARED_MEMORY_NEEDED:
            parent = _SHARED_MEMORY
    return Path(tempfile.mkdtemp(prefix="autoresearchd-", dir=parent))
