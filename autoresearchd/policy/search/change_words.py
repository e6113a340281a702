"""How proposals of the policies without a model are put in words: subjects, hypotheses, hints."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoresearchd.policy.search.parameter import Parameter, Value

_MEANING: dict[str, tuple[str, str]] = {
    "learning rate": ("may converge faster within the budget", "may train more stably and end lower"),
    "batch size": ("gives less noisy gradients for fewer steps", "gives more optimiser steps within the budget"),
    "width": ("gives the model more capacity", "lets the model take more steps within the budget"),
    "depth": ("gives the model more depth", "lets the model take more steps within the budget"),
    "context": ("lets each token see further", "makes steps cheaper"),
    "weight decay": ("may regularise better", "may let the weights grow as they need"),
    "dropout": ("may regularise better", "may use the short budget better"),
    "average": ("averages gradients over a longer time", "follows the gradients more closely"),
    "schedule": (
        "changes the schedule in favour of a longer phase",
        "changes the schedule in favour of a shorter phase",
    ),
    "fraction": ("may suit this budget better", "may suit this budget better"),
    "epsilon": ("damps small updates", "lets small gradients count"),
    "steps": ("gives the procedure more steps", "makes the procedure cheaper"),
    "count": ("may suit this budget better", "makes steps cheaper"),
    "size": ("may suit this budget better", "may suit this budget better"),
    "value": ("may suit this budget better", "may suit this budget better"),
}
_ARCHITECTURE = frozenset({"width", "depth", "context", "count", "choice", "flag"})

Change = tuple[Parameter, Value]


def show(value: Value) -> str:
    """A value as people write it."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def arrow(change: Change) -> str:
    """``MATRIX_LR 0.04 → 0.056``."""
    parameter, value = change
    return f"{parameter.label} {show(parameter.value)} → {show(value)}"


def subject(changes: Sequence[Change]) -> str:
    """All changes in one line, for the subject of a commit."""
    return ", ".join(arrow(c) for c in changes)


def hypothesis(changes: Sequence[Change], reason: str = "") -> str:
    """Why the changes might help, in a sentence."""
    first = _clause(changes[0])
    others = "; ".join(_clause(c) for c in changes[1:])
    text = f"{first}; {others}" if others else first
    text = text[0].upper() + text[1:]
    return f"{text} ({reason})" if reason else text


def _clause(change: Change) -> str:
    parameter, value = change
    move = f"({show(parameter.value)} → {show(value)})"
    if not parameter.numeric:
        if isinstance(value, bool):
            return f"{parameter.label} {'on' if value else 'off'} may suit this budget better {move}"
        return f"{parameter.label} as {show(value)} may suit this budget better {move}"
    higher = parameter.place(value) > parameter.home
    meaning = _MEANING.get(parameter.range.family, _MEANING["value"])[0 if higher else 1]
    return f"a {'higher' if higher else 'lower'} {parameter.label} {move} {meaning}"


def architecture(changes: Sequence[Change]) -> str:
    """All changes where one of them alters the model, and not only its training; else nothing."""
    return subject(changes) if any(c[0].range.family in _ARCHITECTURE for c in changes) else ""


def hint(changes: Sequence[Change]) -> str:
    """What to try next, whichever way this one ends."""
    parameter, value = changes[0]
    if len(changes) > 1:
        return "if it helps, go on from here; if not, try the changes one at a time"
    if not parameter.numeric:
        return f"if it does not help, leave {parameter.label} at {show(parameter.value)}"
    here, there = parameter.home, parameter.place(value)
    if not (math.isfinite(here) and math.isfinite(there)):
        return ""
    further, back = parameter.at(2 * there - here), parameter.at(2 * here - there)
    onward = f"if it helps, try {parameter.label} = {show(further)}" if further != value else "if it helps, keep it"
    return f"{onward}; if not, try {show(back)}" if back != parameter.value else f"{onward}; if not, leave it"
