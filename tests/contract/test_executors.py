"""Every executor passes the contract of its port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from autoresearchd.domain.ports import Executor, RunRequest
from autoresearchd.domain.task import Task
from autoresearchd.executor.gpus import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.executor.remote.hosts import setup_key
from autoresearchd.executor.remote.trees import Trees
from autoresearchd.executor.ssh.executor import SshExecutor
from autoresearchd.sandbox.tiers import TierName, available
from tests.contract.executor_contract import FAIL, HANG, SUCCEED, ExecutorContract, JobContract
from tests.fakes.executors import FakeExecutor, Script, prints
from tests.integration.ssh_hosts import Fleet, make_fleet, needs_sshd

AVAILABLE = available()


def scripted(request: RunRequest) -> Script | str:
    return {
        SUCCEED: "val_bpb: 1.5\n",
        FAIL: prints("broken\n", outcome="failed", exit_code=3),
        HANG: Script("begun\n", hang=True),
    }[request.task.execution.run_command]


class TestFakeExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Executor:
        return FakeExecutor(scripted)


@pytest.mark.parametrize("name", TierName)
class TestLocalExecutor(JobContract):
    """The contract in each tier that works here."""

    @pytest.fixture
    def executor(self, name: TierName) -> Executor:
        tier = next((tier for tier in AVAILABLE if tier.name is name), None)
        if tier is None:
            pytest.skip(f"the tier {name} does not work here")
        return LocalExecutor(tier=tier, devices=Devices())


@pytest.fixture(scope="class")
def fleet() -> Iterator[Fleet]:
    """One host, with a user of its own."""
    with make_fleet() as fleet:
        fleet.add("gpu-box-1")
        yield fleet


@pytest.fixture(scope="class")
def connected(fleet: Fleet) -> Iterator[SshExecutor]:
    with closing(fleet.executor()) as executor:
        yield executor


@needs_sshd
class TestSshExecutor(JobContract):
    """The contract over a real sshd."""

    @pytest.fixture
    def executor(self, connected: SshExecutor) -> Executor:
        return connected

    def place(self, executor: Executor, task: Task, pristine: Path, setup: Path) -> Path:
        assert isinstance(executor, SshExecutor)
        [slot] = executor.given
        return Path(slot.remote_dir) / ".autoresearchd" / "setup" / setup_key(task, Trees().read(pristine))
