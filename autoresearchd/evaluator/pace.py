"""Whether a program kept to its budget, or was better only for having trained longer.

``execution.budget`` is told to the program, which ends its training itself; ``startup_grace`` comes on top, for loading
and compiling, and the executor ends what takes longer than both. A program that spends the grace on training gains
whatever the grace is of the budget. So a result that could be kept has to come from a run that took no
longer than the baseline's runs, which show what loading really takes here, and a margin.

A machine that does other work as well slows loading down, and not the training, which ends by the clock: what took
long and computed little was kept waiting. Time is therefore counted twice: as it passed, with a wide margin, and as the
processors worked, at the rate at which the baseline's did, with a narrow one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoresearchd.domain.experiment import Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.measure import TRAINING

BUDGET_VARIABLE = "AUTORESEARCHD_TIME_BUDGET"
SHARE = 0.25
"""Of the budget: what a program may take beyond the start-up that was measured, whatever that was."""

FAR = 3.0
"""In σ: a run that is further behind the best leads to no keep, be it as a tie or by its next runs."""
SLOWER = 3.0
"""How much longer than the baseline's a start-up may take by the clock; by the work done it may take twice as much."""
STARVED = 0.8
"""Of the processor time per second of other runs of the program: a run with less has been kept waiting."""
STARVED_S = 5.0
"""Seconds of training below which that is the noise of a moment, and is not looked at."""
BUSY = 0.5
"""Processor time per second of a program that is held back by nothing but the processor."""
LEAST_S = 0.5
"""Seconds by the clock that no start-up is refused for: a cold disk takes them."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How the baseline's runs went.

    startup: the most seconds that one took beyond the budget; busy: seconds of processor time per second, the most.
    """

    startup: float
    busy: float


def told_pace(task: Task, texts: Iterable[str], baseline: Iterable[StageResult]) -> Pace | None:
    """The pace of the baseline's runs; None where it is not known, or where nobody told the program how long to train.

    texts: the baseline's program and the protected ones; without a budget it takes as long as budget and grace allow.
    """
    told = any(BUDGET_VARIABLE in text for text in (task.execution.run_command, *texts))
    return pace_of(task, baseline) if told else None


def pace_of(task: Task, baseline: Iterable[StageResult]) -> Pace | None:
    """The pace of the baseline's runs, by how their stages went; None where none is known."""
    stages = [stage for stage in baseline if stage.name == TRAINING and stage.duration_s > 0]
    if not stages:
        return None
    longest = max(stage.duration_s for stage in stages)
    return Pace(
        max(0.0, longest - task.execution.budget.training), max(stage.cpu_s / stage.duration_s for stage in stages)
    )


def overrun(task: Task, result: RunResult, pace: Pace) -> str:
    """How a run trained beyond its budget, in words; empty where it did not."""
    stage, budget = result.stage(TRAINING), task.execution.budget.training
    if stage is None:
        return ""
    worked = min(stage.duration_s, stage.cpu_s / pace.busy) if pace.busy > 0 else 0.0
    margin = max(pace.startup, SHARE * budget)
    if worked > budget + pace.startup + margin:
        limit = pace.startup + margin
    elif stage.duration_s > budget + SLOWER * pace.startup + max(SHARE * budget, LEAST_S):
        limit = SLOWER * pace.startup + max(SHARE * budget, LEAST_S)
    else:
        return ""
    return (
        f"{TRAINING} took {stage.duration_s:.3g} s: the budget is {budget:g} s, and the baseline's runs needed "
        f"{pace.startup:.2g} s beside it; what takes more than {budget + limit:.3g} s cannot be the best "
        f"(end training after {BUDGET_VARIABLE} seconds)"
    )


def starved(result: RunResult, others: Iterable[StageResult]) -> str:
    """That a run was kept waiting for the processor, in words; empty where other runs of the program do not show it.

    Something else ran on the machine: what such a run measures is worth less, and as one of the few runs that σ is
    known from it can hide every gain of a session. For programs that are trusted only: one that sleeps looks the same.

    Args:
        result: how the run went.
        others: stages of other runs of the very same program.
    """
    own = result.stage(TRAINING)
    shares = [s.cpu_s / s.duration_s for s in others if s.name == TRAINING and s.duration_s >= STARVED_S]
    usual = max(shares, default=0.0)
    if own is None or own.duration_s < STARVED_S or own.cpu_s <= 0 or usual < BUSY:
        return ""
    share = own.cpu_s / own.duration_s
    if share >= STARVED * usual:
        return ""
    return f"this machine was busy: {share:.0%} of a processor, where the same program had {usual:.0%}"


def held(
    task: Task,
    result: RunResult,
    measurement: Measurement,
    pace: Pace | None,
    *,
    best: float | None,
    sigma: float | None,
) -> Measurement:
    """What a run gave, or what takes its place where it could be kept only for having trained beyond its budget.

    Args:
        task: what is run.
        result: how the run went.
        measurement: what it gave.
        pace: the baseline's; None: it holds nobody to anything.
        best: the metric of the incumbent; None while there is none.
        sigma: of the metric; None while it is not known.
    """
    value = measurement.value
    if pace is None or best is None or value is None or measurement.label is not Label.NONE:
        return measurement
    if not task.metric.better(value, best) and abs(value - best) > FAR * (sigma or 0.0):
        return measurement
    told = overrun(task, result, pace)
    return Measurement(Label.BUDGET_OVERRUN, detail=told, curve=measurement.curve) if told else measurement
