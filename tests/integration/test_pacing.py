"""A session does not keep a program that is better only because it trained on through its grace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Label, Status
from autoresearchd.loop.session import SessionLoop
from autoresearchd.ports import RunRequest
from autoresearchd.testing.executors import Script, prints
from tests.integration.bench import Bench
from tests.integration.bench import job as scores

TASK = """\
name: toy
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 5, startup_grace: 100}
scoring: {metric: score, direction: minimize, metric_source: stdout}
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
    folder: Path, program: str, seconds: float, *, restart: bool = False, second: float = 2.5
) -> list[Experiment]:
    bench = Bench(folder, task=TASK, program=program)
    bench.policy.values = (0.0, 4.0, second)
    bench.job = taking(seconds)
    if restart:
        SessionLoop(bench.laboratory(), Limits(max_experiments=1)).run()
        shutil.rmtree(bench.laboratory().site.runs)  # logs and results may be removed to free some room
    SessionLoop(bench.laboratory(), Limits(max_experiments=2)).run()
    found = list(bench.store.experiments(bench.session.id))
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


def test_what_comes_level_with_the_best_by_training_for_longer_is_an_overrun_too(tmp_path: Path) -> None:
    *_, level = session(tmp_path, READS, 40.0, second=0.9995)
    assert level.decision is not None
    assert level.decision.label is Label.BUDGET_OVERRUN, "a tie may be kept, and what came after it would be held to it"


def test_what_keeps_to_the_budget_is_kept(tmp_path: Path) -> None:
    *_, better = session(tmp_path, READS, 6.0)
    assert better.decision is not None
    assert better.decision.status is Status.KEEP


def test_a_program_that_is_told_no_budget_may_take_its_time(tmp_path: Path) -> None:
    *_, better = session(tmp_path, "SCALE = 1.0\n", 40.0)
    assert better.decision is not None
    assert better.decision.status is Status.KEEP
