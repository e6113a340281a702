"""What a promotion takes beside what there is, as far as it can be told before anything is learned; light, no numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoresearchd.domain.quantities import counted
from autoresearchd.learner.data.read_sessions import Material, ReadSession
from autoresearchd.learner.data.trajectories import Trajectory, grouped
from autoresearchd.learner.training.constant_values import SHARE

LEAST = 20
"""Held-out states below which nothing is promoted."""
STATES, COUNT, JUDGE = 40, 4, "auto"
"""Of the gate, where ``--set`` says nothing: states asked about at most, proposals for each, how they are judged."""
QUICK_S = 10.0
"""Experiments that train for so long at most are run for the gate, where nothing else is said."""


def runs_experiments(judge: str, budgets: Iterable[float], *, foreign: bool, run_foreign: bool) -> bool:
    """Whether the gate runs proposals, and does not only check them.

    Args:
        judge: as ``--set judge`` has it.
        budgets: seconds of training of the sessions that are asked about; of none, nothing is run.
        foreign: whether one of them is of another repository, whose task has no say in it.
        run_foreign: whether such are run, too.
    """
    known = list(budgets)
    if judge == "real" or not known:
        return bool(known)
    return judge == "auto" and all(budget <= QUICK_S for budget in known) and (run_foreign or not foreign)


@dataclass(frozen=True, slots=True)
class Promotion:
    """What the gate would have, and what it takes.

    states: that are held out, of so many sessions; more: states still to be made so that LEAST are held out. proposals:
    that it would ask for, of both policies together; experiments: how many of them it would run at most.
    """

    states: int
    sessions: int
    answers: int
    more: int
    proposals: int
    experiments: int


def promotion(found: Material, sessions: Sequence[ReadSession], values: Mapping[str, Any]) -> Promotion:
    """What a promotion takes of what was read.

    found: the dataset, split. sessions: those that were read. values: of the constants that are named.
    """
    held: Sequence[Trajectory] = found.parts.held_out if found.parts is not None else ()
    states, names = len(grouped(held)), {each.session for each in held}
    there = len(grouped(found.data.trajectories))
    share = values.get("share", SHARE)
    more = max(1, math.ceil(LEAST / share) - there, math.ceil((LEAST - states) / share)) if states < LEAST else 0
    asked = min(states, values.get("states", STATES))
    proposals = 2 * values.get("count", COUNT) * asked
    of = [session for session in sessions if session.name in names]
    runs = runs_experiments(
        values.get("judge", JUDGE),
        [session.task.execution.budget.training for session in of if session.task is not None],
        foreign=any(session.foreign for session in of),
        run_foreign=values.get("run_foreign", False),
    )
    return Promotion(states, len(names), len(held), more, proposals, proposals + len(names) if runs else 0)


def lines(found: Promotion, model: str, values: Mapping[str, Any]) -> list[str]:
    """The same as text. model: the folder of the base model, empty where none is named."""
    present = f"{counted(found.states, 'state')} of {counted(found.sessions, 'session')}" if found.states else "none"
    enough = "" if not found.more else f"; run about {counted(found.more, 'more state')} first"
    asked = "the gate has nothing to ask about yet"
    if found.proposals:
        each = f"{counted(min(found.states, values.get('states', STATES)), 'state')} × {values.get('count', COUNT)}"
        ran = f"up to {counted(found.experiments, 'experiment')} would be run" if found.experiments else "none is run"
        asked = f"the gate asks for {counted(found.proposals, 'proposal')} (both policies, {each}); {ran}"
    named = model or "none is named: --model DIR, a folder with config.json, tokenizer and safetensors"
    return [
        "a promotion takes, beside a new policy that earns surely more:",
        f"  held-out states: {LEAST}; there: {present}{enough}",
        f"  decided proposals in them: {found.answers:,}; {asked}",
        f"  base model: {named}",
    ]
