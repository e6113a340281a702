"""What a policy gets for an experiment: words, by the task's own templates or these, and a reward.

Templates know a few named fields and nothing else of ``str.format``: a model's text, which may hold any braces, is
only ever filled in, never interpreted.

The reward is for every policy and every learner the same: r = clip(−Δ/σ) + λ·η + ν·novelty, or the penalty of the
label: the reward of AutoResearch-RL (arXiv:2603.07300) with the improvement over the tip in units of the noise σ. That
is the expected one, which is shrunken, so that luck earns little. The clip is narrow below, so that an honest failure
never costs more than a crash.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import FORBIDDEN, RULES, Label, Status
from autoresearchd.domain.proposal import KNOWN_VALUE
from autoresearchd.domain.task import Task
from autoresearchd.evaluator import re_added

DEFAULTS: Mapping[str, str] = {
    "success": "This is kept: it gave {metric} {value}, and a gain is expected. Build on it.",
    "failure": "This was not kept: {reason} Try something different.",
    "crash": "The experiment failed ({label}): {reason} Fix the cause, or try something else.",
    "checks": "The experiment was rejected ({label}): {reason} Do not change what is measured or checked.",
    "duplicate": "This program has been tried before: {reason} Propose something new.",
    "no_change": "Nothing changed: {reason} Propose an edit that changes what the program does.",
    "sed_failed": "The edit could not be used: {error} Answer in the format that was asked for.",
    "degradation": "It is worse than the best so far by {degradation}, which is a lot.",
}
"""By the keys of ``feedback`` in task.yaml; ``sed_failed`` (autoresearch-distillation): an edit that cannot be used."""

MAX_REASON = 1000

_FIELD = re.compile(r"\{\{|\}\}|\{([a-z_]{1,32})(?::(\+?,?(?:\.[0-9])?[efg]))?\}")
_BY_LABEL = {
    Label.DUPLICATE: "duplicate",
    Label.NO_OP: "no_change",
    Label.ILLEGAL_EDIT: "sed_failed",
    Label.MALFORMED_ANSWER: "sed_failed",
}
_BY_STATUS = {Status.KEEP: "success", Status.DISCARD: "failure", Status.CRASH: "crash", Status.CHECKS_FAILED: "checks"}


def feedback(task: Task, experiment: Experiment) -> str:
    """What to tell the policy about a decided experiment; empty while it is undecided."""
    decision = experiment.decision
    if decision is None:
        return ""
    status = Status.DISCARD if experiment.confirmed is False else decision.status
    kinds = [_BY_LABEL.get(decision.label) or _BY_STATUS[status]]
    if decision.delta is not None and -decision.delta > task.scoring.degradation_threshold:
        kinds.insert(0, "degradation")
    fields = _fields(task, experiment, decision)
    parts = [_figures(task, decision), *(fill(task.feedback.get(kind) or DEFAULTS[kind], fields) for kind in kinds)]
    if back := experiment.asi.extra.get(re_added.KEY):
        parts.append(f"{back}.")
    return "\n".join(part for part in parts if part)


def fill(template: str, fields: Mapping[str, str | float | None]) -> str:
    """``template`` with its known fields filled in; ``{{`` and ``}}`` are braces, anything else stays as it is."""

    def one(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]
        if match[1] not in fields:
            return match[0]
        value = fields[match[1]]
        if isinstance(value, str):
            return value
        return "unknown" if value is None else format(value, match[2] or ".6g")

    return _FIELD.sub(one, template)


def _fields(task: Task, experiment: Experiment, decision: Decision) -> dict[str, str | float | None]:
    label = decision.label.value or decision.status.value
    reason = decision.reason[:MAX_REASON] or f"{label}."
    if experiment.confirmed is False:
        reason = f"its gain of {decision.delta or 0.0:.6g} did not stand when it was measured again on other seeds."
    known = experiment.asi.extra.get(KNOWN_VALUE)
    return {
        "metric": task.metric.name,
        "direction": task.metric.direction.value,
        "value": known if decision.label is Label.DUPLICATE and isinstance(known, float) else decision.value,
        "delta": decision.delta,
        "degradation": None if decision.delta is None else max(0.0, -decision.delta),
        "status": decision.status.value,
        "label": label,
        "reason": reason,
        "error": reason,
        "hypothesis": experiment.proposal.hypothesis[:MAX_REASON] if experiment.proposal else "",
        "experiment": str(experiment.number),
        "target_file": task.editable[0] if task.editable else "",
    }


def _figures(task: Task, decision: Decision) -> str:
    """Metric, change, and what the task wants shown: ``val_bpb = 0.981 (0.002 better) | peak_vram_mb = 512``."""
    parts = []
    if decision.value is not None:
        change = ""
        if decision.delta is not None:
            word = "better" if decision.delta > 0 else "worse"
            change = f" ({abs(decision.delta):.6g} {word})" if decision.delta else " (the same)"
        parts.append(f"{task.metric.name} = {decision.value:.6g}{change}")
    shown = (name for name in task.scoring.display_metrics if name != task.metric.name)
    parts.extend(f"{name} = {decision.metrics[name]:.6g}" for name in shown if name in decision.metrics)
    return " | ".join(parts)


# ---------------------------------------------------------------------- the reward
MAX_CHARACTERS = 4000
"""Of one diff that are compared: enough to tell ideas apart, and a bound on the time (quadratic in the length)."""
FORMULA = "3"
"""Version of the formula and its constants: rewards of different versions must not be mixed.

