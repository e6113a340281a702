"""What a policy is told when nothing has been kept for a while: the longer it lasts, the further it should go.

The steps are those of a researcher who is stuck: think again, combine what nearly worked, try something radical, change
the approach. Advice names experiments by number and constants by name only, so that no model's words are in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Mode(StrEnum):
    """How stuck a session is."""

    NONE = ""
    REREAD = "re-read"
    COMBINE = "combine"
    RADICAL = "radical"
    CHANGE = "change"


STEPS: tuple[tuple[int, Mode], ...] = (
    (10, Mode.CHANGE),
    (8, Mode.RADICAL),
    (6, Mode.COMBINE),
    (3, Mode.REREAD),
)
"""From how many experiments in a row that were not kept each mode begins, the highest first."""

_SHOWN = 5


def mode(streak: int) -> Mode:
    """The mode after ``streak`` experiments in a row that were not kept."""
    return next((m for least, m in STEPS if streak >= least), Mode.NONE)


def advice(streak: int, *, near: Sequence[int] = (), constants: Sequence[str] = ()) -> str:
    """What to tell the policy; empty while it is not stuck.

    Args:
        streak: experiments in a row that were not kept.
        near: numbers of near misses, the best first.
        constants: names of what was changed most, the most first.
    """
    words = {
        Mode.NONE: "",
        Mode.REREAD: _reread(constants),
        Mode.COMBINE: _combine(near),
        Mode.RADICAL: _radical(constants),
        Mode.CHANGE: _change(constants),
    }[mode(streak)]
    return f"The last {streak} experiments were not kept. {words}" if words else ""


def _reread(constants: Sequence[str]) -> str:
    text = (
        "Stop and think before the next one: read the program from the top as if you had never seen it, ask which of "
        "your assumptions the results speak against, and where the time and the memory of a run really go."
    )
    return f"{text} Most changes so far were to {_names(constants)}: look elsewhere." if constants else text


def _combine(near: Sequence[int]) -> str:
    if len(near) > 1:
        return (
            f"Experiments {_numbers(near)} nearly helped. Combine two of them that do not touch the same thing: gains "
            "that are too small to be told from noise may add up to one that is not."
        )
    if near:
        return (
            f"Experiment {near[0]} nearly helped. Build on it: go further the same way, or join it with a second "
            "change that should add to it."
        )
    return "None of them came near. Join two independent changes that should each help a little, in one experiment."


def _radical(constants: Sequence[str]) -> str:
    text = (
        "Small steps do not help any more. Try something radical: another architecture, another optimiser, another way "
        "to use the budget, or take a whole mechanism out."
    )
    return f"{text} Leave {_names(constants)} alone." if constants else text


def _change(constants: Sequence[str]) -> str:
    text = (
        "This line of work is exhausted, and so role, policy or parent may have been changed. Begin afresh: leave what "
        "was tried behind, and propose an idea of a kind that no experiment above belongs to."
    )
    return f"{text} That rules out further changes of {_names(constants)}." if constants else text


def _names(constants: Sequence[str]) -> str:
    return ", ".join(constants[:_SHOWN])


def _numbers(near: Sequence[int]) -> str:
    shown = [str(n) for n in near[:_SHOWN]]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"
