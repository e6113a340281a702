"""Everything that one experiment calls: adapters, places on disk, the switch, gathered by the composition root."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.domain.ports import (
    Clock,
    Event,
    EventKind,
    EventSink,
    Executor,
    Learning,
    Policy,
    RunRequest,
    Workspace,
)
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.task import Task
from autoresearchd.loop.proposing.session_memo import Memo
from autoresearchd.store.repository import SqlStore

BASELINE_RUNS = 3
"""How often the program as it is runs before anything is tried: σ comes from them."""


class SystemClock:
    """Wall time in UTC, durations from the monotonic clock (it does not jump when the time is set)."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


class StopSwitch:
    """By which signals and commands ask the loop to stop, pause or confirm; it and its ``now`` are Cancels."""

    def __init__(self) -> None:
        self.now, self.paused, self.confirm = threading.Event(), threading.Event(), threading.Event()
        self._soon = threading.Event()
        self.asked = False
        """Whether anybody has asked to stop, so that the next one who does means at once."""
        self.reason = ""
        self.signal: int | None = None
        self._announcing = threading.Lock()

    def is_set(self) -> bool:
        """Whether to stop once the running experiment is decided."""
        return self._soon.is_set()

    def end(self, reason: str) -> None:
        """Stop once the running experiment is decided; no request, so the first that comes still lets it end."""
        self.reason = self.reason or reason
        self._soon.set()

    def request(self, reason: str, *, now: bool = False, signal: int | None = None) -> None:
        """Ask to stop; the second request, or one with ``now``, means at once."""
        self.signal = self.signal if self.signal is not None else signal
        self.reason = self.reason or reason  # before the loop can see that it is to stop
        if now or self.asked:
            self.now.set()
        self.asked = True
        self.end(reason)

    def announce(self) -> bool:
        """Whether it is to be said now that the session stops: True once, for the first thread that asks in time."""
        return self.is_set() and self._announcing.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep, but wake when asked to stop in any way; True when asked."""
        return self._soon.wait(timeout)


@dataclass(frozen=True, slots=True)
class Site:
    """Places on disk. source: the user's task folder; pristine: the task at the session's base commit.

    setup: what the set-up commands made; runs: where the runs of this session leave their logs.
    """

    source: Path
    pristine: Path
    setup: Path
    runs: Path

    def run_dir(self, number: int, index: int) -> Path:
        return self.runs / str(number) / str(index)


@dataclass(frozen=True, slots=True)
class Context:
    """What the loop works with; one per daemon.

    restore: writes the pristine copy anew where it was altered. ends_when_spent: whether the session ends at its spend
    cap; else its policy goes on without a model. ended: called once the session has ended; left: once that is written
    down and told. rate: US dollars an hour of machines that are rented now. learning: learner runs on a schedule, None:
    there is none. asking: held while the policy is asked; it answers one question after the other.
    """

    session_id: int
    tag: str
    seed: int
    task: Task
    store: SqlStore
    workspace: Workspace
    executor: Executor
    policy: Policy
    clock: Clock
    sink: EventSink
    site: Site
    stop: StopSwitch = field(default_factory=StopSwitch)
    baseline_runs: int = BASELINE_RUNS
    restore: Callable[[], object] = lambda: None
    redactor: Redactor = field(default_factory=Redactor)
    memo: Memo = field(default_factory=Memo)
    ends_when_spent: bool = True
    ended: Callable[[], None] = lambda: None
    left: Callable[[], None] = lambda: None
    rate: Callable[[], float] = lambda: 0.0
    learning: Learning | None = None
    asking: threading.Lock = field(default_factory=threading.Lock)

    def emit(self, kind: EventKind, message: str, *, experiment: int | None = None, **data: Any) -> None:
        self.sink.emit(Event(kind, self.clock.now(), message, experiment, data))

    def random_seed(self, number: int, purpose: str, index: int = 0) -> int:
        return derive_seed(self.seed, number, purpose, index)

    def request(self, number: int, run: int, *, task: Task, commit: str, seed: int, slot: int) -> RunRequest:
        """What is to be run as the run ``run`` of experiment ``number``: a commit, in the slot's worktree."""
        site, key, run_dir = self.site, f"{self.tag}/{number}/{run}", self.site.run_dir(number, run)
        workspace = self.workspace.checkout(slot, commit)
        return RunRequest(key, task, commit, seed, workspace, site.pristine, site.setup, run_dir, site.source, slot)

    @property
    def slots(self) -> int:
        """How many experiments may be under way: one where history is one line of commits and their reverts."""
        return 1 if self.task.history == "revert" else max(1, self.executor.slots)

    def facts(self) -> Mapping[str, str]:
        return self.executor.describe(self.task, self.site.setup)
