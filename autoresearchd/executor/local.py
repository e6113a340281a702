"""The executor for this machine: each run in a sandbox, under a supervisor of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, PlaceTaken
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Task
from autoresearchd.executor.environment import Interpreter, inspect, processor, resolve_python, run_setup, share_cores
from autoresearchd.executor.gpus import Devices, find_devices, users
from autoresearchd.executor.visible_files import (
    at_home,
    committed_places,
    find_data,
    hidden_places,
    interpreter_folders,
    place_links,
)
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.launch import Plan, Program, RunLimits, Stage, Supervised, Supervisors, read_result, reap
from autoresearchd.sandbox.process_tree import descendants
from autoresearchd.sandbox.tiers import AUTO, Tier, TierName, check_name, choose
from autoresearchd.sandbox.view import View, job_environment, search_path

OUTPUT = "output"
TRAIN_SECONDS = "AUTORESEARCHD_TRAIN_SECONDS"
"""Tells the evaluation how long training took, start-up included, by a clock that edited code cannot reach."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  # a fresh folder is made in it
_SHARED_MEMORY_NEEDED = 512 << 20
_SCRATCH_BYTES = 4 << 30


_ONLY_THE_FIRST = (
    "in this tier only the first process of a command can use a GPU, none that it starts: `run_command: exec python …`"
)
_ON_GPUS = {
    TierName.BUBBLEWRAP_NOPROC: "in this tier no job can use a GPU: CUDA does not start without /proc",
    TierName.NAMESPACES: f"{_ONLY_THE_FIRST}; in a container perhaps none; and jobs cannot connect, even to 127.0.0.1",
    TierName.LANDLOCK: _ONLY_THE_FIRST,
}
"""What a tier cannot give to jobs that want a GPU."""


