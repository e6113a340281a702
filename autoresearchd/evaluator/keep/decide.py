"""The decision on an experiment: keep, discard, or one more run; and why, in one sentence with its numbers.

``keep_rule`` weighs the metric. Besides, every run must have ended well, constraints must hold on average, and what
would be kept must pass its gates (bounds on a metric that varies between runs) with a confidence limit. What is asked
for is a pure function of the runs so far, so a restart asks for the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from autoresearchd.domain.errors import BaselineError
from autoresearchd.domain.experiment import FAILURES, Decision, Experiment, Run
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Constraint, Direction, Metric, Task
from autoresearchd.evaluator.keep.keep_rule import Action, KeepRule, Verdict, bounded, control, look, passes
from autoresearchd.evaluator.keep.noise import Noise, NoiseData, Sample, estimate_sigma, mad_confidence, mean
from autoresearchd.evaluator.measure.log_text import shorten
from autoresearchd.evaluator.measure.measurement import EVALUATION, EVALUATION_FAILED, TRAINING, other_set
from autoresearchd.evaluator.rules.program_text import SEED_VARIABLE

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

    of: the incumbent or the baseline, None: the experiment's own program. seed: of the run it pairs with, None: fresh.
    """

    of: int | None
    seed: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Case:
    """An experiment that is judged against the incumbent."""

    task: Task
    experiment: Experiment
    incumbent: Experiment
    rule: KeepRule

    @property
    def rival(self) -> str:
        return f"experiment {self.incumbent.number}"

    def does_it_still_run(self, failed: Run) -> NextRun | None:
        """The run of a doubted incumbent beside an experiment that failed, made once, its repairs included."""
        if self.rule.most == 0 or any(r.of == self.incumbent.number and r.counts for r in self.experiment.runs):
            return None
        return NextRun(self.incumbent.number, failed.seed, f"it failed like all since {self.rival}")

    def once_more(self) -> NextRun | None:
        """A run of the incumbent that failed is made again, once, and on a seed of its own: it may be bad luck."""
        beside = [r for r in self.experiment.counted_runs if r.of == self.incumbent.number]
        if self.rule.most == 0 or not beside or beside[-1].good or sum(not r.good for r in beside) >= FAILURES:
            return None
        reason = f"{self.rival} failed when it ran again: {_failure(beside[-1])}"
        return NextRun(self.incumbent.number, None, reason)

    def spent(self) -> int:
        """Extra runs so far, but those of programs that fell; all, where the rival has failed for good."""
        fell = {number for number in self.experiment.fallen if number != self.incumbent.number}
        runs = [r for r in self.experiment.counted_runs if r.of not in fell]
        failed = Counter(r.of for r in runs if r.of is not None and not r.good)
        for_good = any(times >= (FAILURES if of == self.incumbent.number else 1) for of, times in failed.items())
        return self.rule.most if for_good else len(runs) - 1

    def controlled(self, noise_data: NoiseData, *, simpler: bool) -> NextRun | tuple[str, float]:
        """The run of the baseline that a keep still needs; or why it is none, and what its gain is (NaN: as it was)."""
        told = control(noise_data, self.experiment.number, self.incumbent.number, self.rule, simpler=simpler)
        if told.holds:
            return "", told.gain
        then, since = (f"{_sign(self.task.metric) * x:.6g}" for x in (told.claimed, told.since))
        fell = f"{self.rival}, kept with {then}, did far worse since ({since})"
        if told.holds is False:
            return f"but {fell}; the baseline, run beside it, does not show that the machine did", told.gain
        runs = self.experiment.counted_runs
        if any(run.of == noise_data.baseline for run in runs):
            return f"but {fell}, and the baseline failed when it was run beside it", math.nan
        if len(runs) - 1 > self.rule.most:  # no run can be asked for, where a proposal is judged by two
            return "", math.nan
        return NextRun(noise_data.baseline, runs[-1].seed, f"{fell}: the baseline tells whether all do")

    def doubtful_gate(self, noise_data: NoiseData) -> str:
        """The first bound that the mean holds, perhaps by luck, with its words; empty when there is none."""
        good = self.experiment.good_runs
        means = _mean_metrics(good)
        for c in self.task.scoring.constraints:
            noise = noise_data.noise_of(c.metric, self.experiment.number)
            if noise is None or c.metric not in means:
                continue
            for bound, sign in ((c.min, 1.0), (c.max, -1.0)):
                sure = 1.0 if bound is None else passes(sign * (means[c.metric] - bound), len(good), noise)
                if bound is not None and sure < self.rule.gate_at:
                    value = f"{c.metric} {means[c.metric]:.6g} over {counted(len(good), 'run')}"
                    return f"but {value} holds its limit of {bound:.6g} with probability {sure:.2g} only"
        return ""

    def reason(self, verdict: Verdict, noise: Noise | None, *, label: Label, why: str, gain: float) -> str:
        """One sentence. why: what follows from the comparison. gain: as it is reported."""
        if label is Label.SIMPLER and noise is not None and noise.sigma > 0:
            return f"{self.tie(verdict, noise)}: {why}."
        words = self.compared(verdict, noise)
        if known(abs(gain), verdict.error) != known(abs(verdict.gain), verdict.error):
            words += f", counted as {known(gain, verdict.error)}, as the values themselves show no more"
        return f"{words}; {why}."

    def compared(self, verdict: Verdict, noise: Noise | None) -> str:
        """By how much an experiment is better or worse than the incumbent, and how sure that is."""
        gain = f"is {known(abs(verdict.gain), verdict.error)} {_word(verdict.gain)} than" if verdict.gain else "equals"
        text = self.compares(noise, gain)
        if noise is None:
            return f"{text} (the noise σ is not known, so the sign alone decides)"
        if noise.sigma == 0:
            none = "the metric has no noise" if noise.seeded else f"no noise seen: the program ignores {SEED_VARIABLE}"
            return f"{text} ({none})"
        sure = f"± {verdict.error:.2g}, σ = {noise.sigma:.2g} from {noise.freedom} degrees of freedom"
        return f"{text} ({sure}): an improvement with probability {verdict.better:.3g}"

    def tie(self, verdict: Verdict, noise: Noise) -> str:
        """What makes a tie: not that it is better, but that it is hardly worse."""
        equal = abs(verdict.gain) < 1e-3 * verdict.error
        estimate = "no difference" if equal else f"{known(abs(verdict.gain), verdict.error)} {_word(verdict.gain)}"
        return (
            f"{self.compares(noise, 'is worse than')} by no more than the σ of runs made side by side "
            f"({noise.sigma * noise.calm:.2g}) with probability {verdict.bearable:.3g} (estimate: {estimate} ± "
            f"{verdict.error:.2g})"
        )

    def compares(self, noise: Noise | None, how: str) -> str:
        """Its value, how it compares with the rival, and that this has run again beside it."""
        good, again = self.experiment.good_runs, len(self.experiment.control_runs)
        text = f"{self.task.metric.name} {known(_mean_value(good), noise.sigma if noise else 0.0)}"
        text += f" over {counted(len(good), 'run')}" if len(good) > 1 else ""
        times = "once" if again == 1 else f"{again} times"
        return f"{text} {how} {self.rival}" + (f" (run again {times} beside it)" if again else "")


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
    """Judge an experiment with at least one run against the incumbent, or ask for one more.

    noise_data: the runs of the segment's decided experiments. simpler: than the incumbent: a tie is then kept.
    identical: to the incumbent's program: never kept. values: metrics of the segment in order of number, this one's
    last, for the advisory confidence. baseline: its runs, which tell on what is measured. doubted: so many failed in a
    row that the incumbent may fail, too. seeded: the program reads the seed of its runs.
    """
    rule = rule or KeepRule()
    case, failed = _Case(task, experiment, incumbent, rule), _failed(experiment)
    if failed is not None and failed.label is not Label.ABORTED_EARLY:
        asked = case.does_it_still_run(failed) if doubted else None
        label, detail = _label_of(failed), failed.detail or f"the run gave no usable {task.metric.name}"
        return asked or case.once_more() or _crash(label, f"{label.value}: {detail}")
    noise_data = _with_incumbent(task, noise_data, incumbent)
    if failed is not None:
        return _aborted(task, failed, noise_data, incumbent)
    if again := case.once_more():
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
        spent=case.spent(),
        price=rule.price(noise_data.experiments, noise_data.extra),
        simpler=simpler,
        recheck=noise_data.unchecked(incumbent.number),
        least=least,
    )
    good = experiment.good_runs
    means = _mean_metrics(good)
    its_metrics = (incumbent.decision and incumbent.decision.metrics) or _mean_metrics(incumbent.good_runs)
    elsewhere = other_set(good, baseline)
    label, why = (Label.CONSTRAINT, elsewhere) if elsewhere else broken_constraint(task, means, its_metrics)
    if identical:
        label, why = Label.NO_GAIN, "but it is the incumbent's own program, so any difference is noise"
    if label is Label.NONE and verdict.action is Action.AGAIN:
        of = None if verdict.own else incumbent.number
        return NextRun(of, verdict.seed, case.compared(verdict, noise))
    if label is Label.NONE:
        label, why = _outcome(verdict, rule, least)
    gain = bounded(verdict.gain, verdict.better, now, experiment.number, incumbent.number)
    if RULES[label] is Status.KEEP:
        controlled = case.controlled(now, simpler=label is Label.SIMPLER)
        if isinstance(controlled, NextRun):
            return controlled
        refused, left = controlled
        gain = gain if math.isnan(left) else min(gain, left)
        label, why = (Label.NO_GAIN, refused) if refused else (label, why)
    if label is Label.NONE and gain < least:
        label, why = (Label.SIMPLER, _TIE) if simpler else (Label.NO_GAIN, _too_small(gain, least))
    if RULES[label] is Status.KEEP:
        doubt = case.doubtful_gate(now)
        if doubt and len(experiment.counted_runs) <= rule.most:
            return NextRun(None, None, doubt)
        if doubt:
            label, why = Label.GATE_MISS, doubt
    overruled = identical or (label is Label.NO_GAIN and verdict.better >= rule.keep_at)
    status = RULES[label] or Status.DISCARD
    value, before, own = _mean_value(good), incumbent_value(task, now, incumbent), now.noise(incumbent.number)
    return Decision(
        status,
        label,
        value,
        delta=gain,
        metrics=means,
        confidence=mad_confidence(values, values[0] if values else None, value if status is Status.KEEP else before),
        sigma=own.sigma if own else None,
        reason=case.reason(verdict, noise, label=label, why=why, gain=gain),
        sure=0.0 if overruled else verdict.better,
    )


