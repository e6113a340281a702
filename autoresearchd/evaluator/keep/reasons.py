"""The reason of a decision in words: the comparison with its numbers, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from autoresearchd.domain.experiment import Experiment, Run
from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.keep_rule import Verdict
from autoresearchd.evaluator.keep.noise import Noise, mean
from autoresearchd.evaluator.measure.log_text import shorten
from autoresearchd.evaluator.rules.program_text import SEED_VARIABLE

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
    gain: float,
) -> str:
    """One sentence that says nothing against itself.

    why: what follows from the comparison. means: by how much the mere mean of the experiment's runs is better than that
    of all of the incumbent's. gain: as it is reported, where the values show less than is estimated.
    """
    if label is Label.SIMPLER and noise is not None and noise.sigma > 0:
        return f"{_tie(task, verdict, noise, experiment, incumbent)}: {why}."
    words = comparison(task, verdict, noise, experiment, incumbent)
    if verdict.gain * means < 0:
        words += (
            f" (its mean is {known(abs(means), verdict.error)} {_word(means)} than that of all runs of experiment "
            f"{incumbent.number}, but runs made side by side and on one seed tell more)"
        )
    if known(abs(gain), verdict.error) != known(abs(verdict.gain), verdict.error):
        words += f", counted as {known(gain, verdict.error)}, as the values themselves show no more"
    return f"{words}; {why}."


def comparison(task: Task, verdict: Verdict, noise: Noise | None, experiment: Experiment, incumbent: Experiment) -> str:
    """By how much an experiment is better or worse than the incumbent, and how sure that is."""
    text = _measured(task, experiment, noise)
    if verdict.gain == 0:
        text += f" equals experiment {incumbent.number}"
    else:
        gain = known(abs(verdict.gain), verdict.error)
        text += f" is {gain} {_word(verdict.gain)} than experiment {incumbent.number}"
    text += _beside(experiment)
    if noise is None:
        return f"{text} (the noise σ is not known, so the sign alone decides)"
    if noise.sigma == 0:
        none = "the metric has no noise" if noise.seeded else f"no noise seen: the program ignores {SEED_VARIABLE}"
        return f"{text} ({none})"
    sure = f"± {verdict.error:.2g}, σ = {noise.sigma:.2g} from {noise.freedom} degrees of freedom"
    return f"{text} ({sure}): an improvement with probability {verdict.better:.3g}"


def _tie(task: Task, verdict: Verdict, noise: Noise, experiment: Experiment, incumbent: Experiment) -> str:
    """What makes a tie: not that it is better, but that it is hardly worse."""
    equal = abs(verdict.gain) < _NEGLIGIBLE * verdict.error
    estimate = "no difference" if equal else f"{known(abs(verdict.gain), verdict.error)} {_word(verdict.gain)}"
    return (
        f"{_measured(task, experiment, noise)} is worse than experiment {incumbent.number}{_beside(experiment)} "
        f"by no more than the σ of runs made side by side ({noise.sigma * noise.calm:.2g}) with probability "
        f"{verdict.bearable:.3g} (estimate: {estimate} ± {verdict.error:.2g})"
    )


def _measured(task: Task, experiment: Experiment, noise: Noise | None) -> str:
    good = experiment.good_runs
    text = f"{task.metric.name} {known(mean_value(good), noise.sigma if noise else 0.0)}"
    return f"{text} over {counted(len(good), 'run')}" if len(good) > 1 else text


def _beside(experiment: Experiment) -> str:
    count = len(experiment.control_runs)
    times = "once" if count == 1 else f"{count} times"
    return f" (run again {times} beside it)" if count else ""


def _word(gain: float) -> str:
    return "better" if gain > 0 else "worse"


def mean_value(measured: Sequence[Run]) -> float:
    """The mean of the values of runs."""
    return mean([run.value for run in measured if run.value is not None])


def known(value: float, spread: float) -> str:
    """A figure with no more digits than its spread leaves a meaning to: down to the second one of the spread."""
    if not (spread > 0 and math.isfinite(spread) and math.isfinite(value)):
        return f"{value:.6g}"
    rounded = round(value, 1 - math.floor(math.log10(spread)))
    return f"{rounded:.6g}" if rounded or not value else f"{value:.1g}"


def plain(value: float) -> str:
    """A small figure without an exponent: two significant digits."""
    return format(Decimal(f"{value:.2g}"), "f")


def sentence(text: str) -> str:
    """A text on one line, cut to a length, with an end."""
    line = shorten(text, 600)
    return line if line.endswith((".", "!", "?", "…")) else line + "."
