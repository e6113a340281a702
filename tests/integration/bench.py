"""The bench on a real git repository, for tests of what git and the loop do together."""

from __future__ import annotations

import subprocess
from pathlib import Path

from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.bench import PROGRAM, TASK, ByNumber, Collector, job
from tests.fakes.bench import Bench as MemoryBench

__all__ = ["PROGRAM", "TASK", "Bench", "ByNumber", "Collector", "job"]


class Bench(MemoryBench):
    """One session on one repository."""

    def make_repository(self) -> tuple[str, Path]:
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "start")
        (self.root / ".git/info/exclude").write_text(".autoresearchd/\n")
        return self.git("rev-parse", "HEAD"), self.root / ".git/autoresearchd"

    def begin(self, base: str) -> None:
        self.workspace().begin(base)

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=User", "-c", "user.email=user@localhost"]
        done = subprocess.run(["git", *identity, *arguments], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def workspace(self) -> GitWorkspace:
        return GitWorkspace(
            self.root, "t", task_folder=self.root, editable=self.task.editable, history=self.task.history
        )
