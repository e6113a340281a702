"""Starting a supervised run, waiting for it, ending what a dead daemon left: the daemon's side of `supervise`."""

from __future__ import annotations

import json
import marshal
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import RunResult, StageResult
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.process_tree import TOKEN_VARIABLE, read, send, start_time

LOG_LIMIT = 8 << 20
EXIT_DISK_FULL = 28
_BOOT = """
import os, sys
sys.path.append(sys.argv[1])
from autoresearchd.sandbox.supervise import serve
os._exit(serve())
"""
"""The program that a supervisor runs: its command line tells it from a stranger with the same pid."""
PROBE_PREFIX = "autoresearchd-probe-"
"""Of the folders in the system's place for temporary files that probes are made in; a token follows."""
_LEAST_WRITTEN, _MOST_WRITTEN = 1 << 30, 64 << 30
_PATIENCE = 11.0


def owner() -> str:
    """A name for this process that no other process of this machine has, or will have until it starts anew."""
    return f"{_pid_namespace()}.{os.getpid()}.{start_time(os.getpid()) or 0}"


def _pid_namespace() -> int:
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def new_token() -> str:
    """A token for one run: whoever finds it later can tell whether the process that made it still lives."""
    return f"{owner()}.{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to start: argv[0] is an absolute path, env its whole environment."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    log: Path


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a run, of at most ``timeout`` seconds.

    late: the outcome after it; companion: runs beside it and ends with it; reads: a folder that edited code has
    written, which is looked through before it starts (`job_files.sift`); seconds: environment variables of its program
    that hold how long the stage named took, by the supervisor's clock.
    """

    name: str
    program: Program
    timeout: float | None = None
    late: str = "timeout"
    companion: Program | None = None
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What a supervisor is told.

    plain: the programs are the job itself, not a sandbox around it; remove: folders to remove when the run is over;
    output: the folder whose file system is looked at when a stage fails; deliver: where in the same file system it is
    moved to at the end; facts: kept with the result; limits: None for the user's own commands; written: folders that
    the run may write to, beside ``output``; cores: of the processor that it is held to, none: all.
    """

    run_dir: Path
    stages: tuple[Stage, ...]
    plain: bool
    output: Path
    deliver: Path | None = None
    wall: float | None = None
    memory_mb: int | None = None
    remove: tuple[Path, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    limits: RunLimits | None = None
    written: tuple[Path, ...] = ()
    cores: tuple[int, ...] = ()
    log_limit: int = LOG_LIMIT
    token: str = field(default_factory=new_token)


def read_result(run_dir: Path, *, whole: bool = False) -> RunResult | None:
    """The result in a run's folder, or None; whole: also None where a power cut has taken of its logs."""
    try:
        raw = json.loads((run_dir / "result.json").read_bytes())
        if whole and any(Path(path).stat().st_size < size for path, size in raw.get("logs", {}).items()):
            return None
        return _result(tuple(StageResult(**stage) for stage in raw["stages"]), float(raw["duration_s"]), raw["facts"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _result(stages: tuple[StageResult, ...], duration_s: float, facts: Mapping[str, str]) -> RunResult:
    if not stages:
        raise ValueError("a run without a stage")
    host, device = facts.get("host", "local"), facts.get("device", "cpu")
    return RunResult(stages, duration_s, facts.get("tier", ""), host, device)


class Supervised:
    """A run under supervision, a ``ports.RunHandle``. It ends when this object goes: the supervisor's input closes."""

    def __init__(self, plan: Plan, pid: int, control: int) -> None:
        self.pid, self.run_dir, self._plan, self._control = pid, plan.run_dir, plan, control
        self._pidfd = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._pidfd, select.POLLIN)
        self._started = time.monotonic()
        # The supervisor keeps the deadlines; should something stop it, the daemon ends the run a little later.
        self._last_resort = None if plan.wall is None else self._started + plan.wall + _PATIENCE
        self._kill_asked = False
        self._result: RunResult | None = None

    def wait(self, timeout: float | None = None) -> RunResult | None:
        end = None if timeout is None else time.monotonic() + timeout
        while self._result is None:
            times = [t for t in (end, self._last_resort) if t is not None]
            if self._poll.poll(max(0.0, min(times) - time.monotonic()) * 1000 if times else None):
                self._collect()
            elif self._last_resort is not None and time.monotonic() >= self._last_resort:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                self._last_resort = None
            elif end is not None and time.monotonic() >= end:
                return None
        return self._result

    def kill(self) -> None:
        """End the whole tree now; returns at once."""
        if self._result is None and not self._kill_asked:
            self._kill_asked = True
            self._last_resort = time.monotonic() + _PATIENCE
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def _collect(self) -> None:
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # somebody else reaped it
            status = 0
        self._close()
        # Known from here on, whatever comes of the cleaning.
        self._result = result = read_result(self.run_dir) or self._unreported(status)
        if status != 0 or result.stages[-1].outcome == "killed":
            sweep({self._plan.token})
            remove(self._plan.remove)
        else:
            (self.run_dir / "supervisor.log").unlink(missing_ok=True)

    def _unreported(self, status: int) -> RunResult:
        """What is known of a run whose supervisor left no result."""
        folder = self.run_dir
        begun = [s for s in self._plan.stages if s.program.log.exists()] or list(self._plan.stages[:1])
        if self._kill_asked:
            outcome, detail = "killed", "stopped on request"
        elif status == EXIT_DISK_FULL:
            outcome, detail = "disk_full", f"no space left in {folder}"
        else:
            outcome, detail = "lost", f"the supervisor ended with {status} and left no result"
            with suppress(OSError):
                last = (folder / "supervisor.log").read_text("utf-8", "replace").strip().splitlines()[-1:]
                detail = ": ".join([detail, *last])
        took = time.monotonic() - self._started
        stage = StageResult(begun[-1].name, outcome, None, took, str(begun[-1].program.log), detail=detail)
        return _result((stage,), took, self._plan.facts)

    def _close(self) -> None:
        for fd in (self._control, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._control = self._pidfd = -1

    def __del__(self) -> None:
        if getattr(self, "_pidfd", -1) >= 0:
            self._close()


class Supervisors:
    """Starts runs, with one supervisor ready beforehand (docs/adr/0008), which ends with this object or the daemon."""

    def __init__(self) -> None:
        self._spare: tuple[int, int] | None = None

    def launch(self, plan: Plan) -> Supervised:
        """Start a run. Raises EnvironmentFailure when its supervisor cannot be started."""
        spare, self._spare = self._spare, None
        supervised = launch(plan, spare)
        with suppress(OSError):
            self._spare = _spawn()
        return supervised

    def __del__(self) -> None:
        if self._spare is not None:
            _dismiss(*self._spare)


def launch(plan: Plan, spare: tuple[int, int] | None = None) -> Supervised:
    """Start a run under the ``spare`` supervisor (its pid and the pipe to it) or a new one. EnvironmentFailure."""
    logs = [p.log for stage in plan.stages for p in (stage.program, stage.companion) if p]
    path = plan.run_dir / "plan"
    try:
        for stale in (path.with_name("result.json"), path.with_name("supervisor.json"), *logs):
            stale.unlink(missing_ok=True)
            stale.with_name(stale.name + ".1").unlink(missing_ok=True)
        path.touch(0o600)
        path.write_bytes(marshal.dumps(_as_data(plan)))
        for supervisor in (spare, None):
            if supervisor is None:
                supervisor = _spawn()
            try:
                os.write(supervisor[1], os.fsencode(path) + b"\0")
                return Supervised(plan, *supervisor)
            except OSError as error:  # somebody ended it while it waited; or no descriptor is left to watch it by
                _dismiss(*supervisor)
                if not isinstance(error, BrokenPipeError):
                    raise
        raise OSError("supervisors end before they begin")
    except OSError as error:
        remove(plan.remove)
        raise EnvironmentFailure(
            f"cannot start a run in {plan.run_dir}: {error}",
            hint="free disk space or raise the limits on processes and open files",
        ) from error


def _as_data(plan: Plan) -> dict[str, Any]:
    """A plan as `marshal` takes it, its limits as the supervisor knows them."""
    data: dict[str, Any] = json.loads(json.dumps(asdict(plan), default=os.fspath))
    if plan.limits is not None:
        room = room_for_a_run(plan.output)
        data["limits"]["bytes"] = plan.limits.size or room
        most = {str(folder): plan.limits.scratch_files for folder in plan.written}
        data["limits"]["folders"] = {**most, str(plan.output): plan.limits.files}
    return data


def room_for_a_run(folder: Path) -> int:
    """Bytes that a run may write there."""
    return max(_LEAST_WRITTEN, min(_MOST_WRITTEN, shutil.disk_usage(folder).free // 2))


def _spawn() -> tuple[int, int]:
    """A supervisor that waits for the path of a plan: its pid, and the pipe that is its standard input."""
    read_end, write_end = os.pipe()
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).parents[2]), owner()],
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
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


# -- what dead daemons and supervisors left behind ---------------------------------------------------------------------
#
# It is found by the token that all processes of a run inherit. A token names the process that made it, and so does the
# command line of a supervisor. What carries the name of a process that is dead is nobody's any more, wherever its files
# are: a probe of the sandbox has none.


def end_abandoned() -> int:
    """End what dead processes of this user had started, also where no file tells of it; how many trees were found."""
    # After the last word of a command line there is a zero, too.
    named = [(pid, words[-2]) for pid, words in _own("cmdline") if _BOOT.encode() in words[:-1]]
    supervisors = [pid for pid, name in named if _is_abandoned(name.decode("utf-8", "replace"))]
    for pid in supervisors:
        _end_process(pid)
    tokens = {token for _, token in _marked() if _is_abandoned(token)}
    sweep(tokens)
    with suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{PROBE_PREFIX}*"):
            if folder.lstat().st_uid == os.geteuid() and _is_abandoned(folder.name.removeprefix(PROBE_PREFIX)):
                remove([folder])
    return max(len(supervisors), len(tokens))


def _is_abandoned(name: str) -> bool:
    """Whether a token or an owner is of a dead process of this process namespace; another container's says nothing."""
    try:
        namespace, pid, start = map(int, name.split(".")[:3])
    except ValueError:
        return False
    return start > 0 and namespace == _pid_namespace() and start_time(pid) != start


def _own(file: str) -> Iterator[tuple[int, list[bytes]]]:
    """All processes of this user, with the words of their file in /proc."""
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # it ended meanwhile
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                yield int(entry.name), _words(entry.name, file)


def _marked() -> Iterator[tuple[int, str]]:
    """All processes of this user that carry a token, with it."""
    mark = f"{TOKEN_VARIABLE}=".encode()
    for pid, variables in _own("environ"):
        for variable in variables:
            if variable.startswith(mark) and start_time(pid) is not None:
                yield pid, variable.removeprefix(mark).decode("utf-8", "replace")


def _words(pid: str, file: str) -> list[bytes]:
    return read(f"/proc/{pid}/{file}").split(b"\0")


def reap(run_dirs: Sequence[Path]) -> int:
    """Kill what dead daemons left of the runs in ``run_dirs``; how many process trees were found alive."""
    records = []
    for run_dir in run_dirs:
        with suppress(OSError, ValueError, TypeError, KeyError):  # there is none, or nobody can read it
            raw = json.loads((run_dir / "supervisor.json").read_bytes())
            records.append((int(raw["pid"]), int(raw["start"]), str(raw["token"]), [Path(p) for p in raw["remove"]]))
    # Pids are used again, start times are not.
    found = {token for pid, start, token, _ in records if _end_process(pid, start)}
    found |= sweep({token for _, _, token, _ in records})
    for *_, folders in records:
        remove(folders)
    return len(found)


def sweep(tokens: set[str]) -> set[str]:
    """Kill every process that carries one of the tokens in its environment; the tokens that were found."""
    found, clear = set[str](), 0
    for _ in range(50 if tokens else 0):
        carriers = [(pid, token) for pid, token in _marked() if token in tokens]
        # Twice: one that is in the middle of exec has no environment for an instant.
        clear = 0 if carriers else clear + 1
        if clear == 2:
            break
        for pid, token in carriers:
            found.add(token)
            send(pid, signal.SIGKILL)
        time.sleep(0.002)
    return found


def _end_process(pid: int, start: int | None = None) -> bool:
    """End a supervisor: asked first, then killed; False where the process is none, or started at another time."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if (start is not None and start_time(pid) != start) or _BOOT.encode() not in _words(str(pid), "cmdline"):
            return False
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        for number, patience in ((signal.SIGTERM, 3000), (signal.SIGKILL, 1000)):
            signal.pidfd_send_signal(pidfd, number)
            if poll.poll(patience):
                return True
    except OSError:
        return False
    finally:
        os.close(pidfd)
    return True


def remove(paths: Iterable[Path]) -> None:
    """Remove folders; one that cannot be removed stays."""
    for path in paths:
        remove_tree(str(path))
