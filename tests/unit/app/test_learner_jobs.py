"""What is run of another repository is told before, and no learner uses the folders of another."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.errors import Interrupted, UsageError
from autoresearchd.domain.task import Budget, Execution, Task
from autoresearchd.learner.gate.gate import LearnerJobs, commands_of, judging_alone
from autoresearchd.learner.gate.judge_answers import RealJudge
from tests.fakes.executors import FakeExecutor
from tests.fakes.policies import make_task


def make_ground(folder: Path, task: Task | None = None, *, foreign: bool = True, executor: str = "ssh") -> Any:
    """A session of which nothing is opened. folder: the task's."""
    return SimpleNamespace(folder=folder, task=task or make_task(), foreign=foreign, executor=executor)


def opened(**grounds: Any) -> Any:
    return SimpleNamespace(grounds=grounds, ground=grounds.__getitem__)


def test_before_a_foreign_command_runs_it_is_told_in_full_and_nothing_in_it_steers_the_terminal(tmp_path: Path) -> None:
    command = "true " + " " * 500 + "; id > /tmp/owned \x1b[2J\u202e"
    execution = Execution("python train.py", Budget(1, 1, 3), (command,), python="/opt/odd/python", network=True)
    task = make_task(execution=execution, data=("/home/you/.ssh/id_ed25519",))
    ground = make_ground(tmp_path, task)
    lines = list(commands_of("there/t", ground))
    told = "\n".join(lines)
    assert "; id > /tmp/owned" in told
    assert "\x1b" not in told and "\u202e" not in told
    shown = ("/opt/odd/python", "network: yes", "/home/you/.ssh/id_ed25519", "python train.py", "ssh", str(tmp_path))
    assert [word for word in shown if word not in told] == []
    with pytest.raises(UsageError, match="another repository"):
        RealJudge(opened(there=ground), FakeExecutor(lambda request: ""))._check_permitted("there")
    bold = RealJudge(opened(there=ground), FakeExecutor(lambda request: ""), run_foreign=True)
    bold._check_permitted("there")


def test_the_executor_of_a_foreign_session_is_not_taken(tmp_path: Path) -> None:
    own, there = make_ground(tmp_path, foreign=False, executor="local"), make_ground(tmp_path)
    held, told = opened(own=own, there=there), list[str]()
    jobs = LearnerJobs(FakeExecutor, None, threading.Event(), told.append)
    assert jobs.place(held) == "local", "and not over ssh"
    assert told == []
    bold = LearnerJobs(FakeExecutor, None, threading.Event(), told.append, run_foreign=True)
    with pytest.raises(UsageError, match="different places"):
        bold.place(held)
    assert "these commands are run" in told[0]


def test_what_a_killed_learner_has_left_goes_when_the_next_one_begins(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys, threading\n"
        "from autoresearchd.learner.gate.gate import judging_alone\n"
        "with judging_alone(home := pathlib.Path(sys.argv[1]), print, threading.Event()):\n"
        "    (home / 't/0/run').mkdir(parents=True)\n"
        "    os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=120)
    assert (tmp_path / "t/0/run").is_dir()
    told, stop = list[str](), threading.Event()
    with judging_alone(tmp_path, told.append, stop):
        assert not (tmp_path / "t").exists()
        stop.set()
        with pytest.raises(Interrupted), judging_alone(tmp_path, told.append, stop):
            pass
    assert len(told) == 1, "whoever waits is told for whom"
