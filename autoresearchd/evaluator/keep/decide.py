"""The decision on an experiment: keep, discard, or one more run; and why, in one sentence with its numbers.

``keep`` weighs the metric. Before and after it: every run must have ended well, constraints must hold on average, and a
result that would be kept must pass its gates (bounds on a metric that varies between runs) not by luck but with a
confidence limit. Whatever is asked for is a pure function of the runs so far, so a restart asks for the same.

Two guards stand around the estimate. A kept program that knows that it runs again can do worse on purpose, and what
comes next looks better (a slower machine looks the same): the baseline, run beside the experiment, tells one from the
other (``control``). And no gain is reported or rewarded beyond what the values show (``bounded``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autoresearchd.domain.errors import BaselineError
from autoresearchd.domain.experiment import FAILURES, Decision, Experiment, Run
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Constraint, Direction, Metric, Task
from autoresearchd.evaluator.keep import reasons
from autoresearchd.evaluator.keep.keep_rule import Action, KeepRule, Verdict, believe, estimate, look, passes
from autoresearchd.evaluator.keep.noise import (
    Noise,
    NoiseData,
    Sample,
    estimate_sigma,
    mad_confidence,
    mean,
    readings_of,
)
from autoresearchd.evaluator.measure.measurement import EVALUATION, EVALUATION_FAILED, TRAINING, other_set


class Answer(StrEnum):
    """What follows for an experiment that would be kept; ASK: once the baseline has run beside it."""

    HOLDS = "holds"
    ASK = "ask"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Control:
    """The answer; claimed, since: mean goodness of the incumbent in the runs that it was kept for, and in later ones.

    gain: what is left of the improvement against the former; NaN where the incumbent did not fall, or it is not known.
    """

    answer: Answer
    claimed: float = math.nan
    since: float = math.nan
    gain: float = math.nan


def control(
    noise_data: NoiseData, experiment: int, incumbent: int, rule: KeepRule, *, simpler: bool = False
) -> Control:
    """Whether an experiment that would be kept may be. simpler: as a tie, which need be no improvement."""
    baseline = noise_data.baseline
    own, later = _split(noise_data.samples(incumbent), incumbent)
    if baseline is None or baseline == incumbent or not own or not later:
        return Control(Answer.HOLDS)
    noise = noise_data.without_reruns(incumbent).noise(experiment, incumbent) or noise_data.noise(experiment, incumbent)
    if noise is None:
        return Control(Answer.HOLDS)
    claimed, since = _mean(own), _mean(later)
    if claimed - since <= rule.fallen * noise.sigma * math.sqrt(_apart(own, later, noise)):
        return Control(Answer.HOLDS, claimed, since)
    mine = [s for s in noise_data.samples(experiment) if s.test == experiment]
    gain = _mean(mine) - claimed
    if _borne_out(gain, _apart(mine, own, noise), noise, rule, simpler):
        return Control(Answer.HOLDS, claimed, since, gain)
    here, before = _split(noise_data.samples(baseline), experiment)
    if not here or not before:
        return Control(Answer.ASK if before else Answer.HOLDS, claimed, since)
    # Each against the baseline, by generalised least squares: runs of one test share its drift, whichever test it is.
    now, now_variance = estimate(readings_of([*before, *mine, *here], baseline), noise)
    then, then_variance = estimate(readings_of([*before, *own], baseline), noise)
    # The two share the baseline's earlier runs, so that their sum is rather too large.
    gain, variance = now - then, now_variance + then_variance
    held = _borne_out(gain, variance, noise, rule, simpler)
    return Control(Answer.HOLDS if held else Answer.FAILS, claimed, since, gain)


def _borne_out(gain: float, variance: float, noise: Noise, rule: KeepRule, simpler: bool) -> bool:
    if noise.sigma == 0.0:
        return gain >= 0 if simpler else gain > 0
    belief = believe(gain, variance, noise, rule)
    return (belief.bearable if simpler else belief.better) >= rule.beside_at


def _split(samples: Sequence[Sample], test: int) -> tuple[list[Sample], list[Sample]]:
    """Those that were made for a test, and the others."""
    return [s for s in samples if s.test == test], [s for s in samples if s.test != test]


def _mean(samples: Sequence[Sample]) -> float:
    return mean([s.value for s in samples])


def _apart(a: Sequence[Sample], b: Sequence[Sample], noise: Noise) -> float:
    """Variance of the difference between means of runs that were made for different tests, in units of σ²."""
    tests = 1.0 / len({s.test for s in a}) + 1.0 / len({s.test for s in b})
    return (1.0 - noise.test) * (1.0 / len(a) + 1.0 / len(b)) + noise.test * tests


def bounded(gain: float, better: float, noise_data: NoiseData, experiment: int, incumbent: int) -> float:
    """The estimated gain, held to what the experiment's mean shows against the incumbent's.

    These are the means of the runs that it was kept for, of all later ones, and of those made beside the experiment.
    A gain lies between the differences; where it is not believed (``better``: the probability of an improvement), it is
    at most the least of them, and not below 0.
    """
    mine = _mean(_split(noise_data.samples(experiment), experiment)[0])
    its = noise_data.samples(incumbent)
    groups = (*_split(its, incumbent), _split(its, experiment)[0])
    shown = [gap for gap in (mine - _mean(runs) for runs in groups if runs) if math.isfinite(gap)]
    if not shown:
        return gain
    if better >= 0.5:
        return min(max(shown), max(min(shown), gain))
    return max(0.0, min(gain, *shown)) if gain > 0 else min(0.0, max(gain, min(shown)))


TRIFLE = 1e-4
"""Without noise, and where the task names no other, a gain of less than this share of the incumbent's value is none."""
_TIE = "a tie, kept because its program is simpler"

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
_HINT_OTHERWISE = "fix the program until `{command}` runs by itself, then start again"


