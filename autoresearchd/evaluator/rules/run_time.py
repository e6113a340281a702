"""How long a run may take, and whether a program was better only for having trained longer.

A result that could be kept has to come from a run that took no longer than the baseline's runs, which show what loading
really takes here, and a margin. A busy machine slows loading down, and not the training, which ends by the clock: time
is therefore counted twice, as it passed, with a wide margin, and as the processors worked, at the baseline's rate, with
a narrow one. A program that does not read its budget ends when its work is done: its runs are held to the whole time of
the baseline's (``execution.training_time``), counted the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median

from autoresearchd.domain.experiment import Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import SLOWER, WAITS_S, Budget, Task
from autoresearchd.evaluator.measure.measurement import TRAINING
from autoresearchd.evaluator.rules.program_text import reads


def needed(budget: Budget, baseline: Iterable[float]) -> float:
    """Seconds that a run has to be allowed, by how long the baseline's runs took; the task's own where that is more."""
    beyond = max((seconds - budget.training for seconds in baseline), default=budget.wall - budget.training)
    return max(budget.wall, budget.training + SLOWER * beyond)


def allowed(task: Task, baseline: Iterable[float], most: float | None = None) -> Task:
    """The task as a run of it is to be started, by how long the baseline's runs took; most: see ``Pace``."""
    budget = replace(task.execution.budget, most=most)
    if not task.execution.timeout_named:
        wall = needed(budget, baseline)
        # what follows training has as long as ever
        wall = wall if most is None else max(wall, wall + budget.limit - budget.training)
        budget = replace(budget, wall=wall)
    return replace(task, execution=replace(task.execution, budget=budget))


BUDGET_VARIABLE = "AUTORESEARCHD_TIME_BUDGET"
HELD = "(training_time: baseline)"
"""What the reason of a decision ends with where training took longer than the baseline allows."""
SHARE = 0.25
"""Of the budget: what a program may take beyond the start-up that was measured, whatever that was."""

ERRS = 0.03
"""Of a run's processor time: by so much it may be off, and what is kept must take no more than SHARE more in truth."""

FAR = 3.0
"""In σ: a run that is further behind the best leads to no keep, be it as a tie or by its next runs."""
STARVED = 0.8
"""Of the processor time per second of other runs of the program: a run with less has been kept waiting."""
STARVED_S = 5.0
"""Seconds of training below which that is the noise of a moment, and is not looked at."""
BUSY = 0.5
"""Processor time per second of a program that is held back by nothing but the processor."""
LEAST_S = 0.5
"""Seconds by the clock that no start-up is refused for: a cold disk takes them."""
WORK_S = 0.15
"""Seconds of processor time that no program is refused for: what is imported takes them, now more and now less."""
WORST = 1.1
"""Of the baseline's slowest run: a processor that others share does the same work in more seconds."""
IDLE_S = 2.0
"""Seconds by the clock that a program which mostly waits may take beyond its baseline: a busy machine takes them."""
PLAINLY, PLAINLY_S = 3.0, 30.0
"""A baseline that took so many budgets, and so many seconds more, did not end by its budget, whatever it reads."""
OTHER, OTHER_S = 2.0, 2.0
"""From so much more than its budget, or less by the factor, a baseline's time is told to the user beside it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How the baseline's runs went.

    startup: the most seconds that one took beyond the budget; busy: the most seconds of processor time per second.
    whole, work: the most seconds that one took, and seconds of processor time of a result that may be kept, where runs
    are held to the baseline's own time; None: to the budget. timed: the program reads its budget and ends by the clock.
    """

    startup: float
    busy: float
    whole: float | None = None
    timed: bool = True
    work: float = 0.0

    @property
    def most(self) -> float | None:
        """Seconds of training of a result that may be kept, where runs are held to the baseline's own time."""
        return None if self.whole is None else self.whole + max(SHARE * self.whole, LEAST_S)


def pace_of(task: Task, texts: Mapping[str, str], baseline: Iterable[StageResult]) -> Pace | None:
    """The pace of the baseline's runs, by their stages and by the texts of its files; None where none is known."""
    stages = [stage for stage in baseline if stage.name == TRAINING and stage.duration_s > 0]
    if not stages:
        return None
    longest, budget = max(stage.duration_s for stage in stages), task.execution.budget.training
    named, timed = task.execution.training_time, reads_budget(task, texts)
    own = not timed or longest > PLAINLY * budget + PLAINLY_S if named == "auto" else named == "baseline"
    work = [stage.cpu_s for stage in stages]
    return Pace(
        max(0.0, longest - budget),
        max(stage.cpu_s / stage.duration_s for stage in stages),
        longest if own else None,
        timed,
        max(median(work) + max((SHARE - ERRS) * median(work), WORK_S), WORST * max(work)) if own else 0.0,
    )


def reads_budget(task: Task, texts: Mapping[str, str]) -> bool:
    """Whether the command, or one of some texts by path, reads how long the program may train."""
    return reads(BUDGET_VARIABLE, texts, task.execution.run_command)


