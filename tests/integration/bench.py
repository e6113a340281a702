"""A laboratory for tests: a real git repository and a real store, a scripted policy, and a job that takes no time."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.config import dump_task, load_task
from autoresearchd.domain.events import Event
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.state import ResearchState
from autoresearchd.loop.clock import SystemClock
from autoresearchd.loop.context import Context, Site
from autoresearchd.ports import Cancel, NewSession, RunRequest
from autoresearchd.store.migrate import open_store
from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.executors import FakeExecutor, Script

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


class Collector:
    """Remembers events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


def job(request: RunRequest) -> Script | str:
    """The program's score: a bowl with its bottom at 2, and a little noise that depends on the seed only."""
    found = re.search(r"SCALE = (.*)", (request.workspace / "train.py").read_text())
    assert found is not None
    score = (float(found[1]) - 2.0) ** 2 + (request.seed % 7) * 1e-3
    return f"score: {score:.6f}\n"


class Bench:
    """One session on one repository; ``laboratory`` composes a daemon over it, as often as one dies."""

    def __init__(self, folder: Path, task: str = TASK, program: str = PROGRAM) -> None:
        self.root = folder / "project"
        self.root.mkdir(parents=True)
        (self.root / "train.py").write_text(program)
        (self.root / "task.yaml").write_text(task)
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "start")
        (self.root / ".git/info/exclude").write_text(".autoresearchd/\n")
        self.task = load_task(self.root)
        self.state = self.root / ".git/autoresearchd"
        self.state.mkdir()
        self.store = open_store(f"sqlite:///{self.state / 'state.db'}")
        self.events = Collector()
        self.policy: Any = ByNumber()
        self.job: Callable[[RunRequest], Script | str] = job
        base = self.git("rev-parse", "HEAD")
        now = datetime.now(UTC)
        self.session = self.store.create_session(
            NewSession("t", "autoresearch/t", dump_task(self.task), "scripted", "local", base, seed=7), now
        )
        self.workspace().begin(base)
        self.store.open_segment(self.session.id, "f", "start", "cpu", now)

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=User", "-c", "user.email=user@localhost"]
        done = subprocess.run(["git", *identity, *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def workspace(self) -> GitWorkspace:
        return GitWorkspace.open(
            self.root, "t", task_folder=self.root, editable=self.task.editable, history=self.task.history
        )

    def laboratory(self, wrap: Callable[[Any], Any] = lambda port: port) -> Context:
        workspace = self.workspace()
        site = Site(
            self.root,
            workspace.pristine(self.session.base_commit),
            self.state / "setup",
            self.root / ".autoresearchd/runs/t",
        )
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
            site=site,
        )

    def close(self) -> None:
        self.store.close()
