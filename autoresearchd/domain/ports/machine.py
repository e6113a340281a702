"""The ports to the machine: time, cancelling, events, version control and running jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from autoresearchd.domain.events import Event
from autoresearchd.domain.experiment import (
    RunResult,
)
from autoresearchd.domain.task import Task


class Clock(Protocol):
    """Time. ``now`` is UTC and goes to the store; ``monotonic`` is in seconds and measures durations."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Cancel(Protocol):
    """Tells a blocking call that somebody wants it to end; ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until set or until the time-out; True when set."""
        ...


class EventSink(Protocol):
    """Takes events. Must not raise and must not block for long; may be called from several threads."""

    def emit(self, event: Event) -> None: ...


class Workspace(Protocol):
    """Files under version control. Commits are 40 hex digits. The user's own checkout is never written to.

    All methods raise RepositoryError for what the user must fix and EnvironmentFailure for what may pass (lock, disk).
    """

    def read(self, commit: str, path: str) -> str:
        """Text of a file of the task at a commit (UTF-8, line ends as stored)."""
        ...

    def commit(self, *, number: int, parent: str, files: Mapping[str, str], message: str, when: datetime) -> str:
        """Commit ``files`` (path in the task's folder → text) on ``parent``; refs/autoresearch/<tag>/<number> names it.

        Deterministic and idempotent: the same arguments give the same commit, however often. The branch does not move.
        Paths are checked again here: inside the task's folder, existing regular files, no symbolic link.
        """
        ...

    def checkout(self, slot: int, commit: str) -> Path:
        """Make the slot's worktree hold exactly ``commit``; gives the task's folder in it.

        It is made anew when it is missing or damaged.
        """
        ...

    def tip(self) -> str:
        """Commit that the session branch points at."""
        ...

    def parent(self, commit: str) -> str:
        """First parent of a commit."""
        ...

    def advance(self, old: str, new: str) -> None:
        """Move the session branch from ``old`` to ``new`` by compare-and-swap; nothing when it is at ``new`` already.

        Raises RepositoryError when it is at neither: somebody moved it.
        """
        ...

    def damaged(self, commits: Mapping[int, str]) -> Sequence[int]:
        """Of experiments and their commits, those whose ref is not there or whose commit cannot be read.

        A power cut may take both; ``commit`` with the same arguments brings them back.
        """
        ...

    def restore_branch(self, commit: str) -> None:
        """Point the session branch at ``commit`` where a power cut has emptied it; else it is left as it is."""
        ...

    def record_discard(
        self, *, number: int, commit: str, incumbent: str, when: datetime, back_to: str | None = None
    ) -> str:
        """``history: revert`` only: write a discard and its revert on the branch.

        Gives the new tip, whose tree is the incumbent's; that of ``back_to`` where the incumbent lost its place.
        """
        ...

    def diff(self, old: str, new: str) -> str:
        """Unified diff between two commits, the task's folder only."""
        ...

    def pack(self) -> None:
        """Pack loose objects and refs (slow; called when idle, from the housekeeping thread)."""
        ...


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run to execute.

    workspace: the task's folder at the commit, in the slot's worktree; pristine: the same with the protected files and
    nothing edited; setup: where setup commands left their data; run_dir: where logs and the result go; evaluate:
    whether to evaluate after training.
    """

    key: str
    task: Task
    commit: str
    seed: int
    workspace: Path
    pristine: Path
    setup: Path
    run_dir: Path
    source: Path
    slot: int = 0


class RunHandle(Protocol):
    """A run under way."""

    @property
    def run_dir(self) -> Path:
        """Where ``training.log``, ``evaluation.log`` … grow while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> RunResult | None:
        """Wait until the run has ended, at most ``timeout`` seconds (0: just look); its result, or None while it runs.

        Wakes at once when the run ends, without polling. Never raises for what the job did.
        """
        ...

    def kill(self) -> None:
        """End the whole process tree now; ``wait`` then gives a result whose last stage is ``killed``."""
        ...


class Executor(Protocol):
    """Runs jobs. Where it runs is its own affair."""

    @property
    def slots(self) -> int:
        """How many runs may be under way at once."""
        ...

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        """Run ``setup_commands`` once in ``setup`` (a copy of ``pristine`` is made there); nothing when already done.

        Raises BaselineError with the tail of the log when a command fails.
        """
        ...

    def start(self, request: RunRequest) -> RunHandle:
        """Start a run and return at once."""
        ...

    def recover(self, run_dir: Path) -> RunResult | None:
        """What a daemon that died left of a run.

        The result when it had ended by itself; else None, and nothing of it is alive any more.
        """
        ...

    def warnings(self, task: Task | None = None) -> Sequence[str]:
        """What the user should know about this machine; with a task, also what that task cannot have here.

        For example that jobs are not isolated.
        """
        ...

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        """Facts that make results comparable: ``tier``, ``device``, ``host``, ``cpu``, ``python``.

        With a task and its set-up folder ``python`` is what its jobs run with, as soon as that is there.
        """
        ...
