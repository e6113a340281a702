"""Starting a supervised run and waiting for it: the daemon's side of `autoresearchd.sandbox.supervise`."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import StageResult
from autoresearchd.sandbox.leftovers import BOOT, new_token, owner, remove, sweep

LOG_LIMIT = 8 << 20
EXIT_DISK_FULL = 28
_LEAST_WRITTEN, _MOST_WRITTEN = 1 << 30, 64 << 30
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start: argv[0] is an absolute path, env its whole environment."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    log: Path


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a run.

    timeout: seconds; late: the outcome after it; companion: runs beside it and ends with it; reads: a folder that
    edited code has written, which is looked through before the stage starts (`autoresearchd.sandbox.outputs`);
    seconds: environment variables of its program that hold how long the stage named took, by the supervisor's clock.
    """

    name: str
    program: Program
    timeout: float | None = None
    late: str = "timeout"
    companion: Program | None = None
    append: bool = False
    banner: str = ""
    reads: Path | None = None
    seconds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may use beside memory and time, so that it cannot bring its machine down.

    size: bytes of any one file, and of all in each folder that it may write; None: half of what was free when the run
    began, from 1 to 64 GiB (below that the disk is full, which is no fault of the run). files: how many in its output
    folder, which others read and copy; scratch_files: how many in each other folder.
    """

    processes: int = 1024
    threads: int = 8192
    size: int | None = None
    files: int = 10_000
    scratch_files: int = 100_000

    def bytes_in(self, folder: Path) -> int:
        """``size``, or what stands for it in a folder."""
        if self.size is not None:
            return self.size
        return max(_LEAST_WRITTEN, min(_MOST_WRITTEN, shutil.disk_usage(folder).free // 2))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a supervisor is told.

    plain: the programs are the job itself, not a sandbox around it; remove: folders to remove when the run is over;
    output: the folder whose file system is looked at when a stage fails; facts: kept with the result; limits: None for
    the user's own commands; written: folders that the run may write to, beside ``output``.
    """

    run_dir: Path
    stages: tuple[Stage, ...]
    plain: bool
    output: Path
    wall: float | None = None
    memory_mb: int | None = None
    remove: tuple[Path, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    limits: RunLimits | None = None
    written: tuple[Path, ...] = ()
    term_grace: float = 1.0
    log_limit: int = LOG_LIMIT
    token: str = field(default_factory=new_token)


@dataclass(frozen=True, slots=True)
class Report:
    """What a supervisor reported of a run; facts: those of its plan; logs: bytes that each log had at the end."""

    stages: tuple[StageResult, ...]
    duration_s: float
    facts: Mapping[str, str]
    logs: Mapping[str, int] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the logs are there as they were written: a power cut may take them and leave the report."""
        try:
            return all(Path(path).stat().st_size >= size for path, size in self.logs.items())
        except OSError:
            return False


def read_report(run_dir: Path) -> Report | None:
    """The report that a supervisor left in a run's folder, None when there is none."""
    try:
        raw = json.loads((run_dir / "result.json").read_bytes())
        stages = tuple(StageResult(**stage) for stage in raw["stages"])
        facts = {str(k): str(v) for k, v in raw["facts"].items()}
        logs = {str(path): int(size) for path, size in raw.get("logs", {}).items()}
        return Report(stages, float(raw["duration_s"]), facts, logs) if stages else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


class Supervised:
    """A run under supervision; it ends when this object goes, for the supervisor then sees its standard input close."""

    def __init__(self, plan: Plan, pid: int, control: int) -> None:
        self.pid = pid
        self._plan, self._control = plan, control
        self._pidfd = os.pidfd_open(pid)
        self._started = time.monotonic()
        # The supervisor keeps the deadlines; should something stop it, the daemon ends the run a little later.
        self._last_resort = None if plan.wall is None else self._started + plan.wall + plan.term_grace + _PATIENCE
        self._kill_asked = False
        self._result: tuple[tuple[StageResult, ...], float] | None = None

    def wait(self, timeout: float | None = None) -> tuple[tuple[StageResult, ...], float] | None:
        """Stages and duration when the run has ended within ``timeout`` seconds, else None."""
        if self._result is None:
            end = None if timeout is None else time.monotonic() + timeout
            while not self._ended(end):
                if self._last_resort is not None and time.monotonic() >= self._last_resort:
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                    self._last_resort = None
                elif end is not None and time.monotonic() >= end:
                    return None
            self._result = self._collect()
        return self._result

    def kill(self) -> None:
        """End the whole tree now; returns at once."""
        if self._result is None and not self._kill_asked:
            self._kill_asked = True
            self._last_resort = time.monotonic() + _PATIENCE
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def _ended(self, end: float | None) -> bool:
        limits = [t for t in (end, self._last_resort) if t is not None]
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, min(limits) - time.monotonic()) * 1000 if limits else None))

    def _collect(self) -> tuple[tuple[StageResult, ...], float]:
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # somebody else reaped it
            status = 0
        self._close()
        report = read_report(self._plan.run_dir)
        stages = report.stages if report else (self._unreported(status),)
        duration = report.duration_s if report else time.monotonic() - self._started
        self._result = stages, duration  # known from here on, whatever comes of the cleaning
        if status != 0 or stages[-1].outcome == "killed":
            sweep({self._plan.token})
            remove(self._plan.remove)
        else:
            (self._plan.run_dir / "supervisor.log").unlink(missing_ok=True)
        return stages, duration

    def _unreported(self, status: int) -> StageResult:
        """What is known of a run whose supervisor left no result."""
        folder = self._plan.run_dir
        begun = [s for s in self._plan.stages if s.program.log.exists()] or list(self._plan.stages[:1])
        if self._kill_asked:
            outcome, detail = "killed", "stopped on request"
        elif status == EXIT_DISK_FULL:
            outcome, detail = "disk_full", f"no space left in {folder}"
        else:
            outcome, detail = "lost", f"the supervisor ended with {status} and left no result"
            with contextlib.suppress(OSError):
                last = (folder / "supervisor.log").read_text("utf-8", "replace").strip().splitlines()[-1:]
                detail = ": ".join([detail, *last])
        log = str(begun[-1].program.log)
        return StageResult(begun[-1].name, outcome, None, time.monotonic() - self._started, log, detail=detail)

    def _close(self) -> None:
        for fd in (self._control, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._control = self._pidfd = -1

    def __del__(self) -> None:
        if getattr(self, "_pidfd", -1) >= 0:
            self._close()


class Supervisors:
    """Starts runs, with one supervisor ready beforehand: a Python that starts while a job runs costs nobody time.

    The one in waiting ends by itself when this object goes, or the daemon dies: its standard input closes.
    """

    def __init__(self) -> None:
        self._spare: tuple[int, int] | None = None

    def launch(self, plan: Plan) -> Supervised:
        """Start a run. Raises EnvironmentFailure when its supervisor cannot be started."""
        spare, self._spare = self._spare, None
        supervised = launch(plan, spare)
        with contextlib.suppress(OSError):
            self._spare = _spawn()
        return supervised

    def __del__(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            _dismiss(*spare)


def launch(plan: Plan, spare: tuple[int, int] | None = None) -> Supervised:
    """Start a run under a new supervisor, or the ``spare`` one (its pid and the pipe to it).

    Raises EnvironmentFailure when it cannot be started.
    """
    programs = [p for s in plan.stages if not s.append for p in (s.program, s.companion) if p]
    path = plan.run_dir / "plan"
    try:
        for stale in (plan.run_dir / "result.json", plan.run_dir / "supervisor.json", *(p.log for p in programs)):
            stale.unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(marshal.dumps(_as_data(plan)))
        message = os.fsencode(path) + b"\0"
        if spare is not None:
            try:
                os.write(spare[1], message)
                return Supervised(plan, *spare)
            except BrokenPipeError:  # somebody ended it while it waited
                _dismiss(*spare)
        pid, control = _spawn()
        os.write(control, message)
        return Supervised(plan, pid, control)
    except OSError as error:
        remove(plan.remove)
        raise EnvironmentFailure(
            f"cannot start a run in {plan.run_dir}: {error}",
            hint="free disk space or raise the limits on processes and open files",
        ) from error


def _spawn() -> tuple[int, int]:
    """A supervisor that waits for the path of a plan: its pid, and the pipe that is its standard input."""
    read_end, write_end = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", BOOT, str(Path(__file__).parents[2]), owner()],
            {"PATH": os.defpath, "LANG": "C.UTF-8"},
            file_actions=[(os.POSIX_SPAWN_DUP2, read_end, 0)],
            setsid=True,  # Ctrl-C in a terminal is for the daemon
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP),
        )
    except OSError:
        os.close(write_end)
        raise
    finally:
        os.close(read_end)
    return pid, write_end


def _dismiss(pid: int, control: int) -> None:
    """Let a supervisor go that was given no plan."""
    os.close(control)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _as_data(value: Any) -> Any:
    """A plan as `marshal` takes it."""
    if isinstance(value, Plan):
        return {field.name: _as_data(getattr(value, field.name)) for field in fields(value)} | {
            "limits": _limits(value)
        }
    if is_dataclass(value):
        return {field.name: _as_data(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: _as_data(inner) for key, inner in value.items()}
    if isinstance(value, tuple):
        return [_as_data(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


def _limits(plan: Plan) -> dict[str, Any] | None:
    limits = plan.limits
    if limits is None:
        return None
    return {
        "processes": limits.processes,
        "threads": limits.threads,
        "bytes": limits.bytes_in(plan.output),
        "folders": {str(folder): limits.scratch_files for folder in plan.written} | {str(plan.output): limits.files},
    }