class _Planner:
    """Makes the folders of a run: output, ``programs`` (for PATH), ``exchange`` (of scorer and model), scratch.

    Raises BaselineError: data is missing; EnvironmentFailure.
    """

    def __init__(self, request: RunRequest, tier: Tier, python: Interpreter, devices: Devices) -> None:
        self.request, self.task, self.tier, self.python, self.devices = request, request.task, tier, python, devices
        places, evaluation = (request.setup, request.source), self.task.evaluation
        self.data = data = find_data(self.task.data, places, "workspace.data")
        self.private = find_data(evaluation.private, places, "evaluation.private") if evaluation else ()
        self.committed = tuple(committed_places(self.private, places))
        place_links(request.workspace, data)
        if evaluation:
            place_links(request.pristine, (*data, *self.private))
        folder = request.run_dir
        try:
            if not remove_tree(str(folder / OUTPUT)):
                raise OSError(errno.ENOTEMPTY, "what an earlier run left cannot be removed", str(folder / OUTPUT))
            folder.mkdir(parents=True, exist_ok=True)
            # No name may tell a job which run it is: a program could hold back where it is compared with another.
            self.unnamed = Path(tempfile.mkdtemp(prefix="run-", dir=folder.parents[1]))
            self.output = self.unnamed / OUTPUT
            self.output.mkdir()
            self.programs = python.search_folders(self.unnamed / "bin")
            self.scratch = tier.scratch or Path(tempfile.mkdtemp(prefix="autoresearchd-"))
            self.exchange = (_exchange(self.unnamed),) if evaluation and evaluation.model_command else ()
        except OSError as error:
            raise EnvironmentFailure(
                f"cannot make the folders of a run in {folder}: {error}", hint="free disk space, or check permissions"
            ) from error
        own = (request.source, folder, request.pristine)
        folders = interpreter_folders(python, Path.home(), request.setup, own)
        self.common = [*folders, *self.programs, *(d.real for d in data)]

    def plan(self, limits: RunLimits) -> Plan:
        made = (*self.exchange, *(() if self.tier.scratch else (self.scratch,)))
        return Plan(
            run_dir=self.request.run_dir,
            stages=tuple(self.stages()),
            plain=not self.tier.isolates,
            output=self.output,
            wall=self.task.execution.budget.wall,
            memory_mb=self.task.execution.memory_mb,
            deliver=self.request.run_dir / OUTPUT,
            remove=(*made, self.unnamed),
            limits=limits,
            written=made,
            facts={"tier": self.tier.name.value, "device": str(self.devices)},
        )

    def stages(self) -> Iterator[Stage]:
        execution, evaluation = self.task.execution, self.task.evaluation
        run = self.program(execution.run_command, "training", self.job_view(writable=(self.output,)))
        yield Stage("training", run, execution.budget.limit, "budget_overrun")
        for index, check in enumerate(self.task.checks):
            name = f"check-{index}"
            yield Stage(name, self.program(check.command, name, self.job_view()), check.timeout)
        if evaluation:
            companion = None
            if evaluation.model_command:
                companion = self.program(evaluation.model_command, "model", self.job_view(writable=self.exchange))
            # It sees nothing edited but what training left in its output folder.
            view = self.view(self.request.pristine, (*(p.real for p in self.private), self.output), self.exchange)
            program, seconds = self.program(evaluation.command, "evaluation", view), {TRAIN_SECONDS: "training"}
            yield Stage(
                "evaluation", program, evaluation.timeout, companion=companion, reads=self.output, seconds=seconds
            )

    def program(self, command: str, name: str, view: View) -> Program:
        """A command of task.yaml, which is the user's own and may use the shell's syntax, to be run with a view."""
        scratch = self.scratch
        if not self.tier.scratch:  # of its own: what training leaves there must not meet the evaluation
            scratch = self.scratch / name
            scratch.mkdir(mode=0o700, exist_ok=True)
        if self.tier.confines:
            view = replace(view, writable=(*view.writable, scratch))
            # Its home is the scratch folder: what task.yaml names below the user's is to be below that as well.
            place_links(scratch, at_home((*self.data, *(self.private if name == "evaluation" else ()))))
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
            env["AUTORESEARCHD_EXCHANGE_DIR"] = str(self.exchange[0])
        argv = self.tier.command(view, ("/bin/sh", "-c", command))
        cwd = Path("/") if self.tier.isolates else view.cwd
        return Program(argv, cwd, env, self.request.run_dir / f"{name}.log")

    def job_view(self, writable: tuple[Path, ...] = ()) -> View:
        """What edited code sees: the worktree and the data; never what only the evaluation may read."""
        workspace = self.request.workspace
        committed = (workspace / path for path in self.committed)
        hidden = (
            *hidden_places(self.task, self.python),
            *(p.real for p in self.private),
            *(place for place in committed if place.exists()),
        )
        return self.view(workspace, () if self.output in writable else (self.output,), writable, hidden)

    def view(
        self, cwd: Path, readable: tuple[Path, ...], writable: tuple[Path, ...], hidden: tuple[Path, ...] = ()
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


def _exchange(parent: Path) -> Path:
    """A fresh folder in shared memory; in ``parent`` where that is small or missing."""
    if os.access(_SHARED_MEMORY, os.W_OK):
        space = os.statvfs(_SHARED_MEMORY)
        if space.f_bavail * space.f_frsize >= _SHARED_MEMORY_NEEDED:
            parent = _SHARED_MEMORY
    return Path(tempfile.mkdtemp(prefix="autoresearchd-", dir=parent))


class LocalExecutor:
    """Runs jobs on this machine.

    slots: how many runs may be under way at once; None: one for each GPU, else one. Where there is no GPU each has
    cores of its own; MissingCapability where there are fewer than slots. tier: the isolation, or its name,
    which is probed at the first use.
    """

    def __init__(
        self, *, slots: int | None = None, tier: Tier | str = AUTO, devices: Devices | None = None,
        limits: RunLimits | None = None,
    ) -> None:  # fmt: skip
        self._tier = check_name(tier) if isinstance(tier, str) else tier
        self._limits = limits or RunLimits()
        self._devices = devices if devices is not None else find_devices()
        self.slots = slots if slots is not None else max(1, len(self._devices.ids))
        self._cores = () if self._devices.ids else share_cores(self.slots)
        self._interpreters: dict[Path, Interpreter] = {}
        self.shared = False
        """Whether what computes on a GPU may be the policy's, whose processes come and go."""
        self._supervisors = Supervisors()
        self._started: dict[str, list[int]] = {}
        """By GPU, the supervisors of runs there."""

    @cached_property
    def _others_before(self) -> Mapping[int, str]:
        """Who computed on the GPUs already: the baseline is measured beside them."""
        return users(self._devices.ids)

    def _others(self, slot: int) -> str:
        """Who has begun to compute on the GPU of a slot, in words; empty: nobody."""
        gpu, known = self._devices.visible(slot), self._others_before
        if gpu is None or self.shared:
            return ""
        found = {pid: command for pid, command in users([gpu]).items() if pid not in known}
        ours = {child for pid in self._own(gpu) for child in descendants(pid)} if found else ()
        return ", ".join(f"{command} (process {pid})" for pid, command in found.items() if pid not in ours)

    def _own(self, gpu: str) -> list[int]:
        """Supervisors of runs under way on a GPU."""
        return [pid for pid in self._started.get(gpu, ()) if Path(f"/proc/{pid}").exists()]

    @property
    def tier(self) -> Tier:
        """The isolation that runs get; probed once. Raises MissingCapability where it does not work."""
        if isinstance(self._tier, str):
            self._tier = choose(self._tier, gpu=bool(self._devices.ids))
        return self._tier

    def warnings(self, task: Task | None = None) -> list[str]:
        """What a user should know before runs start here; with a task, also what that task cannot have."""
        found = self.tier.warnings()
        if self._devices.ids and (limit := _ON_GPUS.get(self.tier.name)):
            found.append(limit)
        if len(self._devices.ids) > 1:
            reach = f"a job can use all {len(self._devices.ids)} GPUs"
            found.append(f"{reach}: only CUDA_VISIBLE_DEVICES keeps it to its own, and an edit can set that")
        if self._devices.ids and self.slots > len(self._devices.ids):
            found.append(f"{self.slots} slots share {counted(len(self._devices.ids), 'GPU')}, its time and its memory")
        evaluation = task.evaluation if task else None
        if evaluation and not self.tier.isolates and (evaluation.private or evaluation.hide):
            found.append("evaluation.private and evaluation.hide cannot be kept from edited code without isolation")
        if self._others_before:
            named = ", ".join(f"{command} (process {pid})" for pid, command in self._others_before.items())
            found.append(f"GPUs are in use, and runs share them: {named}")
        return found

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        run_setup(task, pristine, setup, log, cancel, os.environ)

    def ready(self, slot: int) -> bool:
        return not self._others(slot)

    def require(self, slot: int) -> None:
        if others := self._others(slot):
            what = f"somebody else has begun to use GPU {self._devices.visible(slot)}: {others}"
            hint = "it is waited for; CUDA_VISIBLE_DEVICES at `start` or `resume` says which GPUs are used"
            raise PlaceTaken(what, hint=hint)

    def start(self, request: RunRequest) -> Supervised:
        gpu = self._devices.visible(request.slot)
        self.require(request.slot)
        python = self._interpreter(resolve_python(request.task, request.setup))
        planner = _Planner(request, self.tier, python, self._devices)
        cores = self._cores[request.slot] if self._cores else ()
        run = self._supervisors.launch(replace(planner.plan(self._limits), cores=cores))
        if gpu is not None:
            self._started[gpu] = [*self._own(gpu), run.pid]
        return run

    def recover(self, run_dir: Path) -> RunResult | None:
        reap([run_dir])
        result = read_result(run_dir, whole=True)
        return None if result is None or result.stages[-1].outcome in ("killed", "lost") else result

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        python = Path(sys.executable)
        if task is not None and setup is not None:
            with contextlib.suppress(MissingCapability):  # one that set-up has yet to make
                python = resolve_python(task, setup)
        return {
            "tier": self.tier.name.value,
            "device": str(self._devices),
            "host": platform.node(),
            "cpu": processor(),
            "python": self._interpreter(python).version,
            **({"slots": str(self.slots)} if self.slots > 1 else {}),
        }

    def _interpreter(self, executable: Path) -> Interpreter:
        if executable not in self._interpreters:
            self._interpreters[executable] = inspect(executable)
        return self._interpreters[executable]
