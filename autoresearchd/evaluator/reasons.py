"""The reason of a decision in words: the comparison with its numbers, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep import Verdict
from autoresearchd.evaluator.noise import Noise, mean
from autoresearchd.evaluator.text import shorten

_NEGLIGIBLE = 1e-3


def reason(
    task: Task,
    verdict: Verdict,
    noise: Noise | None,
    experiment: Experiment,
    incumbent: Experiment,
    *,
    label: Label,
    why: str,
    means: float,
) -> str:
    """One sentence that says nothing against itself.

    Args:
        task: the task.
        verdict: the estimate, and how sure it is.
        noise: σ; None where it is not known.
        experiment: with all of its runs.
        incumbent: what it was compared with.
        label: of the decision.
        why: what follows from the comparison.
        means: by how much the mere mean of the experiment's runs is better than that of all of the incumbent's.
    """
    if label is Label.SIMPLER and noise is not None and noise.sigma > 0:
        return f"{_tie(task, verdict, noise, experiment, incumbent)}: {why}."
    words = comparison(task, verdict, noise, experiment, incumbent)
    if verdict.gain * means < 0:
        words += (
            f" (its mean is {number(abs(means))} {_word(means)} than that of all runs of experiment "
            f"{incumbent.number}, but runs made side by side and on one seed tell more)"
        )
    return f"{words}; {why}."


def comparison(task: Task, verdict: Verdict, noise: Noise | None, experiment: Experiment, incumbent: Experiment) -> str:
    """By how much an experiment is better or worse than the incumbent, and how sure that is."""
    text = _measured(task, experiment)
    if verdict.gain == 0:
        text += f" equals experiment {incumbent.number}"
    else:
        text += f" is {number(abs(verdict.gain))} {_word(verdict.gain)} than experiment {incumbent.number}"
    text += _beside(experiment)
    if noise is None:
        return f"{text} (the noise σ is not known, so the sign alone decides)"
    if noise.sigma == 0:
        return f"{text} (the metric has no noise)"
    known = f"± {number(verdict.error)}, σ = {number(noise.sigma)} from {noise.freedom} degrees of freedom"
    return f"{text} ({known}): an improvement with probability {verdict.better:.3g}"


def _tie(task: Task, verdict: Verdict, noise: Noise, experiment: Experiment, incumbent: Experiment) -> str:
    """What makes a tie: not that it is better, but that it is hardly worse."""
    equal = abs(verdict.gain) < _NEGLIGIBLE * verdict.error
    estimate = "no difference" if equal else f"{number(abs(verdict.gain))} {_word(verdict.gain)}"
    return (
        f"{_measured(task, experiment)} is worse than experiment {incumbent.number}{_beside(experiment)} by no more "
        f"than the σ of runs made side by side ({number(noise.sigma * noise.calm)}) with probability "
        f"{verdict.bearable:.3g} (estimate: {estimate} ± {number(verdict.error)})"
    )


def _measured(task: Task, experiment: Experiment) -> str:
    good = experiment.good_runs
    text = f"{task.metric.name} {number(mean_value(good))}"
    return f"{text} over {runs(len(good))}" if len(good) > 1 else text


def _beside(experiment: Experiment) -> str:
    count = len(experiment.control_runs)
    times = "once" if count == 1 else f"{count} times"
    return f" (run again {times} beside it)" if count else ""


def _word(gain: float) -> str:
    return "better" if gain > 0 else "worse"


def mean_value(measured: Sequence[Run]) -> float:
    """The mean of the values of runs."""
    return mean([run.value for run in measured if run.value is not None])


def number(value: float) -> str:
    """Six significant digits: what two lines of the same table need to differ in."""
    return f"{value:.6g}"


def runs(count: int) -> str:
    """So many runs in words."""
    return "1 run" if count == 1 else f"{count} runs"


def sentence(text: str) -> str:
    """A text on one line, cut to a length, with an end."""
    line = shorten(text, 600)
    return line if line.endswith((".", "!", "?", "…")) else line + "."
