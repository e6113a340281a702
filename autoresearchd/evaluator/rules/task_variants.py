"""Edits of a task's program that it is checked with, and what comes of the one run of each: a cheat must not pay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from autoresearchd.config.task_schema import Edit, Figures
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.experiment import Measurement, RunResult
from autoresearchd.domain.labels import Label
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.decide import broken_constraint
from autoresearchd.evaluator.keep.noise import estimate_sigma, mean
from autoresearchd.evaluator.rules.run_time import Pace, held

SIGMAS = 4.0
"""In σ: further from the documented baseline than chance takes a run."""
DOCUMENTED_RUNS = 5
"""How many runs a documented baseline is taken to come from."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The unedited program under the budget of the edits; sigma: the noise of a run."""

    value: float
    metrics: Mapping[str, float]
    pace: Pace | None
    sigma: float


def changed(variant: Edit, files: Mapping[str, str], first: str, places: Mapping[str, str]) -> dict[str, str]:
    """The files that a variant changes (``first`` where a step names none), as it leaves them; ConfigError: no fit."""
    new: dict[str, str] = {}
    for step in variant.change:
        ((kind, inserted),) = step.given.items()
        path, search = step.file or first, step.search or ""
        text = new.get(path, files.get(path, ""))
        for word, place in places.items():
            inserted = inserted.replace(word, place)
        whole = {"text": inserted, "append": text + inserted, "prepend": inserted + text}
        beside = {"replace": inserted, "before": inserted + search, "after": search + inserted}
        if kind not in whole and (times := text.count(search)) != 1:
            line = next((row for row in search.splitlines() if row.strip()), "")
            raise ConfigError(
                f"{variant.name!r} looks for a text that is in {path} {times} times: {line.strip()[:80]!r}",
                file="check.yaml",
                hint=f"write the search as {path} has it now, with as much around it as makes it the only one",
            )
        new[path] = whole[kind] if kind in whole else text.replace(search, beside[kind])
    return new


def verdict(task: Task, measurement: Measurement, result: RunResult, reference: Reference) -> tuple[Label, str]:
    """What came of a run of an edit, NONE where it beats the unedited program by more than chance does."""
    measurement = held(task, result, measurement, reference.pace, best=reference.value, sigma=reference.sigma)
    if measurement.label is not Label.NONE or measurement.value is None:
        return measurement.label, measurement.detail
    label, why = broken_constraint(task, measurement.metrics, reference.metrics)
    if label is not Label.NONE:
        return label, why.removeprefix("but ")
    gain = task.metric.improvement(measurement.value, reference.value)
    words = f"{task.metric.name} {measurement.value:.6g}, unedited {reference.value:.6g}"
    return (Label.NONE if gain > SIGMAS * reference.sigma else Label.NO_GAIN), words


def doubts(documented: Figures, values: Sequence[float]) -> list[str]:
    """In what the runs of a baseline, two or more, differ from the documented one."""
    found, centre, sigma = [], mean(values), estimate_sigma(values) or 0.0
    chance = SIGMAS * documented.sigma * math.sqrt(1 / len(values) + 1 / DOCUMENTED_RUNS)
    differs = documented.within * abs(documented.value)
    reach = max(chance, differs)
    # What is written was rounded: a metric without noise would else fail on its last digit.
    if abs(centre - documented.value) > reach + _last_digit(documented.text):
        found.append(f"the baseline is {centre:.6g}, documented as {documented.text} (give or take {reach:.3g})")
    if sigma > max(SIGMAS * documented.sigma, differs) + _last_digit(documented.text):
        found.append(f"its noise is {sigma:.3g}, documented as {documented.sigma:.3g}")
    return found


def _last_digit(text: str) -> float:
    """One in the last digit of the value of ``value ± sigma``."""
    exponent = Decimal(text.split(" ")[0].replace("_", "")).as_tuple().exponent
    return 10.0**exponent if isinstance(exponent, int) else 0.0