def hint_of(task: Task, label: Label, detail: str = "") -> str:
    """What a user can do about a program that, unmodified, ends with a label; empty where the label says nothing."""
    if detail.startswith(EVALUATION_FAILED) and task.evaluation is not None:
        return f"fix the evaluation, `{task.evaluation.command}`: its log says why it failed"
    if label is Label.METRIC_MISSING and task.scoring.pattern is not None:
        return "correct scoring.pattern, or what is printed: one has to match the other"
    return _HINT.get(label, "").format(metric=task.metric.name)


# ---------------------------------------------------------------------- an experiment
@dataclass(frozen=True, slots=True)
class NextRun:
    """One more run before the decision.

    of: number of the incumbent, or the baseline, where its program is to run, None: the experiment's own. seed: that of
    an earlier run, with which it makes a pair; None: a fresh one.
    """

    of: int | None
    seed: int | None
    reason: str


def decide(
    task: Task,
    experiment: Experiment,
    incumbent: Experiment,
    noise_data: NoiseData,
    *,
    rule: KeepRule | None = None,
    simpler: bool = False,
    identical: bool = False,
    values: Sequence[float] = (),
    baseline: Sequence[Run] = (),
    doubted: bool = False,
    seeded: bool = True,
) -> Decision | NextRun:
    """Judge an experiment with at least one run against the incumbent, or ask for one more run.

    noise_data: the runs of the segment's decided experiments. simpler: than the incumbent: a tie is then kept.
    identical: its program is the incumbent's, byte for byte: it is never kept. values: metrics of the segment in order
    of number, this experiment's last, for the advisory confidence. baseline: its runs, which tell on what is measured.
    doubted: so many experiments failed in a row that the incumbent, whose code they hold, may fail. seeded: the program
    reads the seed of its runs. ValueError: the incumbent has neither a run nor a value; it could not have been kept.
    """
    rule = rule or KeepRule()
    failed = _failed(experiment)
    if failed is not None and failed.label is not Label.ABORTED_EARLY:
        asked = _does_it_still_run(failed, experiment, incumbent, rule) if doubted else None
        detail = failed.detail or f"the run gave no usable {task.metric.name}"
        return asked or _once_more(experiment, incumbent, rule) or _crash(_label_of(failed), detail)
    noise_data = _with_incumbent(task, noise_data, incumbent)
    if failed is not None:
        return _aborted(task, failed, noise_data, incumbent)
    again = _once_more(experiment, incumbent, rule)
    if again is not None:
        return again
    samples = samples_of(task, experiment.current_runs)
    now = noise_data.with_samples(samples)
    noise = now.noise(experiment.number, incumbent.number)
    noise = replace(noise, seeded=seeded) if noise else None
    least = task.scoring.min_delta
    if least is None:
        least = 0.0 if noise and noise.sigma > 0.0 else TRIFLE * abs(incumbent_value(task, now, incumbent))
    verdict = look(
        now.readings(incumbent.number, samples),
        noise or Noise(0.0, 0),  # after a single run of everything the sign is all there is
        rule,
        spent=_spent(experiment, incumbent, rule),
        price=rule.price(noise_data.experiments, noise_data.extra),
        simpler=simpler,
        recheck=noise_data.unchecked(incumbent.number),
        least=least,
    )
    good = experiment.good_runs
    means = _mean_metrics(good)
    its_metrics = (incumbent.decision and incumbent.decision.metrics) or _mean_metrics(incumbent.good_runs)
    label, why = broken_constraint(task, means, its_metrics)
    elsewhere = other_set(good, baseline)
    label, why = (Label.CONSTRAINT, elsewhere) if elsewhere else (label, why)
    if identical:
        label, why = Label.NO_GAIN, "but it is the incumbent's own program, so any difference is noise"
    if label is Label.NONE and verdict.action is Action.AGAIN:
        of = None if verdict.own else incumbent.number
        return NextRun(of, verdict.seed, reasons.comparison(task, verdict, noise, experiment, incumbent))
    if label is Label.NONE:
        label, why = _outcome(verdict, rule, least)
    gain = bounded(verdict.gain, verdict.better, now, experiment.number, incumbent.number)
    if RULES[label].status is Status.KEEP:
        found = _controlled(task, now, experiment, incumbent, rule, simpler=label is Label.SIMPLER)
        if isinstance(found, NextRun):
            return found
        refused, left = found
        gain = gain if math.isnan(left) else min(gain, left)
        label, why = (Label.NO_GAIN, refused) if refused else (label, why)
    if label is Label.NONE and gain < least:
        label, why = (Label.SIMPLER, _TIE) if simpler else (Label.NO_GAIN, _too_small(gain, least))
    if RULES[label].status is Status.KEEP:
        doubt = _doubtful_gate(task, now, experiment, rule)
        if doubt and len(experiment.counted_runs) <= rule.most:
            return NextRun(None, None, doubt)
        if doubt:
            label, why = Label.GATE_MISS, doubt
    overruled = identical or (label is Label.NO_GAIN and verdict.better >= rule.keep_at)
    status = RULES[label].status or Status.DISCARD
    value, before, own = reasons.mean_value(good), incumbent_value(task, now, incumbent), now.noise(incumbent.number)
    by_means = task.metric.improvement(value, before)
    return Decision(
        status,
        label,
        value,
        delta=gain,
        metrics=means,
        confidence=mad_confidence(values, values[0] if values else None, value if status is Status.KEEP else before),
        sigma=own.sigma if own else None,
        reason=reasons.reason(
            task, verdict, noise, experiment, incumbent, label=label, why=why, means=by_means, gain=gain
        ),
        sure=0.0 if overruled else verdict.better,
    )


