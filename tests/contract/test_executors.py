"""Executors on this machine pass the contract of their port; for others see `tests.integration.remote_runs`."""

from __future__ import annotations

import pytest

from autoresearchd.domain.ports import Executor, RunRequest
from autoresearchd.executor.gpus import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.sandbox.tiers import TierName, available
from tests.contract.executor_contract import FAIL, HANG, SUCCEED, ExecutorContract, JobContract
from tests.fakes.executors import FakeExecutor, Script, prints

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
