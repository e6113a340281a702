"""The bench on a real git repository, for tests of what git and the loop do together."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.workspace.git import GitWorkspace
from tests.fakes.bench import PROGRAM, TASK, ByNumber, Collector, job
from tests.fakes.bench import Bench as MemoryBench
from tests.fakes.repositories import write_files

__all__ = ["PROGRAM", "TASK", "Bench", "ByNumber", "Collector", "fake_git", "job", "session"]


def session(root: Path, *editable: str, tag: str = "night", **options: Any) -> closing[GitWorkspace]:
    """The files of a session whose task is a whole repository."""
    return closing(GitWorkspace(root, tag, task_folder=root, editable=editable or ["train.py"], **options))


def fake_git(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the daemon find another program in place of git."""
    write_files(folder, {"git": f"#!/bin/sh\n{text}"})
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


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
