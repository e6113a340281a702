"""Fresh proposals: two policies are asked the same with the same random numbers, and whoever stops it is heard."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from autoresearchd.domain.errors import Interrupted
from autoresearchd.learner.gate.fresh_proposals import Fresh, fitting, fresh
from autoresearchd.learner.gate.judge_answers import HeldOutState

torch = pytest.importorskip("torch")

from autoresearchd.learner.algorithms.learnable import Who  # noqa: E402 - needs torch
from tests.fakes.samplers import ScriptedSampler  # noqa: E402 - needs torch


def answer(who: Who, length: int, seed: int) -> str:
    """A number that follows from the seed, the prompt's length, and who is asked."""
    return f"{length} {random.Random(seed).random() + (0.1 if who is Who.POLICY else 0.0):.3f}"


def parrot(context: int | None = 100) -> ScriptedSampler:
    return ScriptedSampler(answer, context=context)


def states(*lengths: int) -> list[HeldOutState]:
    return [HeldOutState(f"s/{n}", "s", n, "", ({"content": "x" * size},), {}) for n, size in enumerate(lengths)]


def ask(model: ScriptedSampler, *lengths: int, who: Who = Who.POLICY, **changed: Any) -> list[Fresh]:
    asked: dict[str, Any] = {"count": 3, "max_tokens": 10, "temperature": 1.0, "seed": 5, **changed}
    return fresh(model, states(*lengths), who=who, **asked)


def test_each_state_is_asked_as_often_as_said_and_answers_come_in_order() -> None:
    found = ask(parrot(), 30, 5, 20, batch=2)
    assert [f.state.key for f in found] == ["s/0"] * 3 + ["s/1"] * 3 + ["s/2"] * 3
    assert [f.completion.split()[0] for f in found] == ["30"] * 3 + ["5"] * 3 + ["20"] * 3
    assert len({f.completion for f in found}) == 9, "or all proposals of a state would be the same"
    assert found[0].attempt == (found[0].state, found[0].completion)
    assert (found[0].tokens, found[0].finished) == (2, True)


def test_two_policies_draw_with_the_same_random_numbers() -> None:
    old, new = ask(parrot(), 30, 5, who=Who.BASE), ask(parrot(), 30, 5, who=Who.POLICY)
    pairs = [(float(a.completion.split()[1]), float(b.completion.split()[1])) for a, b in zip(old, new, strict=True)]
    assert all(b - a == pytest.approx(0.1, abs=2e-3) for a, b in pairs)


def test_the_same_arguments_give_the_same_proposals_whatever_the_batch() -> None:
    assert ask(parrot(), 30, 5, 20, batch=1) == ask(parrot(), 30, 5, 20, batch=4)
    assert ask(parrot(), 30) != ask(parrot(), 30, seed=6)


def test_prompts_that_leave_no_room_are_counted_with_the_reason() -> None:
    found, left_out = fitting(parrot(), states(90, 91, 200), 10)
    assert [state.key for state in found] == ["s/0"]
    assert left_out == {"its prompt and an answer of 10 tokens are longer than the model's context of 100": 2}
    assert fitting(parrot(context=None), states(1000), 10) == (tuple(states(1000)), {})


def test_whoever_stops_the_learner_waits_for_one_batch_at_most() -> None:
    stop = threading.Event()
    stop.set()
    model = parrot()
    with pytest.raises(Interrupted):
        ask(model, 30, cancel=stop)
    assert model.batches == []