What was refused without a value had no reward at first; as such rows have none, those of before can stay.
"""
WORST, BEST = -1.0, 5.0
"""Bounds of the improvement in σ."""
EFFICIENCY, NOVELTY, NOVEL_FROM = 0.2, 0.1, 0.3
"""λ, ν, and the least distance that counts as novel."""
FLOOR = 1e-4
"""The smallest σ, as a share of the incumbent's value."""
PENALTIES: Mapping[Label, float] = {
    **{label: -2.0 for label, status in RULES.items() if status is Status.CRASH},
    Label.METRIC_TAMPERING: -5.0,
    Label.NOT_CAUSAL: -5.0,
    Label.CHECK_FAILED: -2.0,
    Label.DUPLICATE: -0.5,
    Label.NO_OP: -0.5,
}
"""By label, in place of everything else."""
_NONE = frozenset({Label.STALE_PARENT, *(label for label, status in RULES.items() if status is None)})
"""Labels that say nothing about the proposal."""


def changed_lines(diff: str) -> str:
    """The lines that a unified diff adds and removes, signs kept, as far as they are compared."""
    return "\n".join(re_added.signed(diff))[:MAX_CHARACTERS]


def novelty(diff: str, earlier: Iterable[str]) -> float:
    """Distance to the nearest earlier diff: 0 for one that was tried before, 1 for one that shares nothing."""
    own = changed_lines(diff)
    nearest = 1.0
    for other in earlier:
        nearest = min(nearest, Levenshtein.normalized_distance(own, changed_lines(other), score_cutoff=nearest))
    return nearest


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward with its components. formula: version."""

    total: float
    parts: Mapping[str, float]
    formula: str = FORMULA


def reward(
    label: Label,
    improvement: float | None,
    sigma: float | None,
    reference: float | None,
    *,
    saved: float = 0.0,
    distance: float = 0.0,
) -> Reward | None:
    """The reward of one experiment; None where its outcome says nothing about the proposal.

    improvement: expected over the tip, positive when better; of an aborted run the forecast's. reference: the tip's
    value. saved: η, the share of the tip's resources that was not needed. distance: novelty of the diff, 0 to 1.
    """
    if label in _NONE:
        return None
    if label in PENALTIES:
        return Reward(PENALTIES[label], {"penalty": PENALTIES[label]})
    if improvement is None or not math.isfinite(improvement):
        if label not in FORBIDDEN:
            return None
        improvement = -math.inf  # refused before anything was measured: a gate that is missed is no neutral outcome
    unit = max(sigma or 0.0, FLOOR * abs(reference or 0.0)) or 1.0
    gain = min(BEST, max(WORST, improvement / unit))
    if label in FORBIDDEN:  # no improvement makes it good
        gain = min(gain, 0.0)
    # Thrift is worth something only where nothing was lost by it: doing nothing at all is the most thrifty program.
    thrift = EFFICIENCY * min(1.0, max(-1.0, saved)) if gain > 0 else 0.0
    novel = NOVELTY * min(1.0, distance) if distance >= NOVEL_FROM else 0.0
    parts = {"improvement": gain, "efficiency": thrift, "novelty": novel}
    return Reward(gain + thrift + novel, parts)


def resources_saved(used: Mapping[str, float], incumbent: Mapping[str, float]) -> float:
    """η: mean share of each resource that the experiment needed less of, −1 to 1; 0 where both report none."""
    shares = [
        min(1.0, max(-1.0, 1.0 - used[name] / incumbent[name]))
        for name in used
        if name in incumbent and math.isfinite(used[name]) and math.isfinite(incumbent[name]) and incumbent[name] > 0
    ]
    return math.fsum(shares) / len(shares) if shares else 0.0
