"""A session for tests: a real store, a scripted policy, a job that takes no time, and git in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.config import dump_task, load_task
from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.ports import Cancel, Event, EventKind, NewSession, ResearchState, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.loop.context import Context, Site, StopSwitch, SystemClock
from autoresearchd.loop.session import Backoff, SessionLoop
from tests.fakes.executors import FakeExecutor, Job, Script, prints
from tests.fakes.stores import open_store
from tests.fakes.workspaces import FakeWorkspace

PROGRAM = "SCALE = 1.0\n"
TASK = """\
name: toy
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 5}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""


class ByNumber:
    """Proposes, for experiment n, the n-th value of a script: a pure function of the number, as after a restart."""

    name = "scripted"
    repairs = 0
    values = (0.0, 4.0, 2.5, 2.0, 0.0, 1.9)

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        value = self.values[state.number % len(self.values)]
        text = re.sub(r"SCALE = .*", f"SCALE = {value}", state.code["train.py"])
        return Proposal({"train.py": text}, f"SCALE {value} may be better", self.name, description=f"SCALE → {value}")


class Writing:
    """Proposes the program that a function of the state gives."""

    name, repairs = "scripted", 0

    def __init__(self, text: Callable[[ResearchState], str]) -> None:
        self.text = text

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        return Proposal({"train.py": self.text(state)}, "It may be better", self.name)


class Failing(ByNumber):
    """Raises one of the errors each time that it is asked (number: for that experiment); then it proposes."""

    def __init__(self, *errors: Exception, number: int | None = None) -> None:
        self.errors, self.number = list(errors), number

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        if self.errors and self.number in (None, state.number):
            raise self.errors.pop(0)
        return super().propose(state, cancel)


class Passing(SystemClock):
    """passed: seconds of which nothing was waited for."""

    passed = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.passed


class Forward(StopSwitch):
    """Waits no time; puts a clock forward instead."""

    def __init__(self, clock: Passing) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.passed += timeout or 0.0
        return self.is_set()


class Collector:
    """Remembers events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.emit = self.events.append


def program_of(request: RunRequest) -> str:
    return (request.workspace / "train.py").read_text()


def job(request: RunRequest) -> Script | str:
    """The program's score: a bowl with its bottom at 2, and a little noise that depends on the seed only."""
    found = re.search(r"SCALE = (.*)", program_of(request))
    score = (float(found[1]) - 2.0) ** 2 + (request.seed % 7) * 1e-3
    return f"score: {score:.6f}\n"


def failing(text: str, log: str, others: Job = job) -> Job:
    """A job that fails where its program holds a text."""

    def run(request: RunRequest) -> Script | str:
        return prints(log, outcome="failed", exit_code=1) if text in program_of(request) else others(request)

    return run


