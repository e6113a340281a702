"""The prompt of a state in words, and the state as JSON: what a tool of the user's own is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.metric import Direction
from autoresearchd.domain.state import ResearchState

_HISTORY = 32


def render(state: ResearchState) -> str:
    """The whole prompt: goal, rules, incumbent, history, notes, files; without secrets."""
    sections = (
        _goal(state),
        _rules(state),
        _standing(state),
        _experiments("Best experiments", state.top),
        _experiments("Latest experiments, oldest first", state.recent[-_HISTORY:]),
        _notes(state),
        _files(state),
    )
    return state.redactor.text("\n\n".join(s for s in sections if s) + "\n")


def _goal(state: ResearchState) -> str:
    metric = state.task.metric
    direction = "lower" if metric.direction is Direction.MINIMIZE else "higher"
    lines = [
        f"# Task {state.task.name}: improve {metric.name} ({direction} is better)",
        "",
        f"You are asked for experiment {state.number}. Make one change that should improve {metric.name}: it is "
        f"committed, run for {state.task.execution.budget.training:.0f} seconds of training, measured, and kept only "
        "if the improvement is more than noise.",
    ]
    if state.task.prompt.system:
        lines += ["", state.task.prompt.system.strip()]
    role = next((r for r in state.task.roles if r.name == state.role), None)
    if role is not None:
        lines += ["", f"Your part of the recipe is {role.name}: {role.surface} {role.instructions}".rstrip()]
    return "\n".join(lines)


def _rules(state: ResearchState) -> str:
    task = state.task
    lines = [
        "# How to answer",
        "",
        f"Edit these files in the current directory, and no others: {', '.join(task.editable)}.",
    ]
    if task.protected:
        lines.append(f"Protected, not to be changed: {', '.join(task.protected)}.")
    lines.append(
        'You may print one JSON object as the last line: {"hypothesis": "why it may help", "description": "one line", '
        '"expected_delta": 0.01, "next_action_hint": "what to try next"}.'
    )
    return "\n".join(lines)


def _standing(state: ResearchState) -> str:
    name = state.task.metric.name
    lines = ["# Where we stand", ""]
    lines.append(f"Incumbent: {name} = {number(state.incumbent_value)}; baseline: {number(state.baseline)}.")
    if state.sigma is not None:
        lines.append(f"Noise of one run: {number(state.sigma)} (standard deviation).")
    lines += [f"{key}: {_line(value, 400)}" for key, value in sorted(state.diagnostics.items())]
    return "\n".join(lines)


def _experiments(title: str, experiments: tuple[Experiment, ...]) -> str:
    if not experiments:
        return ""
    return "\n".join([f"# {title}", "", *(_experiment(e) for e in experiments)])


def _experiment(experiment: Experiment) -> str:
    decision, proposal = experiment.decision, experiment.proposal
    what = (proposal.description or proposal.hypothesis) if proposal else "baseline"
    if decision is None:
        return f"- {experiment.number}: {_line(what, 200)} (not decided)"
    label = f"/{decision.label}" if decision.label else ""
    gain = "" if decision.delta is None else f", improvement {decision.delta:+.5g}"
    lines = [f"- {experiment.number}: {_line(what, 200)}: {decision.status}{label}, {number(decision.value)}{gain}"]
    lines += [f"    {key}: {_line(value, 300)}" for key, value in experiment.asi.as_dict().items()]
    return "\n".join(lines)


def _notes(state: ResearchState) -> str:
    return "\n".join(["# Notes from the user", "", *(f"- {note}" for note in state.notes)]) if state.notes else ""


def _files(state: ResearchState) -> str:
    prompt, parts = state.task.prompt, []
    for path in state.task.editable:
        marker = prompt.file_marker.replace("{target_file}", path)
        parts.append(f"{marker}\n\n```{prompt.code_lang}\n{state.code.get(path, '')}\n```")
    return "\n\n".join(parts)


def number(value: float | None) -> str:
    """A measured value as people read it."""
    return "unknown" if value is None else f"{value:.6g}"


def _line(value: object, most: int) -> str:
    """On one line, cut to a length."""
    text = " ".join(str(value).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def as_json(state: ResearchState) -> dict[str, Any]:
    """The whole state as JSON values, without secrets."""
    task = state.task
    whole = {
        "tag": state.tag,
        "experiment": state.number,
        "parent": state.parent,
        "seed": state.seed,
        "state_id": state.state_id,
        "round_id": state.round_id,
        "role": state.role,
        "task": {
            "name": task.name,
            "metric": task.metric.name,
            "direction": str(task.metric.direction),
            "editable": list(task.editable),
            "protected": list(task.protected),
            "budget_s": task.execution.budget.training,
            "profile": task.profile,
        },
        "baseline": state.baseline,
        "incumbent": state.incumbent_value,
        "sigma": state.sigma,
        "notes": list(state.notes),
        "diagnostics": _plain(state.diagnostics),
        "recent": [_experiment_json(e) for e in state.recent],
        "top": [_experiment_json(e) for e in state.top],
        "code": dict(state.code),
    }
    return state.redactor.value(whole)


def _experiment_json(experiment: Experiment) -> dict[str, Any]:
    decision, proposal = experiment.decision, experiment.proposal
    return {
        "experiment": experiment.number,
        "commit": experiment.commit,
        "parent": experiment.parent,
        "status": str(decision.status) if decision else None,
        "label": str(decision.label) if decision else None,
        "metric": decision.value if decision else None,
        "metrics": _plain(decision.metrics) if decision else {},
        "delta": decision.delta if decision else None,
        "description": proposal.description if proposal else "baseline",
        "changes": _plain(proposal.changes) if proposal else {},
        "asi": _plain(experiment.asi.as_dict()),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values only; anything else as text."""
    return {
        str(k): v if isinstance(v, (str, int, float, bool, list, dict)) or v is None else str(v)
        for k, v in values.items()
    }
