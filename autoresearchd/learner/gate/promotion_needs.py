"""What a promotion takes beside what there is, as far as it can be told before anything is learned; light, no numpy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from autoresearchd.domain.quantities import counted
from autoresearchd.learner.data.read_sessions import Material, ReadSession
from autoresearchd.learner.data.trajectories import Trajectory, grouped
from autoresearchd.learner.training.constant_values import SHARE

if TYPE_CHECKING:
    from autoresearchd.learner.gate.held_out_states import Ground

LEAST = 20
"""Held-out states below which nothing is promoted."""
QUICK_S = 10.0
"""Experiments that train for so long at most are run for the gate, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class GateSettings:
    """How two policies are asked and judged.

    judge: ``real`` (experiments are run), ``checks`` (only validity, duplicates and novelty are compared), or ``auto``:
    real where a run trains for ten seconds at most. states: at most; count: proposals for each; max_tokens: of a
    proposal, 0: as long as those that were stored. run_foreign: whether experiments of other repositories may be run,
    too.
    """

    judge: str = "auto"
    states: int = 40
    count: int = 4
    max_tokens: int = 0
    temperature: float = 1.0
    run_foreign: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> GateSettings:
        """Those that ``--set`` names, and the usual ones for all others."""
        return cls(**{each.name: values[each.name] for each in fields(cls) if each.name in values})

    def runs(self, sessions: Sequence[Ground | ReadSession]) -> bool:
        """Whether proposals for these sessions are run, and not only checked; a foreign task has no say in it."""
        budgets = [each.task.execution.budget.training for each in sessions if each.task is not None]
        if self.judge == "real" or not budgets:
            return bool(budgets)
        foreign = any(each.foreign for each in sessions)
        return self.judge == "auto" and max(budgets) <= QUICK_S and (self.run_foreign or not foreign)


@dataclass(frozen=True, slots=True)
class Promotion:
    """What the gate would have, and what it takes. more: states still to be made so that LEAST are held out."""

    states: int
    sessions: int
    answers: int
    more: int
    proposals: int
    experiments: int


def promotion(found: Material, sessions: Iterable[ReadSession], values: Mapping[str, Any]) -> Promotion:
    """What a promotion takes of what was read and split. values: of the constants that ``--set`` names."""
    held: Sequence[Trajectory] = found.parts.held_out if found.parts is not None else ()
    settings, share = GateSettings.of(values), values.get("share", SHARE)
    states, names = len(grouped(held)), {each.session for each in held}
    there = len(grouped(found.data.trajectories))
    more = max(1, math.ceil(LEAST / share) - there, math.ceil((LEAST - states) / share)) if states < LEAST else 0
    proposals = 2 * settings.count * min(states, settings.states)
    runs = settings.runs([session for session in sessions if session.name in names])
    return Promotion(states, len(names), len(held), more, proposals, proposals + len(names) if runs else 0)


def lines(found: Promotion, model: str, values: Mapping[str, Any]) -> list[str]:
    """The same as text. model: the folder of the base model, empty where none is named."""
    settings = GateSettings.of(values)
    present = f"{counted(found.states, 'state')} of {counted(found.sessions, 'session')}" if found.states else "none"
    enough = "" if not found.more else f"; run about {counted(found.more, 'more state')} first"
    asked = "the gate has nothing to ask about yet"
    if found.proposals:
        each = f"{counted(min(found.states, settings.states), 'state')} × {settings.count}"
        ran = f"up to {counted(found.experiments, 'experiment')} would be run" if found.experiments else "none is run"
        asked = f"the gate asks for {counted(found.proposals, 'proposal')} (both policies, {each}); {ran}"
    named = model or "none is named: --model DIR, a folder with config.json, tokenizer and safetensors"
    return [
        "a promotion takes, beside a new policy that earns surely more:",
        f"  held-out states: {LEAST}; there: {present}{enough}",
        f"  decided proposals in them: {found.answers:,}; {asked}",
        f"  base model: {named}",
    ]
