"""What a run gave: one label, and the metric where the label says that it is good.

Everything fails closed. The executor's facts come first, then the exit codes, then what was printed; a number printed
by a run that failed is never a metric. Where the task has an evaluation, only what the evaluation printed can be the
metric or replace a figure that it gave: the job's own words add nothing but further figures (memory, speed) and the
curve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from autoresearchd.domain.experiment import CurvePoint, Measurement, RunResult, StageResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import SLOWER, WAITS_S, Task
from autoresearchd.evaluator.curve import CurveParser, read_curve
from autoresearchd.evaluator.failure import diagnose, how_it_ended
from autoresearchd.evaluator.parse import example_pattern, parse_metrics
from autoresearchd.evaluator.text import as_lines, shorten
from autoresearchd.evaluator.validation_set import sizes

TRAINING = "training"
EVALUATION = "evaluation"
CHECK = "check-"
EVALUATION_FAILED = "the evaluation failed"
"""How the detail of a run begins whose program ended as it should, and whose scorer did not."""

_BY_SHELL = {126: " (its command may not be executed)", 127: " (its command was not found)"}
"""What a shell means by its exit codes."""

_SURROUNDINGS = {
    "killed": (Label.INTERRUPTED, "ended by autoresearchd"),
    "lost": (Label.HOST_LOST, "the process that watched over the run is gone"),
    "disk_full": (Label.DISK_FULL, "no space left on device"),
}
"""What says nothing about the experiment: wherever it happened, the run is done again."""

_LIMITS = {"oom": Label.OOM, "timeout": Label.TIMEOUT, "budget_overrun": Label.BUDGET_OVERRUN}
_VERDICTS = {
    label.value: label for label in (Label.NOT_CAUSAL, Label.METRIC_TAMPERING, Label.SIZE_BLOCKED, Label.GATE_MISS)
}
_VERDICT_LINE = re.compile(r"^LABEL[ \t]{1,8}([a-z_]{1,40})[ \t]{0,8}$", re.MULTILINE)
_VERDICT_TAIL = 64 * 1024
_HUGE = 1e100
"""No metric is that large, and squares of larger numbers overflow."""


def measure(task: Task, result: RunResult, logs: Mapping[str, str], *, result_file: str | None = None) -> Measurement:
    """Read a finished run.

    Args:
        task: the task.
        result: facts from the executor, stages in the order in which they ran.
        logs: text of each stage's log, by the stage's name.
        result_file: text of the file that the *job* wrote its result to. Self-reported, like its log.
    """
    curve = read_curve(logs.get(TRAINING, ""), task.curve.pattern, task.execution.budget.training)
    label, detail = _trouble(task, result, logs, curve)
    if label is not Label.NONE:
        gates = _gates(task, logs) if label in _VERDICTS.values() else {}
        detail += f": {', '.join(sorted(gates))}" if gates else ""
        return Measurement(label, metrics=gates, detail=detail, curve=curve.points)
    return _metric(task, logs, result_file, curve.points)


# ---------------------------------------------------------------------- did everything end well?
def _trouble(task: Task, result: RunResult, logs: Mapping[str, str], curve: CurveParser) -> tuple[Label, str]:
    """The first thing that went wrong, NONE when nothing did."""
    for stage in result.stages:
        if stage.outcome in _SURROUNDINGS:
            label, meaning = _SURROUNDINGS[stage.outcome]
            return label, f"{stage.name}: {stage.detail or meaning}"
    if not result.stages:
        return Label.HOST_LOST, "the executor started no process"
    for stage in result.stages:
        if stage.outcome != "ok" or stage.exit_code != 0:
            return _failed(task, stage, logs.get(stage.name, ""), curve)
    if result.stage(TRAINING) is None:
        return Label.ERROR, "training was never started"
    if task.evaluation is None:
        return Label.NONE, ""
    if result.stage(EVALUATION) is None:
        return Label.METRIC_MISSING, "the evaluation was never started, and only it gives the metric"
    # An evaluation that names a fault and then exits with 0 has still named a fault.
    verdict = _verdict(logs.get(EVALUATION, ""))
    return (verdict, f"the evaluation says {verdict.value}") if verdict else (Label.NONE, "")


def _failed(task: Task, stage: StageResult, log: str, curve: CurveParser) -> tuple[Label, str]:
    """Label and detail of a stage that did not end well."""
    if stage.name.startswith(CHECK):
        return Label.CHECK_FAILED, _failed_check(task, stage, log)
    if stage.outcome in _LIMITS:
        return _LIMITS[stage.outcome], _limit_words(task, stage)
    if stage.outcome == "tampered":
        return Label.METRIC_TAMPERING, f"{stage.name} was not started: {stage.detail}"
    if stage.beyond:  # not as it looks: the signal that ended it says "out of memory"
        return Label.ERROR, f"{stage.name} was ended: {stage.detail}"
    if stage.name == EVALUATION:
        verdict = _verdict(log)
        if verdict:
            return verdict, f"the evaluation says {verdict.value}"
        # Nothing of its log goes into the detail: policies read that, and the log may hold validation data.
        said = f"{how_it_ended(stage.exit_code)}{_BY_SHELL.get(stage.exit_code or 0, '')}"
        return Label.ERROR, f"{EVALUATION_FAILED}: it {said}; see {EVALUATION}.log"
    label, words = diagnose(log, stage.exit_code, diverged=curve.diverged)
    if stage.exit_code is None and stage.detail:
        return Label.ERROR, f"{stage.name} was never started: {stage.detail}"
    if stage.exit_code == 0:
        return label, f"{stage.name} failed: {stage.detail or words}"
    return label, f"{stage.name} {how_it_ended(stage.exit_code)}: {words}"


def _failed_check(task: Task, stage: StageResult, log: str) -> str:
    index = stage.name.removeprefix(CHECK)
    known = index.isascii() and index.isdigit() and int(index) < len(task.checks)
    what = f"`{shorten(task.checks[int(index)].command, 120)}`" if known else stage.name
    if stage.outcome == "timeout":
        return f"{what} did not end within {task.checks[int(index)].timeout:g} s" if known else f"{what} timed out"
    _, words = diagnose(log, stage.exit_code)
    return f"{what} {how_it_ended(stage.exit_code)}: {words}"


def _limit_words(task: Task, stage: StageResult) -> str:
    budget = task.execution.budget
    if stage.detail:
        return f"{stage.name}: {stage.detail}"
    if stage.outcome == "timeout":
        return f"{stage.name} was stopped after {stage.duration_s:.0f} s: the whole run may take {budget.wall:g} s"
    if stage.outcome == "budget_overrun":
        made_of = f"budget {budget.training:g} s + startup_grace {budget.grace:g} s"
        if budget.most is not None:
            made_of = f"{SLOWER:g} × {budget.most:.3g} s + {WAITS_S:g} s (training_time: baseline)"
        return f"{stage.name} was killed after {budget.limit:.3g} s, its limit: {made_of}"
    limit = task.execution.memory_mb
    return f"{stage.name} needed more memory than " + (f"its {limit} MB" if limit else "there was")


def _verdict(log: str) -> Label | None:
    """The last ``LABEL <x>`` line of an evaluation, if ``<x>`` is one that an evaluation may give."""
    found = [m for m in _VERDICT_LINE.findall(as_lines(log[-_VERDICT_TAIL:])) if m in _VERDICTS]
    return _VERDICTS[found[-1]] if found else None


def _gates(task: Task, logs: Mapping[str, str]) -> dict[str, float]:
    """Which of the task's further metrics an evaluation that refused a result set to zero: ``causal``, for example.

    Their names are the task's own and the value is fixed, so that nothing else of the evaluation's log gets out.
    """
    found = parse_metrics(logs.get(EVALUATION, ""), task.scoring)
    return {name: 0.0 for name in task.scoring.metrics if found.get(name) == 0.0 and name != task.metric.name}


# ---------------------------------------------------------------------- what did it print?
def _metric(task: Task, logs: Mapping[str, str], result_file: str | None, curve: tuple[CurvePoint, ...]) -> Measurement:
    name = task.metric.name
    own = parse_metrics(logs.get(TRAINING, ""), task.scoring, result_file=result_file)
    claimed = None
    metrics, where = own, TRAINING
    if task.evaluation is not None:
        claimed = own.pop(name, None)
        metrics = {**own, **parse_metrics(logs.get(EVALUATION, ""), task.scoring)}
        where = EVALUATION
    else:  # who computes its own score can compute it on other data
        metrics = {**sizes(logs.get(TRAINING, "")), **own}
    finite = {k: v for k, v in metrics.items() if abs(v) < _HUGE}  # false of NaN too
    if name not in metrics:
        aside = " (what the job itself printed does not count)" if claimed is not None else ""
        return Measurement(
            Label.METRIC_MISSING,
            metrics=finite,
            detail=_missing(task, where, metrics) + aside + _hint(task, logs.get(TRAINING, "")),
            curve=curve,
        )
    if name not in finite:
        beyond = f", and what is beyond {_HUGE:g} counts as infinite" if math.isfinite(metrics[name]) else ""
        detail = f"{name} is {metrics[name]} in {where}.log{beyond}"
        return Measurement(Label.NON_FINITE, metrics=finite, detail=detail, curve=curve)
    return Measurement(Label.NONE, finite[name], finite, curve=curve)


def _hint(task: Task, log: str) -> str:
    """How task.yaml can say where the metric is; made of the job's own line, never of the evaluation's log."""
    if task.scoring.parse_mode == "regex":
        return ""
    pattern = "" if task.evaluation is not None else example_pattern(log, task.metric.name)
    return (
        f"; its line can be named in task.yaml: `scoring: {{parse_mode: regex, pattern: '{pattern}'}}`"
        if pattern
        else ""
    )


def _missing(task: Task, where: str, metrics: Mapping[str, float]) -> str:
    name, scoring = task.metric.name, task.scoring
    forms = {
        "metric": f"a line `METRIC {name}=<number>`",
        "key_value": f"a line `{name}: <number>`",
        "json": f'a JSON object with the key "{name}"',
        "regex": f"what '{scoring.pattern}' matches",
    }
    wanted = forms.get(scoring.parse_mode, f"`METRIC {name}=<number>`, `{name}: <number>` or JSON")
    places = f"{where}.log" + (f" and {scoring.result_file}" if scoring.result_file and where == TRAINING else "")
    others = ", ".join(sorted(metrics)[:5])
    return f"no {name} in {places}; looked for {wanted}" + (f"; found {others}" if others else "")
