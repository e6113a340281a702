"""What is run of another repository is told before, and no learner uses the folders of another."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.task import Budget, Execution
from autoresearchd.learner.gate.judge_answers import RealJudge
from autoresearchd.learner.gate.learner_jobs import LearnerJobs, apart, commands_of, own_folder
from tests.fakes.executors import FakeExecutor
from tests.fakes.policies import make_task
from tests.fakes.sessions import FakeGround, FakeGrounds


def test_before_a_foreign_command_runs_it_is_told_in_full_and_nothing_in_it_steers_the_terminal(tmp_path: Path) -> None:
    command = "true " + " " * 500 + "; id > /tmp/owned \x1b[2J\u202e"
    execution = Execution("python train.py", Budget(1, 1, 3), (command,), python="/opt/odd/python", network=True)
    task = replace(make_task(), execution=execution, data=("/home/you/.ssh/id_ed25519",))
    ground = FakeGround(tmp_path, task, executor="ssh")
    lines = list(commands_of("there/t", ground))
    told = "\n".join(lines)
    assert "; id > /tmp/owned" in told
    assert "\x1b" not in told and "\u202e" not in told
    for word in (
        "/opt/odd/python",
        "network: yes",
        "/home/you/.ssh/id_ed25519",
        "python train.py",
        "ssh",
        str(tmp_path),
    ):
        assert word in told
    with pytest.raises(UsageError, match="another repository"):
        RealJudge(FakeGrounds({"there/t": ground}), FakeExecutor(lambda request: ""))._check_permitted("there/t")
    bold = RealJudge(FakeGrounds({"there/t": ground}), FakeExecutor(lambda request: ""), run_foreign=True)
    bold._check_permitted("there/t")


def test_the_executor_of_a_foreign_session_is_not_taken_and_nothing_is_made_in_its_repository(tmp_path: Path) -> None:
    own, there = FakeGround(tmp_path / "own", foreign=False), FakeGround(tmp_path / "there", executor="ssh")
    held, told = FakeGrounds({"own": own, "there": there}), list[str]()
    jobs = LearnerJobs(FakeExecutor, None, threading.Event(), told.append)
    assert jobs.place(held) == "local", "and not over ssh"
    assert told == []
    with apart(held, ["own"]):
        assert (tmp_path / "own/judging").is_dir()
        assert not (tmp_path / "there").exists()
    bold = LearnerJobs(FakeExecutor, None, threading.Event(), told.append, run_foreign=True)
    with pytest.raises(UsageError, match="different places"):
        bold.place(held)
    assert "these commands are run" in told[0]


def test_what_a_killed_learner_has_left_goes_when_the_next_one_begins(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\n"
        "from autoresearchd.learner.gate.learner_jobs import own_folder\n"
        "with own_folder(pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / '0/0/run').mkdir(parents=True)\n"
        "    print(folder, flush=True)\n"
        "    os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120)
    left = Path(done.stdout.strip())
    assert left.parent == tmp_path
    assert left.is_dir()
    with own_folder(tmp_path):
        assert not left.exists()
