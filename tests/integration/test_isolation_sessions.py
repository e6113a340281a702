"""``--sandbox``: what a session asked for is what its runs get, and it is remembered."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from autoresearchd.sandbox.tiers import available

TASK = """\
name: small
workspace: {target_file: train.py}
execution: {run_command: python -I -S train.py, budget: 30}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""
OTHERS = [tier.name.value for tier in available()[-2:]]  # the weakest that isolates, where there is one, and none


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "task.yaml").write_text(TASK)
    (tmp_path / "train.py").write_text('SCALE = 1.0\nprint(f"score: {abs(SCALE - 3)}")\n')
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def autoresearchd(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autoresearchd", *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120, env=dict(os.environ),
    )  # fmt: skip


def stored(folder: Path, question: str) -> list[str]:
    with sqlite3.connect(folder / ".git" / "autoresearchd" / "state.db") as database:
        answers = [str(row[0]) for row in database.execute(question)]
    database.close()
    return answers


@pytest.mark.parametrize("name", OTHERS)
def test_a_session_keeps_the_sandbox_that_it_was_started_with(project: Path, name: str) -> None:
    begun = autoresearchd(
        project,
        "start",
        "--tag",
        "t",
        "--sandbox",
        name,
        "--policy",
        "random",
        "--max-experiments",
        "1",
        "--foreground",
    )
    assert begun.returncode == 0, begun.stderr
    assert set(stored(project, "select tier from run")) == {name}
    assert stored(project, "select executor from session") == [f"local:{name}"]
    assert ("not isolated" in begun.stdout + begun.stderr) is (name == "none")
    assert autoresearchd(project, "resume", "t", "--foreground").returncode == 0
    assert stored(project, "select executor from session") == [f"local:{name}"]
    assert autoresearchd(project, "resume", "t", "--sandbox", "auto", "--foreground").returncode == 0
    assert stored(project, "select executor from session") == ["local"]


@pytest.mark.parametrize("command", [("start",), ("task", "check", "--run")])
def test_a_sandbox_that_there_is_not_is_refused_before_anything_is_changed(
    project: Path, command: tuple[str, ...]
) -> None:
    done = autoresearchd(project, *command, "--sandbox", "bubblewarp")
    assert done.returncode == 2
    assert "bubblewarp" in done.stderr
    assert not (project / ".git" / "autoresearchd" / "state.db").exists()


def test_a_task_is_checked_in_the_sandbox_that_is_named(project: Path) -> None:
    done = autoresearchd(project, "task", "check", ".", "--run", "--sandbox", OTHERS[0])
    assert done.returncode == 0, done.stderr
    assert f"({OTHERS[0]}, self-reported)" in done.stdout
