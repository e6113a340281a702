"""Advantages tell better answers from worse ones of the same state, and say where there is nothing to tell."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.advantages import Neighbours, Scale, gae, group_advantages, normalised

REWARDS = st.lists(st.floats(-5, 5, allow_nan=False, width=32), min_size=1, max_size=12)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------ groups
def test_advantages_are_deviations_from_the_groups_mean_in_its_standard_deviations() -> None:
    found = group_advantages(column(1.0, 10.0, 3.0, 20.0, 2.0), ["a", "b", "a", "b", "a"])
    deviation = statistics.stdev([10.0, 20.0]) + 1e-6
    expected = [-1 / (1 + 1e-6), -5 / deviation, 1 / (1 + 1e-6), 5 / deviation, 0.0]
    assert found.advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.signal.all()
    assert (found.groups, found.zero_variance, found.singles) == (2, 0, 0)


def test_leave_one_out_compares_each_answer_with_the_others_alone() -> None:
    rewards = [1.0, 2.0, 6.0]
    found = group_advantages(column(*rewards), "xxx", scale=Scale.NONE, leave_one_out=True)
    expected = [r - (math.fsum(rewards) - r) / 2 for r in rewards]
    assert found.advantages.tolist() == pytest.approx(expected)


def test_groups_with_equal_rewards_give_no_signal_and_are_counted() -> None:
    found = group_advantages(column(0.1 + 0.2, 0.3, 1.0, 2.0, -2.0, -2.0), [0, 0, 1, 1, 2, 2])
    assert found.signal.tolist() == [False, False, True, True, False, False]
    assert found.advantages[[0, 1, 4, 5]].tolist() == [0.0] * 4
    assert (found.groups, found.zero_variance) == (3, 2)


@settings(deadline=None)  # the first example pays for what torch sets up
@given(REWARDS, st.data())
def test_groups_are_centred_and_do_not_depend_on_the_order(rewards: list[float], data: st.DataObject) -> None:
    count = len(rewards)
    groups = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    found = group_advantages(column(*rewards), groups)
    shuffled = group_advantages(column(*[rewards[i] for i in order]), [groups[i] for i in order])
    torch.testing.assert_close(shuffled.advantages, found.advantages[list(order)], rtol=1e-6, atol=1e-6)
    for group in set(groups):
        members = [i for i in range(count) if groups[i] == group]
        assert abs(float(found.advantages[members].sum())) < 1e-6
    assert torch.isfinite(found.advantages).all()


# ------------------------------------------------------------------ single answers
def near(times: list[float], k: int = 2, **options: Any) -> Neighbours:
    return Neighbours(["s"] * len(times), times, k, **options)


def test_single_answers_are_compared_with_those_nearest_in_time() -> None:
    times = [0.0, 10.0, 11.0, 12.0, 100.0]
    found = group_advantages(column(1.0, 2.0, 3.0, 4.0, 9.0), range(5), scale=Scale.NONE, neighbours=near(times))
    # nearest: {1, 2}, {2, 3}, {1, 3}, {2, 1}, {3, 2}
    assert found.advantages.tolist() == pytest.approx([-1.5, -1.5, 0.0, 1.5, 5.5])
    assert (found.approximated, found.alone, found.singles) == (5, 0, 5)


def test_the_past_alone_can_be_asked_for_and_the_first_answer_then_has_no_baseline() -> None:
    found = group_advantages(
        column(1.0, 2.0, 6.0), range(3), scale=Scale.NONE, neighbours=near([0.0, 1.0, 2.0], past_only=True)
    )
    assert found.advantages.tolist() == pytest.approx([0.0, 1.0, 4.5])
    assert found.signal.tolist() == [False, True, True]
    assert found.alone == 1


def test_neighbours_are_of_the_same_session_only() -> None:
    neighbours = Neighbours(["s", "t", "s", "t"], [0.0, 0.1, 9.0, 9.1], k=5)
    found = group_advantages(column(1.0, 100.0, 3.0, 300.0), range(4), scale=Scale.NONE, neighbours=neighbours)
    assert found.advantages.tolist() == pytest.approx([-2.0, -200.0, 2.0, 200.0])


# ------------------------------------------------------------------ GAE
def test_a_finished_session_solved_by_hand() -> None:
    found = gae(
        column(1.0, 0.0, 2.0),
        column(0.5, 0.25, 1.0),
        gamma=0.9,
        lam=0.8,
        terminal=torch.tensor([False, False, True]),
    )
    # δ = 0.725, 0.65, 1; γλ = 0.72
    assert found.advantages.tolist() == pytest.approx([0.725 + 0.72 * 1.37, 1.37, 1.0], abs=1e-12)
    assert found.returns.tolist() == pytest.approx([2.2114, 1.62, 2.0], abs=1e-12)


def test_nothing_flows_back_over_the_end_of_a_segment() -> None:
    rewards, values = column(1.0, 2.0, 3.0, 4.0), column(0.1, 0.2, 0.3, 0.4)
    cut = torch.tensor([False, True, False, False])
    parted = [(1,), (), (3,), ()]
    whole = gae(rewards, values, gamma=0.9, lam=0.8, following=parted, bootstrap=column(9.0, 5.0, 9.0, 7.0))
    first = gae(rewards[:2], values[:2], gamma=0.9, lam=0.8, bootstrap=5.0)
    second = gae(rewards[2:], values[2:], gamma=0.9, lam=0.8, bootstrap=7.0)
    assert whole.advantages.tolist() == pytest.approx([*first.advantages.tolist(), *second.advantages.tolist()])
    ended = gae(rewards, values, gamma=0.9, lam=0.8, terminal=cut, bootstrap=7.0)
    alone = gae(rewards[:2], values[:2], gamma=0.9, lam=0.8, terminal=torch.tensor([False, True]))
    assert ended.advantages.tolist() == pytest.approx([*alone.advantages.tolist(), *second.advantages.tolist()])


def test_a_session_with_rounds_solved_by_hand() -> None:
    # Steps 0 and 1 answer one state, 2 fixes 0, then 3 and 4 answer the next state, behind which the record ends.
    values = column(0.5, 0.5, 0.25, 1.0, 1.0)
    following = [(2,), (3, 4), (3, 4), (), ()]
    found = gae(column(-2.0, 1.0, 0.0, 3.0, -1.0), values, gamma=0.9, lam=0.8, following=following, bootstrap=2.0)
    last = [3 + 1.8 - 1, -1 + 1.8 - 1]  # 3.8, −0.2; their mean is 1.8, and γλ = 0.72
    fixed = 0 + 0.9 - 0.25 + 0.72 * 1.8
    expected = [-2 + 0.9 * 0.25 - 0.5 + 0.72 * fixed, 1 + 0.9 - 0.5 + 0.72 * 1.8, fixed, *last]
    assert found.advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert found.returns.tolist() == pytest.approx([a + float(v) for a, v in zip(expected, values, strict=True)])


@settings(deadline=None)  # the first example pays for what torch sets up
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.data(), st.floats(0, 1))
def test_with_lambda_one_the_returns_are_the_discounted_sums_and_with_zero_one_step(
    rewards: list[float], data: st.DataObject, gamma: float
) -> None:
    count = len(rewards)
    values = data.draw(st.lists(st.floats(-5, 5), min_size=count, max_size=count))
    end = torch.tensor([False] * (count - 1) + [True])
    sums = [math.fsum(gamma**i * r for i, r in enumerate(rewards[t:])) for t in range(count)]
    assert gae(column(*rewards), column(*values), gamma=gamma, lam=1.0, terminal=end).returns.tolist() == pytest.approx(
        sums, abs=1e-9
    )
    one = [r + gamma * v for r, v in zip(rewards, [*values[1:], 0.0], strict=True)]
    assert gae(column(*rewards), column(*values), gamma=gamma, lam=0.0, terminal=end).returns.tolist() == pytest.approx(
        one, abs=1e-9
    )


# ------------------------------------------------------------------ normalisation
def test_normalised_advantages_have_mean_zero_and_deviation_one_among_those_with_signal() -> None:
    signal = torch.tensor([True, True, False, True])
    found = normalised(column(1.0, 2.0, 50.0, 6.0), signal)
    chosen = found[signal].tolist()
    assert statistics.fmean(chosen) == pytest.approx(0.0, abs=1e-9)
    assert statistics.stdev(chosen) == pytest.approx(1.0, abs=1e-6)
    assert float(found[2]) == 0.0
    assert normalised(column(1.0, 2.0, 6.0), scale=Scale.NONE).tolist() == pytest.approx([-2.0, -1.0, 3.0])


# ------------------------------------------------------------------ bad input
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_with_its_place(bad: float) -> None:
    with pytest.raises(UsageError, match=r"rewards\[1\]") as caught:
        group_advantages(column(1.0, bad, 2.0), [0, 0, 0])
    assert caught.value.hint
    with pytest.raises(UsageError, match=r"rewards\[1\]"):
        gae(column(1.0, bad), column(0.0, 0.0))
    with pytest.raises(UsageError, match=r"values\[0\]"):
        gae(column(1.0, 1.0), column(bad, 0.0))
