"""Turns go to the role that pays, to another one when that changes, and to each at least once."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.policy.turn_rules import choose

ARMS = ("architecture", "optimiser", "schedule", "data", "loss")


def play(rates: dict[str, float], turns: int, history: list[tuple[str, float]], seed: int) -> Counter[str]:
    """Add so many turns to the history, with keeps at the given rates; how often each arm had one."""
    luck = random.Random(seed)
    for turn in range(turns):
        arm = choose(ARMS, history, seed * 10_000 + len(history) + turn)
        history.append((arm, float(luck.random() < rates.get(arm, 0.05))))
    return Counter(arm for arm, _ in history[-turns:])


def test_most_turns_go_to_the_arm_that_pays_and_follow_it_when_that_changes() -> None:
    first, second = [], []
    for seed in range(20):
        history: list[tuple[str, float]] = []
        play({"data": 0.5}, 60, history, seed)
        first.append(play({"data": 0.5}, 60, history, seed)["data"])
        play({"loss": 0.5}, 60, history, seed)
        second.append(play({"loss": 0.5}, 60, history, seed)["loss"])
    assert sum(first) / len(first) > 30
    assert sum(second) / len(second) > 25


def test_a_session_of_forty_turns_already_gains_from_it() -> None:
    """A fifth of the turns is what going round-robin would give the arm that pays."""
    shares = [play({"schedule": 0.4}, 40, [], seed)["schedule"] / 40 for seed in range(40)]
    assert sum(shares) / len(shares) > 0.3


@given(st.integers(1, 12), st.integers(0, 2**31))
def test_every_arm_is_tried_before_any_is_tried_again(count: int, seed: int) -> None:
    arms = [f"role{i}" for i in range(count)]
    history: list[tuple[str, float]] = []
    for _ in arms:
        history.append((choose(arms, history, seed), 0.0))
    assert [arm for arm, _ in history] == arms


HISTORIES = st.lists(st.tuples(st.sampled_from([*ARMS, "gone"]), st.floats(allow_nan=True)), max_size=60)


@given(HISTORIES, st.integers(0, 2**31))
def test_the_same_history_and_seed_give_the_same_arm_whatever_the_rewards_are(
    history: list[tuple[str, float]], seed: int
) -> None:
    chosen = choose(ARMS, history, seed)
    assert chosen in ARMS
    assert choose(ARMS, list(history), seed) == chosen


def test_an_arm_that_only_failed_is_still_tried_now_and_then() -> None:
    history = [(arm, 0.0) for arm in ARMS] * 10 + [("data", 1.0)] * 5
    assert {choose(ARMS, history, seed) for seed in range(3000)} == set(ARMS)


def test_a_reward_that_is_no_number_pays_nothing() -> None:
    nothing = [(arm, 0.0) for arm in ARMS] * 4
    broken = [(arm, math.nan) for arm in ARMS] * 4
    assert [choose(ARMS, nothing, s) for s in range(20)] == [choose(ARMS, broken, s) for s in range(20)]


def test_no_arms_are_an_error() -> None:
    with pytest.raises(ValueError, match="no arms"):
        choose([], [], 0)