def _too_small(gain: float, least: float) -> str:
    return f"a gain of {_plain(gain)} is below scoring.min_delta ({_plain(least)})"


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
    sign, names = _sign(task.metric), {c.metric for c in task.scoring.constraints}
    samples = []
    for r in runs:
        if r.value is not None and _usable(r):
            figures = {name: x for name, x in r.metrics.items() if name in names and math.isfinite(x)}
            program = r.experiment if r.of is None else r.of
            samples.append(Sample(program, r.experiment, r.seed, sign * r.value, figures))
    return samples


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


def _failed(experiment: Experiment) -> Run | None:
    """The run that makes the experiment a failure: one bad run is enough, however good the others are."""
    for run in experiment.counted_runs:
        if run.of is None and not _usable(run):
            return run
    if not experiment.good_runs:
        return Run(0, experiment.number, 0, 0, experiment.started_at, label=Label.ERROR, detail="no run of it ended")
    return None


def _crash(label: Label, reason: str) -> Decision:
    return Decision(RULES[label] or Status.CRASH, label, reason=_sentence(reason))


def _label_of(run: Run) -> Label:
    """The label of a run that failed, also where it says nothing of it."""
    if run.label is Label.NONE or RULES[run.label] in (Status.KEEP, None):
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
    return _crash(label, reason)


def _aborted(task: Task, run: Run, noise_data: NoiseData, incumbent: Experiment) -> Decision:
    """A run that was ended early: no value; what its forecast is worth against the incumbent."""
    forecast, noise = run.metrics.get("forecast"), noise_data.noise(incumbent.number)
    delta = None
    if forecast is not None and math.isfinite(forecast):
        delta = task.metric.improvement(forecast, incumbent_value(task, noise_data, incumbent))
    decision = _crash(Label.ABORTED_EARLY, f"{Label.ABORTED_EARLY.value}: {run.detail}")
    return replace(decision, delta=delta, metrics=dict(run.metrics), sigma=noise.sigma if noise else None)


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
    """Judge experiment 0, the program as it is: it is kept, with the mean of its runs; without σ luck would be kept.

    BaselineError: a run gave no metric (log: where the last run's lies), or does not print what a constraint bounds.
    """
    good = [r for r in experiment.good_runs if _usable(r)]
    if not good or len(good) < len(experiment.counted_runs):
        raise _no_baseline(task, experiment, log)
    metrics = _mean_metrics(good)
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


def _mean_metrics(runs: Sequence[Run]) -> dict[str, float]:
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
