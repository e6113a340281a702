"""A deterministic executor for tests of the loop: runs nothing, writes the logs it is told and answers at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autoresearchd.domain.errors import BaselineError
from autoresearchd.domain.experiment import RunResult, StageResult
from autoresearchd.domain.ports import Cancel, Executor, RunHandle, RunRequest
from autoresearchd.domain.task import Task


@dataclass(frozen=True, slots=True)
class ScriptedStage:
    """How one stage goes: its log, and the fields of `autoresearchd.domain.experiment.StageResult`."""

    name: str = "training"
    log: str | bytes = ""
    outcome: str = "ok"
    exit_code: int | None = 0
    duration_s: float = 1.0
    peak_rss_mb: float = 100.0
    detail: str = ""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
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


def prints(log: str, **stage: object) -> Script:
    """A run whose training prints ``log``; further arguments are those of `ScriptedStage`."""
    return Script(stages=(ScriptedStage(log=log, **stage),))  # type: ignore[arg-type]


class FakeHandle:
    """A scripted run."""

    def __init__(self, request: RunRequest, script: Script) -> None:
        self._request, self._script = request, script
        self._over = threading.Event()
        self._result: RunResult | None = None
        self._pieces = list(script.pieces)
        if not script.hang and not script.pieces:
            self._finish(killed=False)

    @property
    def run_dir(self) -> Path:
        return self._request.run_dir

    def wait(self, timeout: float | None = None) -> RunResult | None:
        while self._pieces and self._result is None:
            with (self._request.run_dir / "training.log").open("a") as log:
                log.write(self._pieces.pop(0))
            if not self._pieces and not self._script.hang:
                self._finish(killed=False)
            elif timeout is not None:
                return None
        self._over.wait(timeout)
        return self._result

    def kill(self) -> None:
        if self._result is None:
            self._finish(killed=True)

    def _finish(self, *, killed: bool) -> None:
        stages = [self._stage(stage) for stage in self._script.stages]
        if killed:
            last = stages[-1]
            stages[-1] = StageResult(
                last.name, "killed", -9, last.duration_s, last.log_path, detail="stopped on request"
            )
        duration = sum(stage.duration_s for stage in stages)
        self._result = RunResult(tuple(stages), duration, tier=self._script.tier, device=self._script.device)
        self._over.set()

    def _stage(self, stage: ScriptedStage) -> StageResult:
        return StageResult(
            name=stage.name,
            outcome=stage.outcome,
            exit_code=stage.exit_code,
            duration_s=stage.duration_s,
            log_path=str(self._request.run_dir / f"{stage.name}.log"),
            peak_rss_mb=stage.peak_rss_mb,
            detail=stage.detail,
            cpu_s=stage.cpu_s,
        )


class FakeExecutor:
    """Answers each request by a script.

    Args:
        script: from a request to how its run goes; a text stands for a training that prints it and succeeds.
        slots: how many runs may be under way at once.
        setup_error: message of the BaselineError that ``setup`` raises; empty: it succeeds.
        warnings: what ``warnings`` gives.

    ``recoverable`` holds what ``recover`` gives, by run folder; runs that this executor ended itself are found too.
    """

    def __init__(
        self,
        script: Callable[[RunRequest], Script | str],
        *,
        slots: int = 1,
        setup_error: str = "",
        warnings: Sequence[str] = (),
    ) -> None:
        self._script, self._slots, self._setup_error, self._warnings = script, slots, setup_error, list(warnings)
        self.requests: list[RunRequest] = []
        self.handles: list[FakeHandle] = []
        self.setups: list[Path] = []
        self.recoverable: dict[Path, RunResult] = {}

    @property
    def slots(self) -> int:
        return self._slots

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        if self._setup_error:
            raise BaselineError(self._setup_error)
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
            log = stage.log.encode() if isinstance(stage.log, str) else stage.log
            (request.run_dir / f"{stage.name}.log").write_bytes(log)
        handle = FakeHandle(request, script)
        self.requests.append(request)
        self.handles.append(handle)
        return handle

    def recover(self, run_dir: Path) -> RunResult | None:
        ended = {h.run_dir: h.wait(0) for h in self.handles}
        result = self.recoverable.get(run_dir) or ended.get(run_dir)
        return None if result is None or result.stages[-1].outcome in ("killed", "lost") else result

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        return {"tier": "fake", "device": "cpu", "host": "fake", "cpu": "fake", "python": "3.11.0"}

    def warnings(self, task: Task | None = None) -> list[str]:
        """As `autoresearchd.executor.local.LocalExecutor.warnings`."""
        return list(self._warnings)


class TimedHandle:
    """A run of another executor that is told to have taken a given time."""

    def __init__(self, handle: RunHandle, seconds: float) -> None:
        self._handle, self._seconds = handle, seconds

    @property
    def run_dir(self) -> Path:
        return self._handle.run_dir

    def wait(self, timeout: float | None = None) -> RunResult | None:
        found = self._handle.wait(timeout)
        if found is None:
            return None
        stages = tuple(replace(stage, duration_s=self._seconds) for stage in found.stages)
        return replace(found, stages=stages, duration_s=self._seconds * len(stages))

    def kill(self) -> None:
        self._handle.kill()


class TimedExecutor:
    """Runs jobs by another executor, whose clock it replaces: what they computed stays what was measured.

    Args:
        executor: runs them.
        seconds: that each stage of a run took, as is told.
    """

    def __init__(self, executor: Executor, seconds: Callable[[RunRequest], float]) -> None:
        self._executor, self._seconds = executor, seconds

    @property
    def slots(self) -> int:
        return self._executor.slots

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        self._executor.setup(task, pristine, setup, log, cancel)

    def start(self, request: RunRequest) -> TimedHandle:
        return TimedHandle(self._executor.start(request), self._seconds(request))

    def recover(self, run_dir: Path) -> RunResult | None:
        return self._executor.recover(run_dir)

    def warnings(self, task: Task | None = None) -> Sequence[str]:
        return self._executor.warnings(task)

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        return self._executor.describe(task, setup)


def wait_until(condition: Callable[[], bool], timeout: float = 10.0) -> bool:
    """Wait for something in another process that cannot be waited for otherwise; whether it came true in time."""
    end = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        pause.wait(0.005)
    return True