class Bench:
    """One session on one repository; ``laboratory`` composes a daemon over it, as often as one dies."""

    def __init__(self, folder: Path, task: str = TASK, program: str = PROGRAM) -> None:
        self.root = folder / "project"
        self.root.mkdir(parents=True)
        (self.root / "train.py").write_text(program)
        (self.root / "task.yaml").write_text(task)
        self.task = load_task(self.root)
        base, self.state = self.make_repository()
        self.state.mkdir()
        self.store = open_store(self.state / "state.db")
        self.events = Collector()
        self.policy: Any = ByNumber()
        self.job: Job = job
        now = datetime.now(UTC)
        self.session = self.store.create_session(
            NewSession("t", "autoresearch/t", dump_task(self.task), "scripted", "local", base, seed=7), now
        )
        self.begin(base)
        self.store.open_segment(self.session.id, "f", "start", "cpu", now)

    # ---------------------------------------------------------------------- git, in memory here
    def make_repository(self) -> tuple[str, Path]:
        """The user's commit, and the folder of what the daemon keeps."""
        self.repository = FakeWorkspace(self.root / ".repository", self.task.editable)
        return self.repository.begin({f.name: f.read_text() for f in self.root.iterdir()}), self.root / "state"

    def begin(self, base: str) -> None:
        """The session begins."""

    def workspace(self) -> Any:
        return self.repository

    def line(self) -> list[str]:
        """The commits of the session's branch, the user's own first."""
        found, workspace = [], self.workspace()
        commit = workspace.confirmed()
        while commit != self.session.base_commit:
            found.append(commit)
            commit = workspace.parent(commit)
        return [commit, *found[::-1]]

    def program(self) -> str:
        workspace = self.workspace()
        return str(workspace.read(workspace.confirmed(), "train.py"))

    # ---------------------------------------------------------------------- daemons
    def laboratory(self, wrap: Callable[[Any], Any] = lambda port: port) -> Context:
        workspace, base = self.workspace(), self.session.base_commit
        return Context(
            session_id=self.session.id,
            tag="t",
            seed=7,
            task=self.task,
            store=wrap(self.store),
            workspace=wrap(workspace),
            executor=wrap(FakeExecutor(self.job)),
            policy=wrap(self.policy),
            clock=SystemClock(),
            sink=self.events,
            site=Site(self.root, workspace.pristine(base), self.state / "setup", self.root / ".autoresearchd/runs/t"),
        )

    def loop(
        self,
        experiments: int | None = 3,
        context: Context | None = None,
        *,
        backoff: Backoff = Backoff(first=0.0),  # noqa: B008 - frozen
        **limits: Any,
    ) -> SessionLoop:
        """A daemon that ends after so many experiments, and does not wait after failures."""
        most = Limits(max_experiments=experiments, **limits)
        return SessionLoop(context or self.laboratory(), most, backoff=backoff)

    def run(self, experiments: int | None = 3, **limits: Any) -> SessionLoop:
        loop = self.loop(experiments, **limits)
        loop.run()
        return loop

    # ---------------------------------------------------------------------- what came of it
    def experiment(self, number: int) -> Experiment:
        return self.store.experiment(self.session.id, number)

    def experiments(self) -> list[Experiment]:
        return list(self.store.experiments(self.session.id))

    def messages(self, *kinds: EventKind) -> Iterator[str]:
        """What was told, of these kinds (none: of all)."""
        return (event.message for event in self.events.events if not kinds or event.kind in kinds)

    def close(self) -> None:
        self.store.close()


# ---------------------------------------------------------------------- ports that fail
LOCKED = EnvironmentFailure("database is locked", hint="wait")


def fails(
    port: Any, name: str, *raised: Exception, after: bool = False, when: Callable[[], bool] = lambda: True
) -> list[Exception]:
    """Have a method raise each of these in turn, while ``when`` holds; those that are left.

    after: what it does is done all the same.
    """
    real, left = getattr(port, name), list(raised)

    def failing(*arguments: Any, **named: Any) -> Any:
        if left and when():
            if after:
                real(*arguments, **named)
            raise left.pop(0)
        return real(*arguments, **named)

    setattr(port, name, failing)
    return left


# ---------------------------------------------------------------------- daemons that die
class Killed(BaseException):
    """What kill -9 looks like from inside: nothing catches it, nothing is cleaned up."""


@dataclass
class Doom:
    """Counts instants and strikes at one of them (0: at none)."""

    at: int = 0
    count: int = 0

    def instant(self, call: str, moment: str) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


class Mortal:
    """A port whose every call has an instant before and an instant after it. doom: is told of each."""

    def __init__(self, inner: Any, doom: Any, port: str = "") -> None:
        self._inner, self._doom, self._port = inner, doom, port

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not callable(value):
            return value

        def call(*arguments: Any, **named: Any) -> Any:
            self._doom.instant(f"{self._port}.{name}", "before")
            result = value(*arguments, **named)
            self._doom.instant(f"{self._port}.{name}", "after")
            return result

        return call


def run_until_killed(bench: Bench, doom: Doom, experiments: int = 3) -> bool:
    """Run a daemon; whether it was killed before it was done."""
    try:
        bench.loop(experiments, bench.laboratory(wrap=lambda port: Mortal(port, doom))).run()
    except Killed:
        return True
    return False
