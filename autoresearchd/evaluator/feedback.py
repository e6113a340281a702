"""The words that a policy is told about an experiment: the task's own templates, or these.

Templates know a few named fields and nothing else of ``str.format``: a model's text, which may hold any braces, is
only ever filled in, never interpreted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.task import Task

DEFAULTS: Mapping[str, str] = {
    "success": "This is an improvement: {metric} is now {value}. Build on it.",
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
    kinds = [_BY_LABEL.get(decision.label) or _BY_STATUS[decision.status]]
    if decision.delta is not None and -decision.delta > task.scoring.degradation_threshold:
        kinds.insert(0, "degradation")
    fields = _fields(task, experiment, decision)
    parts = [_figures(task, decision), *(fill(task.feedback.get(kind) or DEFAULTS[kind], fields) for kind in kinds)]
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
    return {
        "metric": task.metric.name,
        "direction": task.metric.direction.value,
        "value": decision.value,
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
