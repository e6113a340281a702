"""A small repository with a task that takes milliseconds, and the command line as a user has it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.loop.upkeep.session_lock import holder

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


@dataclass
class Project:
    """A git repository, and the commands run in it."""

    root: Path
    environment: dict[str, str]

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=self.environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self, message: str = "change") -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", message)

    def cli(self, *arguments: str, timeout: float = 240, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "autoresearchd", *arguments],
            cwd=more.pop("cwd", self.root),
            env={**self.environment, **more.pop("env", {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            **more,
        )

    def start_process(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "autoresearchd", *arguments],
            cwd=self.root,
            env={**self.environment, **more.pop("env", {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **more,
        )

    def json(self, *arguments: str) -> Any:
        done = self.cli(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

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


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return make_environment(tmp_path)


def make_environment(folder: Path) -> dict[str, str]:
    """The environment of a user whose home, below ``folder``, is empty."""
    home = folder / "home"
    home.mkdir()
    keep = ("PATH", "LANG", "VIRTUAL_ENV")
    return {
        **{k: os.environ[k] for k in keep if k in os.environ},
        "HOME": str(home),
        "TERM": "dumb",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "User",
        "GIT_AUTHOR_EMAIL": "user@localhost",
        "GIT_COMMITTER_NAME": "User",
        "GIT_COMMITTER_EMAIL": "user@localhost",
    }


@pytest.fixture
def empty(tmp_path: Path, environment: dict[str, str]) -> Project:
    root = tmp_path / "project"
    root.mkdir()
    return Project(root, environment)


@pytest.fixture
def project(empty: Project) -> Iterator[Project]:
    empty.git("init", "-q", "-b", "main")
    empty.write("train.py", PROGRAM)
    empty.write("task.yaml", TASK)
    empty.commit("start")
    yield empty
    for lock in (empty.root / ".git" / "autoresearchd" / "locks").glob("*.lock"):
        if holder(lock) is not None:
            empty.cli("stop", "--now", "--session", lock.stem)
