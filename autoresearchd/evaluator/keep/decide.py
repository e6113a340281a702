"""The decision on an experiment after its one run: keep or discard, and why, in one sentence with its numbers.

It is kept where its expected gain over the tip is positive (``tip_belief``); whether the tip truly is better than the
confirmed program is found out later (``confirm``). Besides, the run must have ended well and constraints must hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from autoresearchd.domain.errors import BaselineError
from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Constraint, Direction, Metric, Task
from autoresearchd.evaluator.keep.noise import estimate_sigma, mad_confidence, mean
from autoresearchd.evaluator.keep.tip_belief import Posterior, Step, TipBelief, look, replay
from autoresearchd.evaluator.measure.log_text import shorten
from autoresearchd.evaluator.measure.measurement import EVALUATION, EVALUATION_FAILED, TRAINING, other_set
from autoresearchd.evaluator.rules.program_text import SEED_VARIABLE

TRIFLE = 1e-4
"""Without noise, and where the task names no other, a gain of less than this share of the tip's value is none."""
PRICE = 0.3
"""What an edit that makes the program larger must be expected to gain, in σ: two thirds of keeps bring nothing."""
TIE_AT = 0.8
"""Probability that a simpler program is no worse than a tie, from which it is kept; a confirmation asks for more."""

_HINT = {
    Label.METRIC_MISSING: "print `METRIC {metric}=<number>` or `{metric}: <number>` on a line of its own, "
    "or name in scoring.metric what is printed",
    Label.NON_FINITE: "make the unmodified program end with a finite {metric}",
    Label.NAN_LOSS: "make the unmodified program train without a NaN loss",
    Label.TIMEOUT: "raise execution.timeout, or execution.startup_grace, which it follows from where it is not named",
    Label.BUDGET_OVERRUN: "end training after AUTORESEARCHD_TIME_BUDGET seconds, "
    "or raise execution.startup_grace if loading takes long",
    Label.OOM: "make the model or the batch smaller, or raise execution.memory_mb",
    Label.METRIC_TAMPERING: "let the unmodified program leave the protected files alone and write copies, not links, "
    "into the folder that AUTORESEARCHD_OUTPUT_DIR names",
    Label.CHECK_FAILED: "fix the check, or the program, until the check passes on the unmodified program",
}


def hint_of(task: Task, label: Label, detail: str = "") -> str:
    """What a user can do about a program that, unmodified, ends with a label; empty where the label says nothing."""
    if detail.startswith(EVALUATION_FAILED) and task.evaluation is not None:
        return f"fix the evaluation, `{task.evaluation.command}`: its log says why it failed"
    if label is Label.METRIC_MISSING and task.scoring.pattern is not None:
        return "correct scoring.pattern, or what is printed: one has to match the other"
    return _HINT.get(label, "").format(metric=task.metric.name)


# ---------------------------------------------------------------------- an experiment
def decide(
    task: Task,
    experiment: Experiment,
    tip: Experiment,
    belief: TipBelief | None,
    *,
    confirmed: Experiment | None = None,
    simpler: bool = False,
    larger: bool = False,
    identical: bool = False,
    values: Sequence[float] = (),
    baseline: Sequence[Run] = (),
    seeded: bool = True,
) -> Decision:
    """Judge an experiment with one run against the tip: kept where it is expected to be better.

    belief: of the tip, before this run; None: σ is not known, so that the sign decides. confirmed: what a bound on an
    increase is an increase over, as in the confirmation to come; None: the tip. simpler, larger: its program
    than the tip's: a tie is kept, or a gain has to be worth the code. identical: to the tip's program: never kept.
    values: metrics of the segment in order of number, this one's last, for the advisory confidence. baseline: its runs,
    which tell on what is measured. seeded: the program reads the seed of its runs.
    """
    failed = _failed(experiment)
    if failed is not None and failed.label is Label.ABORTED_EARLY:
        return _aborted(task, failed, belief, tip)
    if failed is not None:
        return _crash(label_of(failed), failure(failed, f"the run gave no usable {task.metric.name}"))
    good, sign = experiment.good_runs, sign_of(task.metric)
    value, before = _mean_value(good), tip_value(task, belief, tip)
    gain, posterior = task.metric.improvement(value, before), look(belief, sign * value) if belief else None
    if posterior is not None:
        gain = posterior.gain
    least = smallest_gain(task, before, exact=belief is None or belief.exact)
    means = mean_metrics(good)
    proven = confirmed or tip
    its_metrics = (proven.decision and proven.decision.metrics) or mean_metrics(proven.good_runs)
    elsewhere = other_set(good, baseline, task.metric.name)
    label, why = (Label.CONSTRAINT, elsewhere) if elsewhere else broken_constraint(task, means, its_metrics)
    if identical:
        gain, label, why = 0.0, Label.NO_GAIN, "but it is the tip's own program, so any difference is noise"
    if label is Label.NONE:
        label, why = _outcome(gain, posterior, least, simpler=simpler, larger=larger)
    status = RULES[label] or Status.DISCARD
    return Decision(
        status,
        label,
        value,
        delta=gain,
        metrics=means,
        confidence=mad_confidence(values, values[0] if values else None, value if status is Status.KEEP else before),
        sigma=belief.sigma if belief else None,
        reason=f"{_compared(task, value, tip, belief, posterior, gain, seeded)}; {why}.",
    )


