"""What a policy is told of the machine and of the last failure, and what makes two results comparable."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from autoresearchd.app.compose import segment_fingerprint
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.loop.context import Context
from autoresearchd.models.client import estimate_tokens
from autoresearchd.policy.edits.read_answer import FORMS
from autoresearchd.policy.prompt import sections
from tests.fakes.bench import TASK, Bench, ByNumber, job
from tests.fakes.executors import FakeExecutor, Script, prints

METRICS = TASK.replace("metric_source: stdout", "metric_source: stdout, metrics: [score, peak_vram_mb, num_steps]")
TRACE = "step 1\nTraceback (most recent call last):\nRuntimeError: CUDA error: an illegal memory access\n"


class Watching(ByNumber):
    """Keeps the states that it is shown."""

    def __init__(self) -> None:
        self.states: list[ResearchState] = []

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        self.states.append(state)
        return super().propose(state, cancel)


def run(bench: Bench, experiments: int) -> list[Experiment]:
    bench.run(experiments)
    return bench.experiments()


def test_a_policy_is_told_of_device_memory_throughput_and_the_end_of_the_last_failed_log(tmp_path: Path) -> None:
    bench = Bench(tmp_path, task=METRICS)

    def some_fail(request: RunRequest) -> Script | str:
        if "SCALE = 2.5" in (request.workspace / "train.py").read_text():
            return prints(TRACE, outcome="failed", exit_code=1)
        return f"{job(request)}peak_vram_mb: 4711.5\nnum_steps: 77\n"

    bench.job = some_fail
    policy = bench.policy = Watching()
    run(bench, 3)
    before, after = policy.states[1].diagnostics, policy.states[2].diagnostics
    assert before["device"] == "cpu"
    assert before["run of the incumbent"].startswith("experiment 0, ")
    assert before["latest run"].startswith("experiment 1, ")
    for piece in ("peak_vram_mb 4711.5", "num_steps 77"):
        assert piece in before["latest run"]
    assert "last_failure" not in before
    assert "illegal memory access" in after["last_failure"]
    assert after["last_failure_log"].endswith("RuntimeError: CUDA error: an illegal memory access")
    told = sections.messages(policy.states[2], forms=FORMS, budget=64_000, count=estimate_tokens)[1]["content"]
    assert "last_failure_log: " in told.split("The machine, and the last failure:")[1].split("# ")[0]


OTHERS: Mapping[str, Mapping[str, str]] = {"device": {"device": "NVIDIA H100"}, "python": {"python": "3.12.1"}}


def _with(task: Task, part: str) -> Task:
    e = task.execution
    changed = {
        "budget": dataclasses.replace(e, budget=dataclasses.replace(e.budget, training=6.0)),
        "command": dataclasses.replace(e, run_command="python train.py --fast"),
        "environment": dataclasses.replace(e, env={"OMP_NUM_THREADS": "2"}),
    }
    return dataclasses.replace(task, execution=changed[part])


@pytest.mark.parametrize("part", ["budget", "command", "environment", "protected files", "device", "python"])
def test_results_compare_only_where_all_that_they_depend_on_is_the_same(part: str, bench: Bench) -> None:
    lab, files = bench.laboratory(), "f"
    usual = segment_fingerprint(lab, files)[0]
    assert segment_fingerprint(bench.laboratory(), files)[0] == usual
    changed: Context = lab
    if part == "protected files":
        files = "g"
    elif part in OTHERS:
        changed = dataclasses.replace(lab, executor=_Elsewhere(OTHERS[part]))
    else:
        changed = dataclasses.replace(lab, task=_with(bench.task, part))
    assert segment_fingerprint(changed, files)[0] != usual


class _Elsewhere(FakeExecutor):
    """An executor of another machine."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        super().__init__(job)
        self._facts = facts

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        return {**super().describe(), **self._facts}
