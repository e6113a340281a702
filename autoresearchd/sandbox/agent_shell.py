"""The shell of the policy ``agent``: each command a sandboxed process of its own, over a private copy of the workspace.

A command sees what a job would (system, interpreter, data) and may write the copy only. It has no network, no GPU, an
environment that is made from nothing, and limits on time, memory, processes, files and output. A supervisor ends its
whole tree at its end, at its deadline, and when the daemon dies; a copy that a dead daemon left is removed by the next.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted, MissingCapability
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.sandbox.job_files import remove_tree
from autoresearchd.sandbox.launch import Plan, Program, RunLimits, Stage, launch
from autoresearchd.sandbox.tiers import PLAIN, Tier
from autoresearchd.sandbox.view import View, base_environment, is_inside, search_path, way_to

KEPT_BYTES = 64 * 1024  # of the beginning and of the end of a command's output
MOST_OUTPUT = 32 << 20  # a command that prints more is ended
_PREFIX = "autoresearchd-agent-"
_LOOK_S = 0.05
_SCRATCH_BYTES = 256 << 20
_MEMORY_MB = 4096
_LIMITS = RunLimits(processes=256, threads=1024, size=512 << 20, files=50_000)
_STOPPED = "the agent was stopped on request"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended, or why it was (``ended``); head, tail: what it printed, ``omitted`` bytes between them."""

    exit_code: int | None
    ended: str
    head: str
    tail: str
    omitted: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What commands see beside the copy: readable, but for what is hidden in it; programs: folders that lead PATH.

    withheld: what is taken out of the copy should the commit hold it, relative to it.
    """

    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()
    withheld: tuple[Path, ...] = ()


def require_sandbox(tier: Tier) -> None:
    """Raise MissingCapability where nothing isolates here, and nobody asked to do without."""
    if not tier.isolates and tier != PLAIN:
        raise MissingCapability(
            f"--policy agent runs commands that a model wrote, and no sandbox works on this machine: {tier.reason}",
            hint="apt install bubblewrap and allow user namespaces; or, to run them with all that you may do "
            "yourself, --sandbox none",
        )


@contextlib.contextmanager
def open_shell(
    state: ResearchState,
    tier: Tier,
    materialise: Callable[[ResearchState, Path], None],
    surroundings: Callable[[Path], Surroundings],
    *,
    scratch: Path | None = None,
    limits: RunLimits = _LIMITS,
) -> Iterator[SandboxedShell]:
    """A shell over a fresh copy; the copy is gone at the end, whatever is in it.

    materialise: fills an empty folder with the workspace at a state's parent, links to data included. surroundings:
    asked for with a folder for links to programs, which need not be there yet. scratch: where the copies are made, the
    system's place for temporary files by default.
    """
    scratch = scratch or Path(tempfile.gettempdir())
    _remove_stale(scratch)
    with contextlib.ExitStack() as own:
        with _disk_trouble(scratch):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=scratch)).resolve()
            # A lock ends with this process, so that a dead daemon's folder can be told from a living one's.
            own.enter_context(hold(folder / "lock.new"))
            (folder / "lock.new").rename(folder / "lock")  # it is never there without being held
        try:
            with _disk_trouble(folder):
                around = surroundings(folder / "tools")
                shell = SandboxedShell(folder, state.task, tier, around, limits)
                materialise(state, shell.folder)
                for path in around.withheld:
                    # What a link leads to elsewhere is not in the copy; the view hides it where it is.
                    if is_inside(real := way_to(shell.folder / path).real, [shell.folder]):
                        remove_tree(str(real))
            yield shell
        finally:
            remove_tree(str(folder))


class SandboxedShell:
    """Runs commands in the sandbox, in the copy ``folder``."""

    def __init__(self, top: Path, task: Task, tier: Tier, surroundings: Surroundings, limits: RunLimits) -> None:
        self._tier, self._surroundings, self._limits = tier, surroundings, limits
        self._memory_mb = min(task.execution.memory_mb or _MEMORY_MB, _MEMORY_MB)
        self.folder, self._script, self._scratch = top / "workspace", top / "command", top / "scratch"
        self._run_dir, self._log = top / "run", top / "run" / "output.log"
        self._bash = next((p for p in (Path("/bin/bash"), Path("/usr/bin/bash")) if p.exists()), Path("/bin/sh"))
        for made in (self.folder, self._run_dir):
            made.mkdir(mode=0o700)

    def run(self, command: str, *, timeout: float, cancel: Cancel) -> CommandResult:
        """Run a script in the copy, at most ``timeout`` seconds; see the port."""
        if cancel.is_set():
            raise Interrupted(_STOPPED)
        made = () if self._tier.scratch else (self._scratch,)  # else each command has a private one
        with _disk_trouble(self.folder.parent):
            self._script.write_bytes(command.encode("utf-8", "replace") + b"\n")
            for folder in made:
                folder.mkdir(mode=0o700, exist_ok=True)
        plan = Plan(
            run_dir=self._run_dir,
            stages=(Stage("command", self._program(made), timeout),),
            plain=not self._tier.isolates,
            output=self.folder,
            memory_mb=self._memory_mb,
            limits=self._limits,
            written=made,
            log_limit=MOST_OUTPUT,
        )
        supervised = launch(plan)
        flooded = False
        try:
            while (result := supervised.wait(_LOOK_S)) is None:
                if cancel.is_set():
                    supervised.kill()
                    supervised.wait()
                    raise Interrupted(_STOPPED)
                if not flooded and self._log.with_name(self._log.name + ".1").exists():
                    flooded = True
                    supervised.kill()
        finally:
            for folder in made:
                remove_tree(str(folder))
        stage = result.stages[-1]
        if stage.outcome in ("disk_full", "lost"):
            raise EnvironmentFailure(
                f"a command of the agent could not be run: {stage.detail or stage.outcome}",
                hint="free disk space, and see whether somebody ends the daemon's processes",
            )
        ended = stage.detail if stage.outcome == "oom" or stage.beyond else ""
        if flooded:
            ended = f"it printed more than {MOST_OUTPUT >> 20} MiB"
        elif stage.outcome == "timeout":
            ended = f"it took longer than {timeout:.0f} s"
        with _disk_trouble(self._run_dir):
            head, tail, omitted = _kept(self._log)
        return CommandResult(None if ended else stage.exit_code, ended, head, tail, omitted, result.duration_s)

    def _program(self, made: tuple[Path, ...]) -> Program:
        around = self._surroundings
        home = made[0] if made else Path.home()
        view = View(
            cwd=self.folder,
            home=home,
            readable=(self._script, *around.readable),
            writable=(self.folder, *made),
            hidden=around.hidden,
            scratch_bytes=_SCRATCH_BYTES,
        )
        # The script is a file that is read, so that nothing of it is ever part of a command line.
        argv = self._tier.command(view, (str(self._bash), str(self._script)))
        env = {
            **base_environment(search_path(*around.programs), home, self._tier.scratch or made[0]),
            "TERM": "dumb",
            "PAGER": "cat",
        }
        return Program(argv, Path("/") if self._tier.isolates else self.folder, env, self._log)


def _kept(log: Path) -> tuple[str, str, int]:
    """Beginning and end of a log that may lie in two files, and how many bytes between them were left out."""
    data = b"".join(p.read_bytes() for p in (log.with_name(log.name + ".1"), log) if p.exists())
    omitted = max(0, len(data) - 2 * KEPT_BYTES)
    head, tail = (data[:KEPT_BYTES], data[-KEPT_BYTES:]) if omitted else (data, b"")
    return head.decode("utf-8", "replace"), tail.decode("utf-8", "replace"), omitted


def _remove_stale(scratch: Path) -> None:
    """Remove the copies that dead daemons of this user left behind."""
    with contextlib.suppress(OSError):
        for lock in scratch.glob(f"{_PREFIX}*/lock"):
            folder = lock.parent
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
                continue
            with contextlib.suppress(OSError), hold(lock):  # raises where its daemon lives
                remove_tree(str(folder))


@contextlib.contextmanager
def _disk_trouble(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFailure(
            f"the agent's copy of the workspace in {where} could not be made or read: {error}", hint="see to the disk"
        ) from error
