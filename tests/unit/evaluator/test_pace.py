"""A program that trains for longer than its budget must not be the best for that; one that waits is not to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Budget, Task
from autoresearchd.evaluator.pace import Pace, held, overrun, pace_of, told_pace
from tests.unit.evaluator.builders import result, stage, task


def toy(budget: float, grace: float = 1000.0) -> Task:
    plain = task()
    return replace(plain, execution=replace(plain.execution, budget=Budget(budget, grace, 10 * (budget + grace))))


def took(seconds: float, cpu: float) -> RunResult:
    return result(replace(stage(), duration_s=seconds, cpu_s=cpu))


def honest(budget: float, startup: float, load: float) -> RunResult:
    """A program of one thread that ends by the clock, on a machine that gives it a share of its time."""
    return took(budget + startup * load, budget / load + startup)


LOADS = st.floats(1.0, 3.0)


@given(st.floats(0.5, 600.0), st.floats(0.05, 120.0), LOADS, LOADS)
def test_an_honest_program_is_never_blamed_for_a_machine_that_is_three_times_slower(
    budget: float, startup: float, then: float, now: float
) -> None:
    pace = pace_of(toy(budget), honest(budget, startup, then).stages)
    assert pace is not None
    assert overrun(toy(budget), honest(budget, startup, now), pace) == ""


@pytest.mark.parametrize("trained", [2.6, 4.0, 9.0, 10.5])
def test_seconds_of_training_beyond_a_short_budget_are_found(trained: float) -> None:
    pace = pace_of(toy(1.5), [s for run in (took(1.9, 1.85), took(1.85, 1.8), took(1.95, 1.8)) for s in run.stages])
    assert pace is not None
    told = overrun(toy(1.5), took(trained + 0.35, trained + 0.3), pace)
    assert "the budget is 1.5 s, and the baseline's runs needed 0.45 s beside it" in told


@pytest.mark.parametrize("trained", [90.0, 400.0])
def test_a_program_that_hides_what_it_computes_gains_little_by_that(trained: float) -> None:
    pace = Pace(startup=4.0, busy=1.0)
    assert overrun(toy(60.0), took(trained, cpu=0.1), pace)
    assert not overrun(toy(60.0), took(75.0, cpu=0.1), pace)


def test_loading_that_takes_as_long_as_the_baseline_s_is_allowed_for_again() -> None:
    pace = pace_of(toy(300.0), took(345.0, 345.0).stages)
    assert pace is not None
    assert not overrun(toy(300.0), took(390.0, 390.0), pace), "a larger model is compiled for longer"


def test_more_threads_are_no_overrun_and_neither_is_a_quick_end() -> None:
    pace = Pace(startup=1.0, busy=1.0)
    assert not overrun(toy(10.0), took(11.0, 88.0), pace)
    assert not overrun(toy(10.0), took(2.0, 2.0), pace)


def test_without_the_baseline_s_results_nothing_is_known() -> None:
    assert pace_of(toy(1.0), []) is None
    assert pace_of(toy(1.0), result().stages) is None
    assert overrun(toy(1.0), result(), Pace(0.0, 0.0)) == ""


def test_an_executor_that_tells_no_processor_time_is_judged_by_the_clock() -> None:
    pace = pace_of(toy(10.0), took(11.0, 0.0).stages)
    assert pace == Pace(1.0, 0.0)
    assert not overrun(toy(10.0), took(15.0, 0.0), pace)
    assert overrun(toy(10.0), took(16.0, 0.0), pace)


@pytest.mark.parametrize(
    ("value", "sigma", "label"),
    [
        (0.9, 0.01, Label.BUDGET_OVERRUN),
        (1.02, 0.01, Label.BUDGET_OVERRUN),
        (1.04, 0.01, Label.NONE),
        (0.9, None, Label.BUDGET_OVERRUN),
        (1.02, None, Label.NONE),
    ],
)
def test_only_what_could_be_kept_is_held_to_its_budget_and_that_includes_ties(
    value: float, sigma: float | None, label: Label
) -> None:
    long, pace = took(40.0, 40.0), Pace(startup=1.0, busy=1.0)
    found = held(toy(10.0), long, Measurement(Label.NONE, value), pace, best=1.0, sigma=sigma)
    assert found.label is label


def test_nobody_is_held_to_a_pace_that_is_not_known_or_before_there_is_anything_to_beat() -> None:
    long, gave = took(40.0, 40.0), Measurement(Label.NONE, 0.5)
    assert held(toy(10.0), long, gave, None, best=1.0, sigma=0.1) is gave
    assert held(toy(10.0), long, gave, Pace(1.0, 1.0), best=None, sigma=None) is gave


def test_a_program_that_is_not_told_how_long_to_train_has_no_pace() -> None:
    stages = took(11.0, 11.0).stages
    assert told_pace(toy(10.0), ["train()"], stages) is None
    assert told_pace(toy(10.0), ["limit = environ['AUTORESEARCHD_TIME_BUDGET']"], stages) == Pace(1.0, 1.0)
