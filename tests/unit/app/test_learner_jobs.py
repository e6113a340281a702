"""A learner's experiments have neither its limits nor the folders of another learner."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.task import Budget, Execution, Task
from autoresearchd.learner.gate.experiment_judge import RealJudge
from autoresearchd.learner.gate.learner_jobs import LearnerJobs, Unlimited, apart, commands_of, own_folder
from tests.fakes.executors import FakeExecutor, FakeHandle
from tests.fakes.policies import make_task
from tests.fakes.sessions import FakeGround, FakeGrounds

MOST = 2**40
SAY_LIMIT = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"


@pytest.fixture
def limited() -> Iterator[None]:
    """A limit on the memory of this process, which it does not reach."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


class Saying(FakeExecutor):
    """Starts processes that say which limit they have."""

    def __init__(self) -> None:
        super().__init__(lambda request: "")
        self.limits: list[int] = []

    def start(self, request: RunRequest) -> FakeHandle:
        self._say()
        return super().start(request)

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        self._say()

    def _say(self) -> None:
        done = subprocess.run([sys.executable, "-I", "-c", SAY_LIMIT], capture_output=True, text=True, check=True)
        self.limits.append(int(done.stdout))


@pytest.mark.usefixtures("limited")
def test_jobs_do_not_inherit_the_memory_limit_of_the_learner_which_keeps_it(tmp_path: Path) -> None:
    executor, task = Saying(), make_task()
    jobs = Unlimited(executor)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    jobs.setup(task, tmp_path, tmp_path, tmp_path, threading.Event())
    request = RunRequest("k", task, "c", 1, tmp_path, tmp_path, tmp_path, tmp_path, tmp_path)
    assert jobs.start(request).wait(0) is not None
    assert executor.limits == [hard, hard]
    assert resource.getrlimit(resource.RLIMIT_DATA) == (MOST, hard)


def test_before_a_foreign_command_runs_it_is_told_in_full_and_nothing_in_it_steers_the_terminal(tmp_path: Path) -> None:
    command = "true " + " " * 500 + "; id > /tmp/owned \x1b[2J\u202e"
    execution = Execution("python train.py", Budget(1, 1, 3), (command,), python="/opt/odd/python", network=True)
    task = replace(make_task(), execution=execution, data=("/home/you/.ssh/id_ed25519",))
    ground = FakeGround(tmp_path, task, executor="ssh")
    lines = list(commands_of("there/t", ground))
    told = "\n".join(lines)
    assert "; id > /tmp/owned" in told
    assert "\x1b" not in told and "\u202e" not in told
    shown = ("/opt/odd/python", "network: yes", "/home/you/.ssh/id_ed25519", "python train.py", "ssh", str(tmp_path))
    assert [word for word in shown if word not in told] == []
    with pytest.raises(UsageError, match="another repository"):
        RealJudge(FakeGrounds({"there/t": ground}), FakeExecutor(lambda request: ""))._permitted("there/t")
    bold = RealJudge(FakeGrounds({"there/t": ground}), FakeExecutor(lambda request: ""), run_foreign=True)
    bold._permitted("there/t")


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
