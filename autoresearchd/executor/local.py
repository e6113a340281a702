"""The executor for this machine: each run in a sandbox, under a supervisor of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.task import Task
from autoresearchd.executor.devices import Devices, find_devices, processor
from autoresearchd.executor.interpreter import Interpreter, inspect, resolve_python
from autoresearchd.executor.run_plan import make_plan
from autoresearchd.executor.setup_commands import run_setup
from autoresearchd.sandbox.launch import RunLimits, Supervised, Supervisors, read_report, reap
from autoresearchd.sandbox.tiers import AUTO, Tier, check_name, choose


class LocalHandle:
    """A run on this machine. When the handle goes, the run ends."""

    def __init__(self, run_dir: Path, supervised: Supervised, tier: str, device: str) -> None:
        self._run_dir, self._supervised, self._tier, self._device = run_dir, supervised, tier, device

    @property
    def run_dir(self) -> Path:
        return self._run_dir

    @property
    def supervisor_pid(self) -> int:
        """Process id of the run's supervisor."""
        return self._supervised.pid

    def wait(self, timeout: float | None = None) -> RunResult | None:
        ended = self._supervised.wait(timeout)
        if ended is None:
            return None
        stages, duration = ended
        return RunResult(stages, duration, tier=self._tier, device=self._device)

    def kill(self) -> None:
        self._supervised.kill()


class LocalExecutor:
    """Runs jobs on this machine.

    Args:
        slots: how many runs may be under way at once; None: one for each GPU, else one.
        tier: the isolation to use, or its name; ``auto``: the best that works here, found at the first use.
        python: the interpreter to describe, where the task names one; None: the daemon's.
        devices: the GPUs; None: those that are found.
        limits: what a run may use beside its memory and its time.
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
        self._slots = slots if slots is not None else max(1, len(self._devices.ids))
        self._python = python or Path(sys.executable)
        self._interpreters: dict[Path, Interpreter] = {}
        self._supervisors = Supervisors()

    @property
    def slots(self) -> int:
        return self._slots

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
        return LocalHandle(request.run_dir, self._supervisors.launch(plan), self.tier.name.value, str(self._devices))

    def recover(self, run_dir: Path) -> RunResult | None:
        reap([run_dir])
        report = read_report(run_dir)
        if report is None or report.stages[-1].outcome in ("killed", "lost") or not report.whole:
            return None
        facts = report.facts
        return RunResult(report.stages, report.duration_s, facts.get("tier", ""), device=facts.get("device", "cpu"))

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
