"""Runs on other machines in tests, on a machine so busy that one of theirs may look dead."""

from __future__ import annotations

import contextlib

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.ports import RunRequest
from autoresearchd.executor.remote.executor import RemoteExecutor, RemoteRun
from tests.contract.executor_contract import PATIENCE_S, ended
from tests.integration.local_jobs import text_of
from tests.timing import wait_until


def begun(executor: RemoteExecutor, request: RunRequest) -> RemoteRun:
    """A run whose job prints. Started again where a busy machine looks like a host that is dead."""
    log, runs = request.run_dir / "training.log", list[RemoteRun]()

    def look() -> RemoteRun | None:
        if not runs or runs[-1].wait(0) is not None:
            with contextlib.suppress(EnvironmentFailure):
                runs.append(executor.start(request))
        return runs[-1] if runs and text_of(log) else None

    found: RemoteRun = wait_until(look)
    return found


def outcome(handle: RemoteRun) -> str:
    result = handle.wait(PATIENCE_S)
    assert result is not None
    return result.stages[-1].outcome


def ended_well(executor: RemoteExecutor, request: RunRequest) -> RunResult:
    """The result of a run, made again until no busy machine looks like a dead host."""

    def attempt() -> RunResult | None:
        with contextlib.suppress(EnvironmentFailure):
            result = ended(executor, request)
            return None if result.stages[-1].outcome == "lost" else result
        return None

    found: RunResult = wait_until(attempt)
    return found
