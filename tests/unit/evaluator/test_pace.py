"""A program that trains for longer than its budget must not be the best for that; one that waits is not to blame."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Budget, Task, TrainingTime
from autoresearchd.evaluator.rules.program_text import about_seed
from autoresearchd.evaluator.rules.run_time import Pace, about_budget, held, overrun, pace_of, reads_budget, starved
from tests.unit.evaluator.builders import result, stage, task

READS = {"train.py": "import os\nlimit = os.environ['AUTORESEARCHD_TIME_BUDGET']\n"}
COUNTS = {"train.py": "for step in range(400):\n    train()\n"}


def toy(budget: float, grace: float = 1000.0, held_to: TrainingTime = "auto") -> Task:
    plain = task()
    clock = Budget(budget, grace, 10 * (budget + grace))
    return replace(plain, execution=replace(plain.execution, budget=clock, training_time=held_to))


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
    pace = pace_of(toy(budget, held_to="budget"), READS, honest(budget, startup, then).stages)
    assert overrun(toy(budget), honest(budget, startup, now), pace) == ""


@pytest.mark.parametrize("trained", [2.6, 4.0, 9.0, 10.5])
def test_seconds_of_training_beyond_a_short_budget_are_found(trained: float) -> None:
    runs = took(1.9, 1.85), took(1.85, 1.8), took(1.95, 1.8)
    pace = pace_of(toy(1.5), READS, [s for run in runs for s in run.stages])
    told = overrun(toy(1.5), took(trained + 0.35, trained + 0.3), pace)
    assert "the budget is 1.5 s, and the baseline's runs needed 0.45 s beside it" in told


@pytest.mark.parametrize("trained", [90.0, 400.0])
def test_a_program_that_hides_what_it_computes_gains_little_by_that(trained: float) -> None:
    pace = Pace(startup=4.0, busy=1.0)
    assert overrun(toy(60.0), took(trained, cpu=0.1), pace)
    assert not overrun(toy(60.0), took(75.0, cpu=0.1), pace)


@pytest.mark.parametrize(
    ("value", "sigma", "label"),
    [
        (0.9, 0.01, Label.BUDGET_OVERRUN), (1.02, 0.01, Label.BUDGET_OVERRUN), (1.04, 0.01, Label.NONE),
        (0.9, None, Label.BUDGET_OVERRUN), (1.02, None, Label.NONE),
    ],
)  # fmt: skip
def test_only_what_could_be_kept_is_held_to_its_budget_and_that_includes_ties(
    value: float, sigma: float | None, label: Label
) -> None:
    long, pace = took(40.0, 40.0), Pace(startup=1.0, busy=1.0)
    found = held(toy(10.0), long, Measurement(Label.NONE, value), pace, best=1.0, sigma=sigma)
    assert found.label is label


# ---------------------------------------------------------------------- programs that do not end by their budget
def counted(seconds: float, load: float = 1.0) -> RunResult:
    """A program of one thread that ends when its work is done, on a machine that gives it a share of its time."""
    return took(seconds * load, seconds)


def test_without_it_a_search_would_grow_a_program_that_reads_no_budget_until_the_grace_is_full() -> None:
    pace = pace_of(toy(3.0, 60.0), COUNTS, [s for run in (counted(4.0), counted(4.1)) for s in run.stages])
    assert pace == Pace(pytest.approx(1.1), 1.0, 4.1, timed=False, work=pytest.approx(1.22 * 4.05))
    found = held(toy(3.0), counted(57.0), Measurement(Label.NONE, 0.5), pace, best=1.0, sigma=0.01)
    assert (found.label, found.value) == (Label.CONSTRAINT, None)
    assert "training took 57 s; the baseline takes 4.1 s and 5.12 s are allowed (training_time: base" in found.detail
    found = held(toy(3.0), counted(15.0), Measurement(Label.NONE, 0.5), pace, best=1.0, sigma=0.01)
    assert "training took 15 s of processor time; by the baseline's own 4.94 s are allowed" in found.detail


def test_one_run_of_several_that_met_a_busy_moment_refuses_no_program() -> None:
    pace = pace_of(toy(3.0), COUNTS, counted(4.0).stages)
    assert pace is not None
    (before,) = counted(4.4).stages
    assert overrun(toy(3.0), counted(5.2), pace) != ""
    assert overrun(toy(3.0), counted(5.2), pace, [before]) == ""
    assert "took 5 s of processor time" in overrun(toy(3.0), counted(5.6), pace, [before]), "more, on average"


@given(st.floats(0.01, 3000.0), LOADS, LOADS)
def test_the_same_work_on_a_machine_that_is_three_times_slower_is_never_refused(
    seconds: float, then: float, now: float
) -> None:
    quiet, slow = counted(seconds), counted(seconds, then)  # of several runs, one shows what it can have
    pace = pace_of(toy(10.0), COUNTS, (*quiet.stages, *slow.stages))
    assert overrun(toy(10.0), counted(seconds * 1.2, now), pace) == ""


def test_what_a_run_is_held_to_is_the_task_s_word_or_what_the_program_reads() -> None:
    stages = took(11.0, 11.0).stages
    assert pace_of(toy(10.0), READS, stages) == Pace(1.0, 1.0)
    assert pace_of(toy(10.0), COUNTS, stages) == Pace(1.0, 1.0, 11.0, timed=False, work=pytest.approx(1.22 * 11.0))
    assert pace_of(toy(10.0, held_to="budget"), COUNTS, stages) == Pace(1.0, 1.0, timed=False)
    assert pace_of(toy(10.0, held_to="baseline"), READS, stages) == Pace(
        1.0, 1.0, 11.0, work=pytest.approx(1.22 * 11.0)
    )
    plainly = pace_of(toy(1.0), READS, counted(55.0).stages)
    assert plainly.whole == 55.0, "it plainly does not end by it"


@pytest.mark.parametrize(
    ("path", "text", "reads"),
    [
        ("train.py", "limit = float(os.environ['AUTORESEARCHD_TIME_BUDGET'])", True),
        ("train.py", "# ignores AUTORESEARCHD_TIME_BUDGET\nx = 1", False),
        ("train.py", '"""Does not read AUTORESEARCHD_TIME_BUDGET."""', False),
        ("train.py", "x = f'{os.environ}AUTORESEARCHD_TIME_BUDGET'", True),
        ("train.py", "print 'python 2', 'AUTORESEARCHD_TIME_BUDGET'", True),
        ("run.sh", "timeout $AUTORESEARCHD_TIME_BUDGET ./train", True),
        ("train.py", "x = 1", False),
    ],
)
def test_a_program_reads_its_budget_where_its_code_names_it(path: str, text: str, reads: bool) -> None:
    assert reads_budget(toy(10.0), {path: text}) is reads


def test_the_user_is_told_what_a_program_that_reads_no_budget_is_held_to() -> None:
    [told] = about_budget(toy(3.0), COUNTS)
    assert "does not read AUTORESEARCHD_TIME_BUDGET" in told
    assert "held to the baseline's own time, +25%" in told
    assert about_budget(toy(3.0), READS) == ()
    assert about_budget(toy(3.0, held_to="budget"), COUNTS) == about_budget(toy(3.0, held_to="baseline"), COUNTS) == ()


@pytest.mark.parametrize(
    ("budget", "seconds", "words"),
    [
        (3.0, 10.0, "training took 10 s, and the budget is 3 s"),
        (300.0, 0.4, "training took 0.4 s of a budget of 300 s: the budget does not bind"),
        (3.0, 3.4, ""),
        (1.0, 3.9, ""),  # importing torch
        (10.0, 8.0, ""),
    ],
)
def test_a_time_that_has_nothing_to_do_with_the_budget_is_told(budget: float, seconds: float, words: str) -> None:
    told = about_budget(toy(budget), READS, seconds)
    assert len(told) == bool(words)
    assert not told or told[0].startswith(words)


def test_a_run_that_was_kept_waiting_is_told_by_other_runs_of_the_same_program() -> None:
    told = starved(took(18.5, 10.9), took(18.0, 17.1).stages)
    assert told == "this machine was busy: 59% of a processor, where the same program had 95%"


OWN = {"train.py": "import random\nrandom.seed(1234)\n"}


@pytest.mark.parametrize(
    ("path", "text", "named"),
    [
        ("train.py", "# ignores AUTORESEARCHD_SEED\nx = 1", False),
        ("conf/config.yaml", "seed: ${oc.env:AUTORESEARCHD_SEED}", True),
    ],
)
def test_the_seed_is_read_where_the_code_names_it(path: str, text: str, named: bool) -> None:
    assert bool(about_seed(task(), {path: text})) is not named


def test_the_user_of_a_program_with_its_own_seed_is_told_that_luck_may_be_kept_and_what_to_do() -> None:
    [told] = about_seed(task(), OWN)
    assert "does not read AUTORESEARCHD_SEED" in told
    assert "luck of that seed" in told
    assert "`--seed $AUTORESEARCHD_SEED` in run_command" in told
