"""A deterministic executor for tests of the loop: runs nothing, writes the logs it is told and answers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from autoresearchd.domain.experiment import RunResult, StageResult
from autoresearchd.domain.ports import Cancel, Executor, RunHandle, RunRequest
from autoresearchd.domain.task import Task


@dataclass(frozen=True)
class ScriptedStage:
    """How one stage goes: its log, and fields of `autoresearchd.domain.experiment.StageResult`."""

    name: str = "training"
    log: str = ""
    outcome: str = "ok"
    exit_code: int | None = 0
    duration_s: float = 1.0
    peak_rss_mb: float = 100.0
    detail: str = ""
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Script:
    """How one run goes.

    hang: the last stage never ends by itself, only by ``kill``. pieces: what training prints while somebody waits for
    it, one piece at each ``wait`` with a time-out; it ends after the last. output: files left by the job.
    """

    stages: tuple[ScriptedStage, ...] = (ScriptedStage(),)
    hang: bool = False
    pieces: Sequence[str] = ()
    output: Mapping[str, bytes] = field(default_factory=dict)
    tier: str = "fake"
    device: str = "cpu"


def prints(log: str, **stage: Any) -> Script:
    """A run whose training prints ``log``; further arguments are those of `ScriptedStage`."""
    return Script(stages=(ScriptedStage(log=log, **stage),))


class FakeHandle:
    def __init__(self, request: RunRequest, script: Script) -> None:
        self.run_dir, self._script = request.run_dir, script
        self._over = threading.Event()
        self._result: RunResult | None = None
        self._pieces = list(script.pieces)
        if not script.hang and not script.pieces:
            self._finish()

    def wait(self, timeout: float | None = None) -> RunResult | None:
        while self._pieces and self._result is None:
            with (self.run_dir / "training.log").open("a") as log:
                log.write(self._pieces.pop(0))
            if not self._pieces and not self._script.hang:
                self._finish()
            elif timeout is not None:
                return None
        self._over.wait(timeout)
        return self._result

    def kill(self) -> None:
        if self._result is None:
            self._finish(outcome="killed", exit_code=-9, detail="stopped on request")

    def _finish(self, **last: Any) -> None:
        stages = []
        for each in self._script.stages:
            facts = asdict(each) | {"log_path": str(self.run_dir / f"{each.name}.log")}
            del facts["log"]
            stages.append(StageResult(**facts))
        stages[-1] = replace(stages[-1], **last)
        duration = sum(stage.duration_s for stage in stages)
        self._result = RunResult(tuple(stages), duration, tier=self._script.tier, device=self._script.device)
        self._over.set()


class FakeExecutor:
    """Answers each request by a script; a text stands for a training that prints it and succeeds."""

    def __init__(self, script: Callable[[RunRequest], Script | str], *, slots: int = 1) -> None:
        self._script, self.slots = script, slots
        self.requests: list[RunRequest] = []
        self.handles: list[FakeHandle] = []
        self.setups: list[Path] = []

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        setup.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        self.setups.append(setup)

    def start(self, request: RunRequest) -> FakeHandle:
        answer = self._script(request)
        script = prints(answer) if isinstance(answer, str) else answer
        output = request.run_dir / "output"
        output.mkdir(parents=True, exist_ok=True)
        for name, content in script.output.items():
            (output / name).write_bytes(content)
        for stage in script.stages:
            (request.run_dir / f"{stage.name}.log").write_text(stage.log)
        handle = FakeHandle(request, script)
        self.requests.append(request)
        self.handles.append(handle)
        return handle

    def recover(self, run_dir: Path) -> RunResult | None:
        """What runs that this executor ended itself came to."""
        result = {handle.run_dir: handle.wait(0) for handle in self.handles}.get(run_dir)
        return None if result is None or result.stages[-1].outcome in ("killed", "lost") else result

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        return {"tier": "fake", "device": "cpu", "host": "fake", "cpu": "fake", "python": "3.11.0"}

    def warnings(self, task: Task | None = None) -> list[str]:
        return []


class TimedHandle:
    """A run of another executor that is told to have taken a given time."""

    def __init__(self, handle: RunHandle, seconds: float) -> None:
        self._handle, self._seconds = handle, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)

    def wait(self, timeout: float | None = None) -> RunResult | None:
        found = self._handle.wait(timeout)
        if found is None:
            return None
        stages = tuple(replace(stage, duration_s=self._seconds) for stage in found.stages)
        return replace(found, stages=stages, duration_s=self._seconds * len(stages))


class TimedExecutor:
    """Runs jobs by another executor, whose clock it replaces. seconds: that each stage of a run took, as is told."""

    def __init__(self, executor: Executor, seconds: Callable[[RunRequest], float]) -> None:
        self._executor, self._seconds = executor, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def start(self, request: RunRequest) -> TimedHandle:
        return TimedHandle(self._executor.start(request), self._seconds(request))
