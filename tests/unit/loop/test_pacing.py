"""A session does not keep a program that is better only because it trained on through its grace."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import Cancel, RunRequest
from autoresearchd.domain.proposal import Proposal
from autoresearchd.domain.research_state import ResearchState
from autoresearchd.executor.devices import Devices
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.session import SessionLoop
from autoresearchd.sandbox.tiers import Tier
from tests.fakes.bench import Bench, ByNumber
from tests.fakes.bench import job as scores
from tests.fakes.executors import Script, TimedExecutor, prints
from tests.integration.local_jobs import TIERS

TASK = """\
name: toy
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 5, startup_grace: 100}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""
WORKS = """\
import os
import time
BUDGET = float(os.environ["AUTORESEARCHD_TIME_BUDGET"])
SCALE = 1.0
WORK = 0.3
while time.process_time() < WORK:
    pass
print(f"score: {(SCALE - 2.0) ** 2 + int(os.environ['AUTORESEARCHD_SEED']) % 7 * 1e-3:.6f}")
"""
READS = 'import os\nBUDGET = float(os.environ["AUTORESEARCHD_TIME_BUDGET"])\nSCALE = 1.0\n'


def taking(seconds: float) -> Callable[[RunRequest], Script | str]:
    """A job that takes long where it is not the program as it was: experiment 1 is worse then, 2 is better."""

    def job(request: RunRequest) -> Script | str:
        log = scores(request)
        assert isinstance(log, str)
        first = "SCALE = 1.0" in (request.workspace / "train.py").read_text()
        return prints(log, duration_s=5.5 if first else seconds, cpu_s=5.5 if first else seconds)

    return job


def session(
    folder: Path, program: str, seconds: float, *, restart: bool = False, second: float = 2.5, task: str = TASK
) -> list[Experiment]:
    bench = Bench(folder, task=task, program=program)
    bench.policy.values = (0.0, 4.0, second)
    bench.job = taking(seconds)
    if restart:
        SessionLoop(bench.laboratory(), Limits(max_experiments=1)).run()
        shutil.rmtree(bench.laboratory().site.runs)  # logs and results may be removed to free some room
    SessionLoop(bench.laboratory(), Limits(max_experiments=2)).run()
    found = bench.experiments()
    bench.close()
    return found


@pytest.mark.parametrize("restart", [False, True])
def test_what_beats_the_best_by_training_for_longer_is_an_overrun(tmp_path: Path, restart: bool) -> None:
    _, worse, better = session(tmp_path, READS, 40.0, restart=restart)
    assert worse.decision is not None
    assert better.decision is not None
    assert worse.decision.label is Label.NO_GAIN, "what it took does not matter: it is worse"
    assert (better.decision.status, better.decision.label) == (Status.CRASH, Label.BUDGET_OVERRUN)
    assert "the budget is 5 s" in better.runs[-1].detail


@pytest.mark.parametrize("restart", [False, True])
def test_what_beats_a_program_without_a_budget_by_more_work_is_no_improvement(tmp_path: Path, restart: bool) -> None:
    _, worse, better = session(tmp_path, "SCALE = 1.0\n", 40.0, restart=restart)
    assert worse.decision is not None
    assert better.decision is not None
    assert worse.decision.label is Label.NO_GAIN, "what it took does not matter: it is worse"
    assert (better.decision.status, better.decision.label) == (Status.DISCARD, Label.CONSTRAINT)
    assert "training took 40 s; the baseline takes 5.5 s and 6.88 s are allowed" in better.decision.reason


class Working(ByNumber):
    """Proposes a better SCALE that computes for 0.1 s, then a better one still that computes for 1.5 s."""

    programs = ((1.0, 0.3), (1.5, 0.1), (1.9, 1.5))

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        scale, work = self.programs[state.number]
        text = re.sub(r"WORK = .*", f"WORK = {work}", re.sub(r"SCALE = .*", f"SCALE = {scale}", WORKS))
        return Proposal({"train.py": text}, f"SCALE {scale} may be better", self.name, description=f"SCALE → {scale}")


def by_the_clock(request: RunRequest) -> float:
    """The program as it was takes 5.5 s, any other one 7.5 s."""
    return 5.5 if (request.workspace / "train.py").read_text() == WORKS else 7.5


@pytest.mark.parametrize("tier", TIERS[:: max(1, len(TIERS) - 1)])  # the best that there is, and none
def test_what_a_job_really_computed_tells_training_from_waiting(tier: Tier, tmp_path: Path) -> None:
    """By the clock both took as long; the one was kept waiting by the machine, the other one trained on."""
    bench = Bench(tmp_path, task=TASK, program=WORKS)
    bench.policy = Working()
    executor = LocalExecutor(tier=tier, devices=Devices())
    lab = replace(bench.laboratory(), executor=TimedExecutor(executor, by_the_clock))
    SessionLoop(lab, Limits(max_experiments=2)).run()
    first, waited, trained = bench.experiments()
    assert waited.decision is not None
    assert trained.decision is not None
    assert waited.decision.status is Status.KEEP
    assert trained.decision.label is Label.BUDGET_OVERRUN
    for experiment, work in ((first, 0.3), (waited, 0.1), (trained, 1.5)):
        for run in experiment.runs:
            if run.of is None:
                [stage] = bench.store.stages(run.id)
                assert work <= stage.cpu_s < work + 2.0, "what the job computed, and what begins and watches it"
    bench.close()