def _controlled(
    task: Task, noise_data: NoiseData, experiment: Experiment, incumbent: Experiment, rule: KeepRule, *, simpler: bool
) -> NextRun | tuple[str, float]:
    """The run of the baseline that a keep still needs; or why it is none, empty where it is one, and what its gain is.

    NaN: as estimated; else the incumbent fell, and this is what is left against what it was kept with.
    """
    found = control(noise_data, experiment.number, incumbent.number, rule, simpler=simpler)
    if found.answer is Answer.HOLDS:
        return "", found.gain
    then, since = (f"{_sign(task.metric) * x:.6g}" for x in (found.claimed, found.since))
    fell = f"experiment {incumbent.number}, kept with {then}, did far worse since ({since})"
    if found.answer is Answer.FAILS:
        return f"but {fell}; the baseline, run beside it, does not show that the machine did", found.gain
    spent = len(experiment.counted_runs) - 1
    if any(run.of == noise_data.baseline for run in experiment.counted_runs):
        return f"but {fell}, and the baseline failed when it was run beside it", math.nan
    if spent > rule.most:  # no run can be asked for, where a proposal is judged by two
        return "", math.nan
    return NextRun(noise_data.baseline, experiment.counted_runs[-1].seed, f"{fell}: the baseline tells whether all do")


def _too_small(gain: float, least: float) -> str:
    return f"a gain of {reasons.plain(gain)} is below scoring.min_delta ({reasons.plain(least)})"


def _outcome(verdict: Verdict, rule: KeepRule, least: float) -> tuple[Label, str]:
    """The label of a verdict, and what follows from its numbers."""
    if verdict.action is Action.KEEP:
        return Label.NONE, "kept"
    if verdict.action is Action.SIMPLER:
        return Label.SIMPLER, _TIE
    if verdict.gain <= 0:
        return Label.NO_GAIN, "no gain"
    if verdict.better >= rule.keep_at and verdict.gain < least:
        return Label.NO_GAIN, _too_small(verdict.gain, least)
    if verdict.better >= rule.keep_at:
        return Label.NO_GAIN, "but no run made beside the incumbent bears it out"
    return Label.NO_GAIN, "not sure enough to be kept, nor promising enough for more runs"


