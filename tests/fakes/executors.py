"""A deterministic executor for tests of the loop: runs nothing, writes the logs it is told and answers at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autoresearchd.domain.experiment import RunResult, StageResult
from autoresearchd.domain.ports import Cancel, Executor, RunHandle, RunRequest
from autoresearchd.domain.task import Task


@dataclass(frozen=True)
class Script:
    """How one run goes: the log of its training, and what `autoresearchd.domain.experiment.StageResult` says of it.

    hang: it never ends by itself, only by ``kill``. pieces: what training prints while somebody waits for it, one piece
    at each ``wait`` with a time-out; it ends after the last. output: files left by the job. passing: called by each
    ``wait``: time that passes.
    """

    log: str = ""
    stage: Mapping[str, Any] = field(default_factory=dict)
    hang: bool = False
    pieces: Sequence[str] = ()
    output: Mapping[str, bytes] = field(default_factory=dict)
    passing: Callable[[], None] = lambda: None


Job = Callable[[RunRequest], Script | str]


def prints(log: str, **stage: Any) -> Script:
    """A run whose training prints ``log``."""
    return Script(log, stage)


class FakeHandle:
    def __init__(self, request: RunRequest, script: Script) -> None:
        self.run_dir, self._script = request.run_dir, script
        self._over = threading.Event()
        self._result: RunResult | None = None
        self._pieces = list(script.pieces)
        if not script.hang and not script.pieces:
            self._finish()

    def wait(self, timeout: float | None = None) -> RunResult | None:
        self._script.passing()
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
        log = str(self.run_dir / "training.log")
        usual = StageResult("training", "ok", 0, 1.0, log, peak_rss_mb=100.0)
        stage = replace(usual, **{**self._script.stage, **last})
        self._result = RunResult((stage,), stage.duration_s, tier="fake", device="cpu")
        self._over.set()


class FakeExecutor:
    """Answers each request by a script; a text stands for a training that prints it and succeeds."""

    def __init__(self, script: Job, *, slots: int = 1) -> None:
        self._script, self.slots = script, slots
        self.requests: list[RunRequest] = []
        self.handles: list[FakeHandle] = []
        self.setups: list[Path] = []

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        setup.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        self.setups.append(setup)

    def ready(self, slot: int) -> bool:
        return True

    def require(self, slot: int) -> None:
        pass

    def start(self, request: RunRequest) -> FakeHandle:
        answer = self._script(request)
        script = prints(answer) if isinstance(answer, str) else answer
        output = request.run_dir / "output"
        output.mkdir(parents=True, exist_ok=True)
        for name, content in script.output.items():
            (output / name).write_bytes(content)
        (request.run_dir / "training.log").write_text(script.log)
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


class TimedExecutor:
    """Runs jobs by another executor, whose clock it replaces. seconds: that each stage of a run took, as is told."""

    def __init__(self, executor: Executor, seconds: Callable[[RunRequest], float]) -> None:
        self._executor, self._seconds = executor, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def start(self, request: RunRequest) -> RunHandle:
        handle, seconds = self._executor.start(request), self._seconds(request)

        def wait(timeout: float | None = None) -> RunResult | None:
            if (found := handle.wait(timeout)) is None:
                return None
            stages = tuple(replace(stage, duration_s=seconds) for stage in found.stages)
            return replace(found, stages=stages, duration_s=seconds * len(stages))

        return SimpleNamespace(run_dir=handle.run_dir, kill=handle.kill, wait=wait)
