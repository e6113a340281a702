"""A small repository with a task that takes milliseconds, and the command line as a user has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.cli.repository_here import find_place
from autoresearchd.cli.terminal_text import json_text
from autoresearchd.loop.upkeep.session_lock import holder
from tests.e2e.loaded import Loaded
from tests.fakes.repositories import write_files

Done = subprocess.CompletedProcess[str]
Daemon = subprocess.Popen[bytes]

PROGRAM = """\
import os
import random

SCALE = 1.0
SHIFT = 0.5
RATE = 1e-3
STEPS = 64

random.seed(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
noise = random.gauss(0.0, 0.01)
print(f"score: {(SCALE - 2.0) ** 2 + (SHIFT - 1.0) ** 2 + 10 * RATE + noise:.6f}")
"""

TASK = """\
name: toy
workspace: {target_file: train.py}
execution: {run_command: python -S train.py, budget: 20, startup_grace: 5}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""


@cache
def loaded() -> Loaded:
    """Where commands run that are waited for: most of a test's time would go into loading them."""
    return Loaded()


@dataclass
class Project:
    """A git repository, and the commands run in it."""

    root: Path
    environment: dict[str, str]

    def begin(self, files: Mapping[str, str]) -> Project:
        """Make the repository with these files in its first commit."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.git("init", "-q", "-b", "main")
        return self.put(files)

    def put(self, files: Mapping[str, str], message: str = "change") -> Project:
        write_files(self.root, files)
        self.git("add", "-A")
        self.git("commit", "-qm", message)
        return self

    def write(self, name: str, text: str) -> None:
        write_files(self.root, {name: text})

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def call(self, arguments: tuple[str, ...], env: Mapping[str, str] | None, **more: Any) -> dict[str, Any]:
        """What runs a command: arguments of ``subprocess.Popen``."""
        command, environment = [sys.executable, "-m", "autoresearchd", *arguments], {**self.environment, **(env or {})}
        return {"args": command, "cwd": self.root, "env": environment, "stdin": subprocess.DEVNULL, **more}

    def cli(self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Done:
        return loaded().run(arguments, cwd or self.root, {**self.environment, **(env or {})}, timeout=280)

    def done(self, *arguments: str, **more: Any) -> Done:
        """A command that has to succeed."""
        done = self.cli(*arguments, **more)
        assert done.returncode == 0, done.stderr + done.stdout
        return done

    def session(self, policy: str = "random", experiments: int = 1, *more: str, tag: str = "t", **options: Any) -> Done:
        """A session from its start to its end."""
        limit = ("--max-experiments", str(experiments))
        return self.done("start", "--foreground", "--tag", tag, "--policy", policy, *limit, *more, **options)

    @contextmanager
    def daemon(self, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Daemon]:
        """A command that goes on; it is killed where it has not ended by itself."""
        with self.said.open("w") as said:
            process = subprocess.Popen(**self.call(arguments, env, stdout=said, stderr=said))
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    @property
    def said(self) -> Path:
        """What the last daemon has printed; not on the project's own disk, which may be full."""
        return Path(self.environment["HOME"]).with_name(f"{self.root.name}-said.txt")

    def json(self, *arguments: str) -> Any:
        return json.loads(self.done(*arguments).stdout)

    def status(self, tag: str | None = None) -> Any:
        """What ``status --json`` prints, in a hundredth of its time."""
        place = find_place(self.root)
        with closing(place.reader):
            return json.loads(json_text(place.status(place.pick(tag))))

    def experiments(self) -> Any:
        """What ``experiments --json`` prints."""
        place = find_place(self.root)
        with closing(place.reader):
            return json.loads(json_text([*place.reader.experiments(place.pick(None))]))

    def proposing(self, tag: str) -> Any:
        """What is under way, once the first experiment after the baseline waits for its proposal."""
        current = self.latest_run(tag) >= 0 and self.status(tag)["current"]
        return current and (current["experiment"], current["phase"]) == (1, "proposing") and current

    def latest_run(self, tag: str = "t") -> int:
        """Number of the latest experiment that was run, -1 before there is one; costs less than asking a command."""
        runs = self.root / ".autoresearchd" / "runs" / tag
        return max((int(path.name) for path in runs.glob("*") if path.name.isdigit()), default=-1)

    def snapshot(self) -> dict[str, object]:
        """Everything of the user's that a session must leave alone."""
        files = {
            str(p.relative_to(self.root)): p.read_bytes()
            for p in sorted(self.root.rglob("*"))
            if p.is_file() and not {".git", ".autoresearchd"} & set(p.relative_to(self.root).parts)
        }
        return {
            "files": files,
            "head": (self.root / ".git/HEAD").read_text(),
            "branches": self.git("for-each-ref", "refs/heads", "refs/autoresearch"),
            "stash": self.git("stash", "list"),
            "index": self.git("ls-files", "-s"),
            "config": (self.root / ".git/config").read_text(),
        }


def without_verdicts(experiments: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What stays of experiments whatever confirmations find later."""
    return [{**e, "confirmed": None} for e in experiments]


def make_environment(folder: Path) -> dict[str, str]:
    """The environment of a user whose home, below ``folder``, is empty."""
    home = folder / "home"
    home.mkdir()
    who = {f"GIT_{role}_{what}": "u@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "VIRTUAL_ENV", "OMP_NUM_THREADS") if name in os.environ}
    return {**keep, **who, "HOME": str(home), "TERM": "dumb", "GIT_CONFIG_NOSYSTEM": "1"}


def make_project(folder: Path) -> Project:
    """An empty folder, and a user with an empty home beside it."""
    (folder / "project").mkdir()
    return Project(folder / "project", make_environment(folder))


@pytest.fixture
def empty(tmp_path: Path) -> Project:
    return make_project(tmp_path)


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Path]:
    """A folder for the PATH of a shell, whose ``autoresearchd`` needs no second to load."""
    folder = tmp_path / "tools"
    folder.mkdir()
    with loaded().program(folder / "autoresearchd"):
        yield folder


@pytest.fixture
def project(empty: Project) -> Iterator[Project]:
    yield empty.begin({"train.py": PROGRAM, "task.yaml": TASK})
    for lock in (empty.root / ".git/autoresearchd/locks").glob("*.lock"):
        if holder(lock) is not None:
            empty.cli("stop", "--now", "--session", lock.stem)