def samples_of(task: Task, runs: Sequence[Run]) -> list[Sample]:
    """The good ones of some runs, in order of time, with values of which the larger is the better."""
    sign = _sign(task.metric)
    bounded = {c.metric for c in task.scoring.constraints}
    return [
        Sample(
            r.experiment if r.of is None else r.of,
            r.experiment,
            r.seed,
            sign * r.value,
            {name: x for name, x in r.metrics.items() if name in bounded and math.isfinite(x)},
        )
        for r in runs
        if r.value is not None and _usable(r)
    ]


def _usable(run: Run) -> bool:
    return run.good and run.value is not None and math.isfinite(run.value)


def _with_incumbent(task: Task, noise_data: NoiseData, incumbent: Experiment) -> NoiseData:
    """The data with a run of the incumbent; where its runs are lost, the value it was kept with stands for one."""
    if noise_data.values(incumbent.number):
        return noise_data
    value = incumbent.decision.value if incumbent.decision else None
    if value is None:
        raise ValueError(f"experiment {incumbent.number} is the incumbent but has neither a run nor a value")
    return noise_data.with_samples([Sample(incumbent.number, incumbent.number, -1, _sign(task.metric) * value)])


def incumbent_value(task: Task, noise_data: NoiseData, incumbent: Experiment) -> float:
    """The incumbent's metric, estimated anew from all of its runs, those made beside later experiments included."""
    return _sign(task.metric) * mean(noise_data.values(incumbent.number))


def _sign(metric: Metric) -> float:
    """What makes the larger value the better one."""
    return -1.0 if metric.direction is Direction.MINIMIZE else 1.0


def _does_it_still_run(failed: Run, experiment: Experiment, incumbent: Experiment, rule: KeepRule) -> NextRun | None:
    """The run of a doubted incumbent that is made beside an experiment that failed, once, its repairs included."""
    if rule.most == 0 or any(r.of == incumbent.number and r.counts for r in experiment.runs):
        return None
    return NextRun(incumbent.number, failed.seed, f"it failed like all since experiment {incumbent.number}")


def _once_more(experiment: Experiment, incumbent: Experiment, rule: KeepRule) -> NextRun | None:
    """A run of the incumbent that failed is made again, once, and on a seed of its own: it may have been bad luck."""
    beside = [r for r in experiment.counted_runs if r.of == incumbent.number]
    if rule.most == 0 or not beside or beside[-1].good or sum(not r.good for r in beside) >= FAILURES:
        return None
    run = beside[-1]
    return NextRun(incumbent.number, None, f"experiment {incumbent.number} failed when it ran again: {_failure(run)}")


def _spent(experiment: Experiment, incumbent: Experiment, rule: KeepRule) -> int:
    """Extra runs so far, those of programs that fell beside it not counted.

    Where what it is compared with has failed for good, no more are asked for: they would fail as well.
    """
    fell = {number for number in experiment.fallen if number != incumbent.number}
    runs = [r for r in experiment.counted_runs if r.of not in fell]
    failed = Counter(r.of for r in runs if r.of is not None and not r.good)
    for_good = any(times >= (FAILURES if of == incumbent.number else 1) for of, times in failed.items())
    return rule.most if for_good else len(runs) - 1


def _failed(experiment: Experiment) -> Run | None:
    """The run that makes the experiment a failure: one bad run is enough, however good the others are."""
    for run in experiment.counted_runs:
        if run.of is None and not _usable(run):
            return run
    if not experiment.good_runs:
        return Run(0, experiment.number, 0, 0, experiment.started_at, label=Label.ERROR, detail="no run of it ended")
    return None


def _crash(label: Label, detail: str) -> Decision:
    return Decision(RULES[label].status or Status.CRASH, label, reason=reasons.sentence(f"{label.value}: {detail}"))


def _label_of(run: Run) -> Label:
    """The label of a run that failed, also where it says nothing of it."""
    if run.label is Label.NONE or RULES[run.label].status in (Status.KEEP, None):
        return Label.METRIC_MISSING if run.value is None else Label.NON_FINITE
    return run.label


def _failure(run: Run) -> str:
    return f"{_label_of(run).value}: {run.detail}" if run.detail else _label_of(run).value


# ---------------------------------------------------------------------- a kept program that fails
def decide_fallen(task: Task, kept: Experiment, beside: Experiment) -> Decision:
    """What becomes of a keep that failed twice when it ran again beside another experiment: it is none any more."""
    run = [r for r in beside.runs if r.of == kept.number and r.counts and not r.good][-1]
    label, before = _label_of(run), kept.decision
    reason = f"{_failure(run)}, twice when it ran again beside experiment {beside.number}, so it lost its place"
    if before is not None and before.value is not None:
        reason += f"; it had been kept with {task.metric.name} {before.value:.6g}"
    return Decision(RULES[label].status or Status.CRASH, label, reason=reasons.sentence(reason))


