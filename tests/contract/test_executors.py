"""Every executor passes the contract of its port."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoresearchd.executor.device import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.ports import Executor, RunRequest
from autoresearchd.sandbox import bubblewrap
from autoresearchd.sandbox.tiers import PLAIN, Tier, TierName, probe
from autoresearchd.testing.executor_contract import FAIL, HANG, SUCCEED, ExecutorContract, JobContract
from autoresearchd.testing.executors import FakeExecutor, Script, ScriptedStage, prints


def scripted(request: RunRequest) -> Script | str:
    return {
        SUCCEED: "val_bpb: 1.5\n",
        FAIL: prints("broken\n", outcome="failed", exit_code=3),
        HANG: Script(stages=(ScriptedStage(log="begun\n"),), hang=True),
    }[request.task.execution.run_command]


class TestFakeExecutor(ExecutorContract):
    @pytest.fixture
    def executor(self) -> Executor:
        return FakeExecutor(scripted)


class TestLocalExecutorWithoutIsolation(JobContract):
    @pytest.fixture
    def executor(self) -> Executor:
        return LocalExecutor(tier=PLAIN, devices=Devices())


class TestLocalExecutorInBubblewrap(JobContract):
    @pytest.fixture
    def executor(self) -> Executor:
        tier = probe()
        if tier.name is TierName.NONE:
            pytest.skip(tier.reason)
        return LocalExecutor(tier=tier, devices=Devices())


class TestLocalExecutorInBubblewrapWithoutProc(JobContract):
    @pytest.fixture
    def executor(self) -> Iterator[Executor]:
        programs = bubblewrap.candidates()
        if not programs or not probe(programs[-1:]).isolates:
            pytest.skip("bubblewrap does not work here")
        yield LocalExecutor(tier=Tier(TierName.BUBBLEWRAP_NOPROC, programs[-1]), devices=Devices())
