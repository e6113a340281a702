"""The decision on an experiment: keep what improves the metric by more than the noise, and say why in one sentence.

A change is kept iff its improvement exceeds 2σ·√(1/n + 1/m), n and m being the good runs of the experiment and of the
incumbent: two standard deviations of the difference of two means. For two single runs that is 2σ·√2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.task import Constraint, Task
from autoresearchd.errors import BaselineError
from autoresearchd.evaluator.confidence import mad_confidence
from autoresearchd.evaluator.noise import Z, estimate_sigma, mean, noise_bar, within_noise
from autoresearchd.evaluator.text import shorten

ARTIFACT_BYTES = "artifact_bytes"

_MEND = {
    Label.METRIC_MISSING: "print `METRIC {metric}=<number>` or `{metric}: <number>` on a line of its own, "
    "or name in scoring.metric what is printed",
    Label.NON_FINITE: "make the unmodified program end with a finite {metric}",
    Label.NAN_LOSS: "make the unmodified program train without a NaN loss",
    Label.TIMEOUT: "raise execution.timeout or lower execution.budget",
    Label.BUDGET_OVERRUN: "end training after AUTORESEARCHD_TIME_BUDGET seconds, "
    "or raise execution.startup_grace if loading takes long",
    Label.OOM: "make the model or the batch smaller, or raise execution.memory_mb",
    Label.CHECK_FAILED: "mend the check, or the program, until the check passes on the unmodified program",
}
_MEND_OTHERWISE = "mend the program until `{command}` runs by itself, then start again"


# ---------------------------------------------------------------------- an experiment
def decide(
    task: Task, experiment: Experiment, incumbent: Experiment, *, sigma: float | None, values: Sequence[float]
) -> Decision:
    """Judge a measured experiment against the incumbent.

    Args:
        task: the task.
        experiment: with its runs ended.
        incumbent: the best kept so far.
        sigma: standard deviation of the metric between seeds; None: unknown, then any strict improvement is kept.
        values: metrics of the segment in order of number, this experiment's last; for the advisory confidence.

    Raises:
        ValueError: the incumbent has no value; it could not have been kept.
    """
    failed = _failed(experiment)
    if failed is not None:
        return _crash(task, failed)
    reference, reference_runs = _reference(incumbent)
    good = experiment.good_runs
    value, metrics = _mean_value(good), _mean_metrics(good)
    delta = task.metric.improvement(value, reference)
    label, why = _broken_constraint(task, metrics, incumbent)
    if label is Label.NONE:
        label, why = _weigh(delta, sigma, len(good), reference_runs)
    status = Status.KEEP if label is Label.NONE else RULES[label].status or Status.DISCARD
    best = value if status is Status.KEEP else reference
    return Decision(
        status=status,
        label=label,
        value=value,
        delta=delta,
        metrics=metrics,
        confidence=mad_confidence(values, values[0] if values else None, best),
        sigma=sigma,
        reason=f"{_comparison(task, value, delta, reference, incumbent)}; {why}.",
    )


def _failed(experiment: Experiment) -> Run | None:
    """The run that makes the experiment a failure: one bad run is enough, however good the others are."""
    for run in experiment.counted_runs:
        if run.label is not Label.NONE or run.value is None or not math.isfinite(run.value):
            return run
    if not experiment.good_runs:
        return Run(0, experiment.number, 0, 0, experiment.started_at, label=Label.ERROR, detail="no run of it ended")
    return None


def _crash(task: Task, run: Run) -> Decision:
    label = run.label
    if label is Label.NONE or RULES[label].status in (Status.KEEP, None):
        label = Label.METRIC_MISSING if run.value is None else Label.NON_FINITE
    status = RULES[label].status or Status.CRASH
    detail = run.detail or f"the run gave no usable {task.metric.name}"
    return Decision(status, label, reason=_sentence(f"{label.value}: {detail}"))


def _weigh(delta: float, sigma: float | None, runs: int, reference_runs: int) -> tuple[Label, str]:
    """NONE when the improvement is more than noise, else NO_GAIN; and the words for it."""
    label = Label.NO_GAIN if within_noise(delta, sigma, runs, reference_runs) else Label.NONE
    if sigma is None:
        verdict = "no gain" if label else "kept as a strict improvement"
        return label, f"{verdict} (the noise σ is not known, so the sign alone decides)"
    bar = _number(noise_bar(sigma, runs, reference_runs))
    bar += f" ({Z:g}σ·√(1/{runs} + 1/{reference_runs}), σ = {_number(sigma)})"
    if label is Label.NONE:
        return label, f"that is more than the noise bar of {bar}"
    return label, f"that is within the noise bar of {bar}" if delta > 0 else "no gain"


def _comparison(task: Task, value: float, delta: float, reference: float, incumbent: Experiment) -> str:
    name = task.metric.name
    if delta == 0:
        return f"{name} {_number(value)} equals that of experiment {incumbent.number}"
    word = "better" if delta > 0 else "worse"
    gap = f"{_number(abs(delta))} {word} than {_number(reference)}"
    return f"{name} {_number(value)} is {gap} of experiment {incumbent.number}"


# ---------------------------------------------------------------------- constraints
def _broken_constraint(task: Task, metrics: Mapping[str, float], incumbent: Experiment) -> tuple[Label, str]:
    """The first constraint that does not hold, with its words; NONE when all hold."""
    reference = _reference_metrics(incumbent)
    for constraint in task.scoring.constraints:
        why = _breach(constraint, metrics.get(constraint.metric), reference.get(constraint.metric))
        if why:
            too_large = constraint.metric == ARTIFACT_BYTES and constraint.metric in metrics
            return (Label.SIZE_BLOCKED if too_large else Label.CONSTRAINT), why
    return Label.NONE, ""


def _breach(constraint: Constraint, value: float | None, reference: float | None) -> str:
    """How a constraint is broken, empty when it holds. What cannot be checked does not hold."""
    name = constraint.metric
    if value is None:
        return f"its constraint on {name} cannot be checked, because a run did not print {name}"
    if constraint.max is not None and not value <= constraint.max:
        return f"but {name} {_number(value)} is above its limit of {_number(constraint.max)}"
    if constraint.min is not None and not value >= constraint.min:
        return f"but {name} {_number(value)} is below its limit of {_number(constraint.min)}"
    if constraint.max_increase is None:
        return ""
    if reference is None:
        return f"its constraint on {name} cannot be checked, because the incumbent has no {name}"
    limit = reference + constraint.max_increase * abs(reference)
    if value <= limit:
        return ""
    excess = f"more than {constraint.max_increase:.0%} above the incumbent's {_number(reference)}"
    return f"but {name} {_number(value)} is {excess}"


# ---------------------------------------------------------------------- the baseline
def decide_baseline(task: Task, experiment: Experiment, *, log: str = "") -> Decision:
    """Judge experiment 0, the program as it is: it is kept, with the mean of its runs.

    All of its runs must be good: σ comes from them, and without σ luck would be kept.

    Args:
        task: the task.
        experiment: with its runs ended.
        log: where the log of the last run lies, for the error's text.

    Raises:
        BaselineError: a run gave no metric, or the program does not print a metric that a constraint bounds.
    """
    good = [r for r in experiment.good_runs if r.value is not None and math.isfinite(r.value)]
    if not good or len(good) < len(experiment.counted_runs):
        raise _no_baseline(task, experiment, log)
    metrics = _mean_metrics(good)
    for constraint in task.scoring.constraints:
        if constraint.metric not in metrics:
            raise BaselineError(
                f"the baseline (experiment {experiment.number}) prints no {constraint.metric}, "
                "which a constraint bounds: no experiment could ever be kept",
                mend=f"print `METRIC {constraint.metric}=<number>` in every run, or remove it from scoring.constraints",
            )
    value, sigma = _mean_value(good), estimate_sigma([r.value for r in good if r.value is not None])
    reason = f"The program as it is: {task.metric.name} {_number(value)} over {_runs(len(good))}"
    reason += f", σ = {_number(sigma)}" if sigma is not None else ", σ not known"
    return Decision(Status.KEEP, Label.NONE, value, metrics=metrics, sigma=sigma, reason=_sentence(reason))


def _no_baseline(task: Task, experiment: Experiment, log: str) -> BaselineError:
    name = task.metric.name
    bad = [r for r in experiment.counted_runs if r.label is not Label.NONE] or list(experiment.runs)
    label = bad[-1].label if bad else Label.ERROR
    detail = (bad[-1].detail if bad else "") or "no run of it ended"
    what = f"the baseline (experiment {experiment.number}) gave no usable {name}: {label.value or 'error'}: {detail}"
    mend = _MEND.get(label, _MEND_OTHERWISE).format(metric=name, command=task.execution.run_command)
    return BaselineError(what + (f"; its log: {log}" if log else ""), mend=mend)


# ---------------------------------------------------------------------- no run at all
def decide_failed_proposal(label: Label, reason: str) -> Decision:
    """Record a proposal that never became a run. A label that is no failure counts as an error."""
    status = RULES[label].status
    if status is None or status is Status.KEEP:
        label, status = Label.ERROR, Status.CRASH
    return Decision(status, label, reason=_sentence(reason or f"{label.value}: no proposal"))


# ---------------------------------------------------------------------- parts
def _reference(incumbent: Experiment) -> tuple[float, int]:
    """The incumbent's value and how many runs stand behind it."""
    decided = incumbent.decision.value if incumbent.decision else None
    good = incumbent.good_runs
    if decided is not None:
        return decided, max(1, len(good))
    if not good:
        raise ValueError(f"experiment {incumbent.number} is the incumbent but has no value")
    return _mean_value(good), len(good)


def _reference_metrics(incumbent: Experiment) -> Mapping[str, float]:
    decided = incumbent.decision.metrics if incumbent.decision else {}
    return decided or _mean_metrics(incumbent.good_runs)


def _mean_value(runs: Sequence[Run]) -> float:
    return mean([r.value for r in runs if r.value is not None])


def _mean_metrics(runs: Sequence[Run]) -> dict[str, float]:
    """Mean of each metric that every run printed: one that a run left out cannot be trusted to bound anything."""
    if not runs:
        return {}
    shared = [name for name in runs[0].metrics if all(math.isfinite(r.metrics.get(name, math.nan)) for r in runs)]
    return {name: mean([r.metrics[name] for r in runs]) for name in shared}


def _number(value: float) -> str:
    """Six significant digits: what two lines of the same table need to differ in."""
    return f"{value:.6g}"


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _sentence(text: str) -> str:
    line = shorten(text, 600)
    return line if line.endswith((".", "!", "?", "…")) else line + "."
