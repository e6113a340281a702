"""Fresh proposals of a policy for held-out states, drawn with random numbers that two policies have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoresearchd.domain.errors import Interrupted, UsageError
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.gate.judge_answers import Attempt, HeldOutState

if TYPE_CHECKING:
    from autoresearchd.learner.algorithms.learnable import Sampler, Who

BATCH = 8
"""Completions that are drawn at once."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A completion that a policy gave for a held-out state. tokens: how many; finished: whether it ended by itself."""

    state: HeldOutState
    completion: str
    tokens: int
    finished: bool

    @property
    def attempt(self) -> Attempt:
        """As a judge takes it."""
        return self.state, self.completion


def fitting(
    model: Sampler, states: Sequence[HeldOutState], max_tokens: int
) -> tuple[tuple[HeldOutState, ...], Mapping[str, int]]:
    """The states whose prompt leaves room for an answer, and how many others there are, by the reason in words."""
    room = None if model.context is None else model.context - max_tokens
    if room is None:
        return tuple(states), {}
    found = tuple(state for state in states if len(model.encode(state.messages)) <= room)
    why = f"its prompt and an answer of {max_tokens:,} tokens are longer than the model's context of {model.context:,}"
    return found, {why: len(states) - len(found)} if len(found) < len(states) else {}


def fresh(
    model: Sampler,
    states: Sequence[HeldOutState],
    *,
    who: Who,
    count: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    batch: int = BATCH,
    cancel: Cancel | None = None,
) -> list[Fresh]:
    """Ask a policy ``count`` times at each state; the completions in order of the states.

    The seed of each completion follows from ``seed``, the state and its place alone: two policies that are asked with
    the same arguments draw with the same random numbers, so that what differs is what they believe. A state whose
    prompt leaves no room for ``max_tokens`` in the model's context is left out, alike for both (see ``fitting``).
    Raises UsageError: nothing is asked for; Interrupted: ``cancel`` was set; it is looked at between two batches.
    """
    if count < 1 or max_tokens < 1 or batch < 1:
        raise UsageError(
            f"{count} completions of {max_tokens} tokens, {batch} at once, are none",
            hint="take at least 1 of each; 4 completions of a state are usual",
        )
    questions: list[tuple[HeldOutState, tuple[int, ...], int]] = []
    for state in fitting(model, states, max_tokens)[0]:
        prompt = model.encode(state.messages)
        questions += [(state, prompt, derive_seed(seed, i, f"fresh {state.key}")) for i in range(count)]
    # Prompts of like length share a batch: there is less padding to compute.
    order = sorted(range(len(questions)), key=lambda i: len(questions[i][1]))
    found: dict[int, Fresh] = {}
    for begin in range(0, len(order), batch):
        if cancel is not None and cancel.is_set():
            raise Interrupted("the learner was stopped while it drew fresh proposals")
        chosen = order[begin : begin + batch]
        drawn = model.generate(
            [questions[i][1] for i in chosen],
            max_tokens=max_tokens,
            temperature=temperature,
            seeds=[questions[i][2] for i in chosen],
            who=who,
        )
        for i, each in zip(chosen, drawn, strict=True):
            found[i] = Fresh(questions[i][0], each.text, len(each.ids), each.finished)
    return [found[i] for i in range(len(questions))]