def _outcome(
    gain: float, posterior: Posterior | None, least: float, *, simpler: bool, larger: bool
) -> tuple[Label, str]:
    """The label that an expected gain leads to, and what follows from its numbers."""
    worth = PRICE if larger and posterior is not None else 0.0
    if gain > 0 and gain >= least and (posterior is None or posterior.in_sigma > worth):
        return Label.NONE, "kept" if posterior is None else "kept, as on average a gain is to be expected"
    if simpler and (gain >= 0 if posterior is None else posterior.bearable >= TIE_AT):
        return Label.SIMPLER, "a tie, kept because its program is simpler"
    if gain <= 0:
        return Label.NO_GAIN, "no gain"
    if gain < least:
        return Label.NO_GAIN, f"a gain of {_plain(gain)} is below scoring.min_delta ({_plain(least)})"
    return Label.NO_GAIN, f"a gain below {PRICE:g} σ is not worth the code that it adds"


def _compared(
    task: Task,
    value: float,
    tip: Experiment,
    belief: TipBelief | None,
    posterior: Posterior | None,
    gain: float,
    seeded: bool,
) -> str:
    """How an experiment compares with the tip: what it gave, what is believed of that, and how sure it is."""
    name, who = task.metric.name, f"experiment {tip.number}"
    if belief is None or posterior is None or belief.exact:
        none = "the metric has no noise" if seeded else f"no noise seen: the program ignores {SEED_VARIABLE}"
        how = f"is {abs(gain):.6g} {_word(gain)} than {who}" if gain else f"equals {who}"
        return f"{name} {value:.6g} {how} ({none if belief else 'the noise σ is not known, so the sign alone decides'})"
    sigma = belief.sigma
    if not posterior.error:
        return f"{name} {known(value, sigma)} is the very value of {who}: the edit changes nothing"
    level = f"{known(tip_value(task, belief, tip), sigma)} ± {belief.error:.2g}"
    expected = f"{known(abs(gain), posterior.error)} {_word(gain)} ± {posterior.error:.2g}"
    return (
        f"{name} {known(value, sigma)}, where {who} is believed to be at {level} (σ = {sigma:.2g}): expected to be "
        f"{expected}, an improvement with probability {posterior.better:.3g} ({belief.prior:.2g} before it ran)"
    )


def tip_value(task: Task, belief: TipBelief | None, tip: Experiment) -> float:
    """The tip's metric as it is believed to be; what it was kept with, where σ is not known. ValueError: neither is."""
    if belief is not None:
        return sign_of(task.metric) * belief.level
    value = tip.decision.value if tip.decision else None
    if value is None:
        raise ValueError(f"experiment {tip.number} is the tip but has no value")
    return value


def smallest_gain(task: Task, value: float, *, exact: bool) -> float:
    """A gain over a value below which it is none. exact: no noise is known of."""
    if task.scoring.min_delta is not None:
        return task.scoring.min_delta
    return TRIFLE * abs(value) if exact else 0.0