def _aborted(task: Task, run: Run, noise_data: NoiseData, incumbent: Experiment) -> Decision:
    """A run that was ended early: no value; what its forecast is worth against the incumbent."""
    forecast, noise = run.metrics.get("forecast"), noise_data.noise(incumbent.number)
    delta = None
    if forecast is not None and math.isfinite(forecast):
        delta = task.metric.improvement(forecast, incumbent_value(task, noise_data, incumbent))
    decision = _crash(Label.ABORTED_EARLY, run.detail)
    return replace(decision, delta=delta, metrics=dict(run.metrics), sigma=noise.sigma if noise else None)


# ---------------------------------------------------------------------- constraints
def _doubtful_gate(task: Task, noise_data: NoiseData, experiment: Experiment, rule: KeepRule) -> str:
    """The first bound that the mean holds and that luck may have held, with its words; empty when there is none."""
    good = experiment.good_runs
    means = _mean_metrics(good)
    for c in task.scoring.constraints:
        noise = noise_data.noise_of(c.metric, experiment.number)
        if noise is None or c.metric not in means:
            continue
        for bound, slack in ((c.min, means[c.metric] - (c.min or 0.0)), (c.max, (c.max or 0.0) - means[c.metric])):
            sure = 1.0 if bound is None else passes(slack, len(good), noise)
            if bound is not None and sure < rule.gate_at:
                value = f"{c.metric} {means[c.metric]:.6g} over {counted(len(good), 'run')}"
                return f"but {value} holds its limit of {bound:.6g} with probability {sure:.2g} only"
    return ""


def broken_constraint(task: Task, metrics: Mapping[str, float], reference: Mapping[str, float]) -> tuple[Label, str]:
    """The first constraint that does not hold beside the incumbent's metrics, with its words; NONE when all hold."""
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
        return f"its constraint on {name} cannot be checked, because the incumbent has no {name}"
    limit = reference + constraint.max_increase * abs(reference)
    excess = f"more than {constraint.max_increase:.0%} above the incumbent's {reference:.6g}"
    return "" if value <= limit else f"but {name} {value:.6g} is {excess}"


# ---------------------------------------------------------------------- the baseline
def decide_baseline(task: Task, experiment: Experiment, *, log: str = "") -> Decision:
    """Judge experiment 0, the program as it is: it is kept, with the mean of its runs.

    All of its runs must be good: σ comes from them, and without σ luck would be kept. BaselineError: a run gave no
    metric (log: where the last run's lies), or the program does not print a metric that a constraint bounds.
    """
    good = [r for r in experiment.good_runs if _usable(r)]
    if not good or len(good) < len(experiment.counted_runs):
        raise _no_baseline(task, experiment, log)
    metrics = _mean_metrics(good)
    require_bounded(task, metrics, f"the baseline (experiment {experiment.number})")
    value, sigma = reasons.mean_value(good), estimate_sigma([r.value for r in good if r.value is not None])
    shown = reasons.known(value, sigma or 0.0)
    reason = f"The program as it is: {task.metric.name} {shown} over {counted(len(good), 'run')}"
    reason += f", σ = {sigma:.2g}" if sigma is not None else ", σ not known"
    return Decision(Status.KEEP, Label.NONE, value, metrics=metrics, sigma=sigma, reason=reasons.sentence(reason))


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
    hint = hint_of(task, label, detail) or _HINT_OTHERWISE.format(command=task.execution.run_command)
    return BaselineError(what + (f"; its log: {log}" if log else ""), hint=hint)


# ---------------------------------------------------------------------- no run at all
def decide_failed_proposal(label: Label, reason: str) -> Decision:
    """Record a proposal that never became a run. A label that is no failure counts as an error."""
    if RULES[label].status in (None, Status.KEEP):
        label = Label.ERROR
    status = RULES[label].status or Status.CRASH
    return Decision(status, label, reason=reasons.sentence(reason or f"{label.value}: no proposal"))


def _mean_metrics(runs: Sequence[Run]) -> dict[str, float]:
    """Mean of each metric that every run printed: one that a run left out cannot be trusted to bound anything."""
    if not runs:
        return {}
    shared = [name for name in runs[0].metrics if all(math.isfinite(r.metrics.get(name, math.nan)) for r in runs)]
    return {name: mean([r.metrics[name] for r in runs]) for name in shared}
