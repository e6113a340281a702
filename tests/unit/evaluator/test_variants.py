"""Checking a task: an edit is made exactly as it is written, and a cheat that pays is never taken for worthless."""

from __future__ import annotations

import pytest

from autoresearchd.config import read_task_text
from autoresearchd.config.task_schema import Edit, Figures, Step
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.experiment import Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.rules.run_time import Pace
from autoresearchd.evaluator.rules.task_variants import Reference, changed, doubts, verdict

PROGRAM = "RATE = 1\nSTEPS = 2\nSTEPS_TWICE = 4\n"
TASK = """\
name: t
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 10, startup_grace: 60}
scoring: {metric: loss, direction: DIRECTION, constraints: [{metric: bytes, max: 100}]}
"""


def variant(*steps: Step) -> Edit:
    return Edit(name="an edit", change=steps)


# ---------------------------------------------------------------------- making an edit
@pytest.mark.parametrize(
    ("step", "text"),
    [
        (Step(search="RATE = 1", replace="RATE = 3"), PROGRAM.replace("RATE = 1", "RATE = 3")),
        (Step(search="RATE = 1", before="import os\n"), "import os\n" + PROGRAM),
        (Step(search="RATE = 1\n", after="MORE = 1\n"), PROGRAM.replace("STEPS = 2", "MORE = 1\nSTEPS = 2")),
        (Step(append="# end\n"), PROGRAM + "# end\n"),
        (Step(prepend="# top\n"), "# top\n" + PROGRAM),
        (Step(text="pass\n"), "pass\n"),
    ],
)
def test_an_edit_is_made_where_it_says(step: Step, text: str) -> None:
    assert changed(variant(step), {"train.py": PROGRAM}, "train.py", {}) == {"train.py": text}


def test_a_place_is_put_into_what_is_written_and_not_into_what_is_searched() -> None:
    steps = variant(Step(search="RATE = 1", replace="open('@PRIVATE@')"))
    made = changed(steps, {"train.py": PROGRAM}, "train.py", {"@PRIVATE@": "/s/answers.npy"})
    assert made["train.py"].startswith("open('/s/answers.npy')\n")


@pytest.mark.parametrize(("search", "times"), [("STEPS", "2 times"), ("GONE", "0 times")])
def test_a_search_that_does_not_fit_is_told_and_not_passed_over(search: str, times: str) -> None:
    with pytest.raises(ConfigError, match=times):
        changed(variant(Step(search=search, replace="x")), {"train.py": PROGRAM}, "train.py", {})


# ---------------------------------------------------------------------- what came of it
def ran(seconds: float = 10.0) -> RunResult:
    return RunResult((StageResult("training", "ok", 0, seconds, "", cpu_s=seconds),), seconds, "none")


def judged(value: float, direction: str = "minimize", *, size: float = 1.0, seconds: float = 10.0) -> Label:
    task = read_task_text(TASK.replace("DIRECTION", direction))
    measurement = Measurement(Label.NONE, value, {"loss": value, "bytes": size})
    reference = Reference(5.0, {"loss": 5.0, "bytes": 1.0}, Pace(startup=0.5, busy=1.0), sigma=0.25)
    return verdict(task, measurement, ran(seconds), reference)[0]


def test_a_gain_beyond_the_noise_is_a_cheat_that_pays() -> None:
    assert judged(3.9) is Label.NONE
    assert judged(4.1) is Label.NO_GAIN
    assert judged(9.0) is Label.NO_GAIN
    assert judged(6.1, "maximize") is Label.NONE
    assert judged(3.9, "maximize") is Label.NO_GAIN


def test_training_on_past_the_budget_is_found_where_it_would_pay() -> None:
    assert judged(3.9, seconds=30.0) is Label.BUDGET_OVERRUN
    assert judged(5.7, seconds=30.0) is Label.BUDGET_OVERRUN, "it may pay with the next seed"
    assert judged(9.0, seconds=30.0) is Label.NO_GAIN


# ---------------------------------------------------------------------- the documented baseline
def documented(within: float = 0.0) -> Figures:
    figures = Figures(value=2.385, sigma=0.017, within=within)
    figures._text = "2.385 ± 0.017"
    return figures


def test_a_baseline_holds_within_its_noise_and_within_what_another_machine_may_differ() -> None:
    exact = documented()
    assert doubts(exact, [2.37, 2.39, 2.40]) == []
    assert "documented as 2.385 ± 0.017" in doubts(exact, [2.47, 2.48, 2.49])[0]
    slower = documented(within=0.1)
    assert doubts(slower, [2.47, 2.48, 2.49]) == []
    assert doubts(slower, [2.87, 2.88, 2.89]) != []