def belief_of(task: Task, baseline: Experiment, decided: Iterable[Experiment] = ()) -> TipBelief | None:
    """What the runs of a segment have taught; None: of the baseline there is one run, which says nothing of noise.

    decided: the experiments after the baseline, oldest first.
    """
    sign, steps = sign_of(task.metric), [step for e in decided if (step := step_of(task, e))]
    return replay([sign * r.value for r in baseline.good_runs if r.value is not None], steps)


def step_of(task: Task, experiment: Experiment) -> Step | None:
    """What a decided experiment tells a belief; None: nothing, because it has no value, or was made on no tip."""
    decision = experiment.decision
    if decision is None or decision.value is None or not math.isfinite(decision.value):
        return None
    if decision.label is Label.STALE_PARENT and decision.shift is None:
        return None
    return Step(sign_of(task.metric) * decision.value + (decision.shift or 0.0), decision.status is Status.KEEP)


def usable(run: Run) -> bool:
    """Whether a run gave a finite value."""
    return run.good and run.value is not None and math.isfinite(run.value)


def sign_of(metric: Metric) -> float:
    """What makes the larger value the better one."""
    return -1.0 if metric.direction is Direction.MINIMIZE else 1.0


def _failed(experiment: Experiment) -> Run | None:
    """The run that makes the experiment a failure: one bad run is enough, however good the others are."""
    for run in experiment.counted_runs:
        if run.of is None and not usable(run):
            return run
    if not experiment.good_runs:
        return Run(0, experiment.number, 0, 0, experiment.started_at, label=Label.ERROR, detail="no run of it ended")
    return None


def _crash(label: Label, reason: str) -> Decision:
    return Decision(RULES[label] or Status.CRASH, label, reason=_sentence(reason))


def label_of(run: Run) -> Label:
    """The label of a run that failed, also where it says nothing of it."""
    if run.label is Label.NONE or RULES[run.label] in (Status.KEEP, None):
        return Label.METRIC_MISSING if run.value is None else Label.NON_FINITE
    return run.label


def failure(run: Run, otherwise: str = "") -> str:
    """How a run failed: its label and its detail."""
    detail = run.detail or otherwise
    return f"{label_of(run).value}: {detail}" if detail else label_of(run).value


def _aborted(task: Task, run: Run, belief: TipBelief | None, tip: Experiment) -> Decision:
    """A run that was ended early: no value; what its forecast is worth against the tip."""
    forecast, delta = run.metrics.get("forecast"), None
    if forecast is not None and math.isfinite(forecast):
        delta = task.metric.improvement(forecast, tip_value(task, belief, tip))
    decision = _crash(Label.ABORTED_EARLY, f"{Label.ABORTED_EARLY.value}: {run.detail}")
    return replace(decision, delta=delta, metrics=dict(run.metrics), sigma=belief.sigma if belief else None)


def broken_constraint(task: Task, metrics: Mapping[str, float], reference: Mapping[str, float]) -> tuple[Label, str]:
    """The first constraint that does not hold beside the reference's metrics, with its words; NONE when all hold."""
    for constraint in task.scoring.constraints:
        why = _breach(constraint, metrics.get(constraint.metric), reference.get(constraint.metric))
        if why:
            too_large = constraint.metric == "artifact_bytes" and constraint.metric in metrics
            return (Label.SIZE_BLOCKED if too_large else Label.CONSTRAINT), why
    return Label.NONE, ""


def _breach(constraint: Constraint, value: float | None, reference: float | None) -> str:
    """How a constraint is broken, empty when it holds. What cannot be checked does not hold."""
    name = constraint.metric
    if value is None:
        return f"its constraint on {name} cannot be checked, because a run did not print {name}"
    if constraint.max is not None and not value <= constraint.max:
        return f"but {name} {value:.6g} is above its limit of {constraint.max:.6g}"
    if constraint.min is not None and not value >= constraint.min:
        return f"but {name} {value:.6g} is below its limit of {constraint.min:.6g}"
    if constraint.max_increase is None:
        return ""
    if reference is None:
        return f"its constraint on {name} cannot be checked, because what it is compared with has no {name}"
    limit = reference + constraint.max_increase * abs(reference)
    excess = f"more than {constraint.max_increase:.0%} above the {reference:.6g} before it"
    return "" if value <= limit else f"but {name} {value:.6g} is {excess}"


