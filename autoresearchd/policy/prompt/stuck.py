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


_STEPS = ((10, Mode.CHANGE), (8, Mode.RADICAL), (6, Mode.COMBINE), (3, Mode.REREAD))
"""From how many experiments in a row that were not kept each mode begins, the highest first."""
_ADVICE = {
    Mode.REREAD: (
        "Stop and think before the next one: read the program from the top as if you had never seen it, ask which of "
        "your assumptions the results speak against, and where the time and the memory of a run really go.",
        "Most changes so far were to {names}: look elsewhere.",
    ),
    Mode.RADICAL: (
        "Small steps do not help any more. Try something radical: another architecture, another optimiser, another way "
        "to use the budget, or take a whole mechanism out.",
        "Leave {names} alone.",
    ),
    Mode.CHANGE: (
        "This line of work is exhausted, and so role, policy or parent may have been changed. Begin afresh: leave what "
        "was tried behind, and propose an idea of a kind that no experiment above belongs to.",
        "That rules out further changes of {names}.",
    ),
}
"""What each mode says, and what it adds where constants were changed most."""
_SHOWN = 5


def mode(streak: int) -> Mode:
    """The mode after ``streak`` experiments in a row that were not kept."""
    return next((m for least, m in _STEPS if streak >= least), Mode.NONE)


def advice(streak: int, *, near: Sequence[int] = (), constants: Sequence[str] = ()) -> str:
    """What to tell the policy; empty while it is not stuck.

    near: numbers of near misses, the best first. constants: names of what was changed most, the most first.
    """
    now = mode(streak)
    if now is Mode.NONE:
        return ""
    if now is Mode.COMBINE:
        words = _combine([str(n) for n in near[:_SHOWN]])
    else:
        words, more = _ADVICE[now]
        words += " " + more.format(names=", ".join(constants[:_SHOWN])) if constants else ""
    return f"The last {streak} experiments were not kept. {words}"


def _combine(near: Sequence[str]) -> str:
    if not near:
        return "None of them came near. Join two independent changes that should each help a little, in one experiment."
    if len(near) == 1:
        return (
            f"Experiment {near[0]} nearly helped. Build on it: go further the same way, or join it with a second "
            "change that should add to it."
        )
    return (
        f"Experiments {', '.join(near[:-1])} and {near[-1]} nearly helped. Combine two of them that do not touch the "
        "same thing: gains that are too small to be told from noise may add up to one that is not."
    )
