"""What ``start`` says while it waits: what takes a minute has a name, and the first figure says what it is of."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from autoresearchd.app.background import first_step
from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Label, Phase
from autoresearchd.domain.task import Task
from tests.unit.evaluator.builders import task as make_task

AT = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)


@pytest.fixture
def task() -> Task:
    """A task whose data a command makes."""
    found = make_task()
    return replace(found, execution=replace(found.execution, setup_commands=("python prepare.py",)))


def baseline(*values: float) -> Experiment:
    """A baseline with these results so far."""
    runs = tuple(
        Run(i, 0, i, 7 + i, AT, finished_at=AT, label=Label.NONE, value=value, duration_s=2.0)
        for i, value in enumerate(values)
    )
    return Experiment(1, 0, 0, Phase.RUNNING, "0" * 40, AT, runs=runs)


def test_a_set_up_is_not_called_measuring(task: Task) -> None:
    assert first_step(task, None) == ("setting up: python prepare.py", False)
    bare = replace(task, execution=replace(task.execution, setup_commands=()))
    assert first_step(bare, None) == ("measuring the baseline", False)
    assert first_step(task, baseline()) == ("measuring the baseline", False)


def test_while_a_learner_is_waited_for_nothing_is_said_to_be_set_up(task: Task) -> None:
    assert first_step(task, None, "experiments wait: a learner") == ("experiments wait: a learner", False)
    assert first_step(task, baseline(), "stopping") == ("measuring the baseline", False)


def test_the_first_figure_says_what_it_is_of(task: Task) -> None:
    words, over = first_step(task, baseline(0.113622))
    assert over
    assert words == f"first of 3 baseline runs: {task.metric.name} 0.1136 (2s)"