# ---------------------------------------------------------------------- the baseline
def decide_baseline(task: Task, experiment: Experiment, *, log: str = "") -> Decision:
    """Judge experiment 0, the program as it is: it is kept, with the mean of its runs; without σ luck would be kept.

    BaselineError: a run gave no metric (log: where the last run's lies), or does not print what a constraint bounds.
    """
    good = [r for r in experiment.good_runs if usable(r)]
    if not good or len(good) < len(experiment.counted_runs):
        raise _no_baseline(task, experiment, log)
    metrics = mean_metrics(good)
    require_bounded(task, metrics, f"the baseline (experiment {experiment.number})")
    value, sigma = _mean_value(good), estimate_sigma([r.value for r in good if r.value is not None])
    shown = known(value, sigma or 0.0)
    reason = f"The program as it is: {task.metric.name} {shown} over {counted(len(good), 'run')}"
    reason += f", σ = {sigma:.2g}" if sigma is not None else ", σ not known"
    return Decision(Status.KEEP, Label.NONE, value, metrics=metrics, sigma=sigma, reason=_sentence(reason))


def require_bounded(task: Task, metrics: Mapping[str, float], who: str) -> None:
    """Raise BaselineError where the unedited program does not print what a constraint bounds."""
    for constraint in task.scoring.constraints:
        if constraint.metric not in metrics:
            raise BaselineError(
                f"{who} prints no {constraint.metric}, which a constraint bounds: no experiment could ever be kept",
                hint=f"print `METRIC {constraint.metric}=<number>` in every run, or remove it from scoring.constraints",
            )


def _no_baseline(task: Task, experiment: Experiment, log: str) -> BaselineError:
    name = task.metric.name
    bad = [r for r in experiment.counted_runs if r.label is not Label.NONE] or list(experiment.current_runs)
    label = bad[-1].label if bad else Label.ERROR
    detail = (bad[-1].detail if bad else "") or "no run of it ended"
    what = f"the baseline (experiment {experiment.number}) gave no usable {name}: {label.value or 'error'}: {detail}"
    if detail.startswith(EVALUATION_FAILED):
        log = log.replace(f"{TRAINING}.log", f"{EVALUATION}.log")
    otherwise = f"fix the program until `{task.execution.run_command}` runs by itself, then start again"
    hint = hint_of(task, label, detail) or otherwise
    return BaselineError(what + (f"; its log: {log}" if log else ""), hint=hint)


# ---------------------------------------------------------------------- no run at all
def decide_failed_proposal(label: Label, reason: str) -> Decision:
    """Record a proposal that never became a run. A label that is no failure counts as an error."""
    if RULES[label] in (None, Status.KEEP):
        label = Label.ERROR
    return _crash(label, reason or f"{label.value}: no proposal")


def mean_metrics(runs: Sequence[Run]) -> dict[str, float]:
    """Mean of each metric that every run printed: one that a run left out cannot be trusted to bound anything."""
    if not runs:
        return {}
    shared = [name for name in runs[0].metrics if all(math.isfinite(r.metrics.get(name, math.nan)) for r in runs)]
    return {name: mean([r.metrics[name] for r in runs]) for name in shared}


def _word(gain: float) -> str:
    return "better" if gain > 0 else "worse"


def _mean_value(measured: Sequence[Run]) -> float:
    """The mean of the values of runs."""
    return mean([run.value for run in measured if run.value is not None])


def known(value: float, spread: float) -> str:
    """A figure with no more digits than its spread leaves a meaning to: down to the second one of the spread."""
    if not (spread > 0 and math.isfinite(spread) and math.isfinite(value)):
        return f"{value:.6g}"
    rounded = round(value, 1 - math.floor(math.log10(spread)))
    return f"{rounded:.6g}" if rounded or not value else f"{value:.1g}"


def _plain(value: float) -> str:
    """A small figure without an exponent: two significant digits."""
    return format(Decimal(f"{value:.2g}"), "f")


def _sentence(text: str) -> str:
    """A text on one line, cut to a length, with an end."""
    line = shorten(text, 600)
    return line if line.endswith((".", "!", "?", "…")) else line + "."