def about_budget(task: Task, texts: Mapping[str, str], took: float | None = None) -> tuple[str, ...]:
    """What the user should know of a program and its budget, a sentence each; nothing where task.yaml settles it."""
    if task.execution.training_time != "auto":
        return ()
    budget, words, ends = task.execution.budget.training, [], reads_budget(task, texts)
    if not ends:
        words.append(
            f"the program does not read {BUDGET_VARIABLE}, so its budget of {budget:g} s does not end it: experiments "
            f"are held to the baseline's own time, +{SHARE:.0%}. Let it train for so many seconds to give it a fixed "
            "time, or let it grow with `training_time: budget` under execution in task.yaml"
        )
    if took is not None and took > OTHER * budget + OTHER_S:
        which = "loading takes the rest, or it does not end by its budget" if ends else "nothing ends it by that"
        words.append(f"training took {took:.3g} s, and the budget is {budget:g} s: {which}")
    elif took is not None and took < budget / OTHER:
        words.append(f"training took {took:.2g} s of a budget of {budget:g} s: the budget does not bind")
    return tuple(words)


def overrun(task: Task, result: RunResult, pace: Pace, before: Iterable[StageResult] = ()) -> str:
    """How a run trained beyond what it is held to, in words; empty where it did not.

    before: the stages of the program's other runs. Held to the baseline's work, all of them are, on average: one run
    of several that met a busy moment refuses no program.
    """
    stage = result.stage(TRAINING)
    if stage is None:
        return ""
    if pace.most is None:
        return _beyond_budget(task, stage, pace)
    worked = fmean([stage.cpu_s, *(other.cpu_s for other in before if other.name == TRAINING)])
    return _beyond_baseline(task, stage, worked, pace, pace.most)


def _beyond_baseline(task: Task, stage: StageResult, worked: float, pace: Pace, most: float) -> str:
    whole = pace.whole or 0.0
    if stage.duration_s >= SLOWER * most + WAITS_S:
        took = f"took {stage.duration_s:.3g} s; the baseline takes {whole:.3g} s and {most:.3g} s are allowed"
    elif pace.busy == 0 or (task.profile == "cuda" and pace.busy < BUSY):  # it waits for its GPU, or nothing is told
        allowed = max(most, whole + IDLE_S)
        if stage.duration_s <= allowed:
            return ""
        took = f"took {stage.duration_s:.3g} s; the baseline takes {whole:.3g} s and {allowed:.3g} s are allowed"
    elif worked > pace.work:
        took = f"took {worked:.3g} s of processor time; by the baseline's own {pace.work:.3g} s are allowed"
    else:
        return ""
    return f"{TRAINING} {took} {HELD}"


def _beyond_budget(task: Task, stage: StageResult, pace: Pace) -> str:
    budget = task.execution.budget.training
    worked = min(stage.duration_s, stage.cpu_s / pace.busy) if pace.busy > 0 else 0.0
    margin = max(pace.startup, SHARE * budget)
    if worked > budget + pace.startup + margin:
        limit = pace.startup + margin
    elif pace.timed and stage.duration_s > budget + SLOWER * pace.startup + max(SHARE * budget, LEAST_S):
        limit = SLOWER * pace.startup + max(SHARE * budget, LEAST_S)
    else:
        return ""
    return (
        f"{TRAINING} took {stage.duration_s:.3g} s: the budget is {budget:g} s, and the baseline's runs needed "
        f"{pace.startup:.2g} s beside it; what takes more than {budget + limit:.3g} s cannot be the best "
        f"(end training after {BUDGET_VARIABLE} seconds)"
    )


BUSY_MACHINE = "this machine was busy"


def starved(result: RunResult, others: Iterable[StageResult]) -> str:
    """That a run was kept waiting for the processor, in words; empty where other runs of the program do not show it.

    As one of few it could hide every gain in its σ. For trusted programs only: one that sleeps looks the same.
    """
    own = result.stage(TRAINING)
    shares = [s.cpu_s / s.duration_s for s in others if s.name == TRAINING and s.duration_s >= STARVED_S]
    usual = max(shares, default=0.0)
    if own is None or own.duration_s < STARVED_S or own.cpu_s <= 0 or usual < BUSY:
        return ""
    share = own.cpu_s / own.duration_s
    if share >= STARVED * usual:
        return ""
    return f"{BUSY_MACHINE}: {share:.0%} of a processor, where the same program had {usual:.0%}"


def held(
    task: Task,
    result: RunResult,
    measurement: Measurement,
    pace: Pace | None,
    *,
    best: float | None,
    sigma: float | None,
    before: Iterable[StageResult] = (),
) -> Measurement:
    """What a run gave, or what takes its place where it could be kept only for having trained beyond its budget.

    before: the stages of the program's other runs (``overrun``).
    """
    value = measurement.value
    if pace is None:
        return measurement
    # It is no failure to take longer than a program that nobody told how long to train, but no improvement.
    label = Label.BUDGET_OVERRUN if pace.most is None else Label.CONSTRAINT
    if pace.most is not None and measurement.label is Label.BUDGET_OVERRUN:  # it was ended
        return Measurement(label, detail=overrun(task, result, pace) or measurement.detail, curve=measurement.curve)
    if best is None or value is None or measurement.label is not Label.NONE:
        return measurement
    if not task.metric.better(value, best) and abs(value - best) > FAR * (sigma or 0.0):
        return measurement
    told = overrun(task, result, pace, before)
    if told and pace.most is not None:
        told = f"{task.metric.name} {value:.6g}, but {told}"
    return Measurement(label, detail=told, curve=measurement.curve) if told else measurement
