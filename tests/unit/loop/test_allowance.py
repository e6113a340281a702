"""On a slow machine a run is given the time that the baseline shows it to need; a limit that the user set holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.ports import RunRequest
from autoresearchd.domain.task import WAITS_S, Budget
from autoresearchd.loop.session import SessionLoop
from tests.fakes.bench import PROGRAM, TASK, Bench
from tests.fakes.bench import job as scores
from tests.fakes.executors import FakeExecutor, Script, prints

READS = 'import os\nBUDGET = float(os.environ["AUTORESEARCHD_TIME_BUDGET"])\n' + PROGRAM


def taking(seconds: float) -> object:
    def job(request: RunRequest) -> Script | str:
        log = scores(request)
        assert isinstance(log, str)
        return prints(log, duration_s=seconds)

    return job


def budgets(
    folder: Path, execution: str, seconds: float, *, restart: bool = False, program: str = READS
) -> tuple[list[Budget], list[str]]:
    """The clock of the baseline's runs, once, and of each run after them, and what the user is warned of."""
    bench = Bench(folder, task=TASK.replace("budget: 5", execution), program=program)
    bench.job = taking(seconds)  # type: ignore[assignment]
    found: list[Budget] = []
    for experiments in (1, 2) if restart else (2,):
        lab = bench.laboratory()
        SessionLoop(lab, Limits(max_experiments=experiments)).run()
        assert isinstance(lab.executor, FakeExecutor)
        found += [request.task.execution.budget for request in lab.executor.requests]
    assert {(budget.training, budget.grace) for budget in found} == {(15.0, 30.0)}
    runs = len(bench.experiment(0).runs)
    warnings = [event.message for event in bench.events.events if event.kind is EventKind.WARNING]
    bench.close()
    assert len(set(found[:runs])) == 1, "of the baseline's own runs nobody knows what this machine needs"
    return [found[0], *found[runs:]], warnings


def walls(folder: Path, execution: str, seconds: float, *, restart: bool = False) -> tuple[list[float], list[str]]:
    """Limits of the whole of each run, and what the user is warned of."""
    found, warnings = budgets(folder, execution, seconds, restart=restart)
    return [budget.wall for budget in found], warnings


@pytest.mark.parametrize("restart", [False, True])
def test_where_the_baseline_took_most_of_its_time_an_experiment_is_given_more(tmp_path: Path, restart: bool) -> None:
    found, warnings = walls(tmp_path, "budget: 15, startup_grace: 30", 37.6, restart=restart)
    assert found[0] == 15.0 + 3 * 45.0
    assert len(found) > 2
    assert set(found[1:]) == {15.0 + 3 * (37.6 - 15.0)}
    assert len(warnings) == 1
    assert "the baseline took 38s of the 1m 00s" in warnings[0]
    assert "execution.timeout" in warnings[0]


@pytest.mark.parametrize("timeout", [50, 60])  # also where it is the usual one
def test_a_limit_that_the_user_named_holds_and_is_told_to_be_short(tmp_path: Path, timeout: int) -> None:
    found, [warning] = walls(tmp_path, f"budget: 15, startup_grace: 30, timeout: {timeout}", 37.6)
    assert set(found) == {float(timeout)}
    assert "raise execution.timeout in task.yaml to 83 or more" in warning


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("seconds", [4.0, 20.0])
def test_a_night_is_not_spent_on_runs_that_take_twenty_times_as_long_as_a_baseline_without_a_budget(
    tmp_path: Path, seconds: float, restart: bool
) -> None:
    found, [warning] = budgets(tmp_path, "budget: 15, startup_grace: 30", seconds, restart=restart, program=PROGRAM)
    assert found[0].limit == 45.0, "of the baseline nobody knows how long it takes"
    assert {(budget.most, budget.limit) for budget in found[1:]} == {(1.25 * seconds, 3.75 * seconds + WAITS_S)}
    assert all(budget.wall >= budget.limit + 15.0 for budget in found), "there is room for what follows it"
    assert f"it took {seconds:g} s, and a result that took over a quarter more is not kept" in warning
