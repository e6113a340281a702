"""A version that earns less goes back by itself; one that is as good stays, however often it is looked at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autoresearchd.learner.versions.rollback import RollbackOptions, judge, last_look
from tests.unit.learner.live_rewards import Life, lived, rolled_back

OPTIONS = RollbackOptions(resamples=1000)
SESSIONS = 100


def rate(**change: float) -> tuple[float, float]:
    """How often versions are rolled back, and after how many experiments in the middle."""
    stream, found = np.random.default_rng(7), []
    for _ in range(SESSIONS):
        before, now = lived(stream, Life(**change))
        found.append(rolled_back(now, before, OPTIONS))
    fell = [count for count in found if count]
    return len(fell) / SESSIONS, float(np.median(fell)) if fell else math.nan


def test_a_version_that_is_as_good_is_left_alone() -> None:
    assert rate()[0] <= 0.05


@pytest.mark.parametrize("drift", [{"slope": -0.005}, {"slope": -0.01}, {"decay": 60.0}])
def test_a_version_is_not_blamed_for_a_session_in_which_less_is_left_to_improve(drift: dict[str, float]) -> None:
    """Rewards fell by 0.3, 0.6 or 1.3 over the 60 experiments before it, and go on falling.

    At most 5% in the long run (``benchmarks/rollback.py``): of a hundred sessions up to 9 by chance.
    """
    assert rate(**drift)[0] <= 0.09


def test_a_better_version_is_left_alone() -> None:
    assert rate(gain=0.4, bad=0.05)[0] <= 0.01


@pytest.mark.parametrize(("bad", "least", "most"), [(0.9, 0.95, 16), (0.6, 0.5, 64)])
def test_a_version_that_crashes_more_often_goes_back_within_a_few_experiments(
    bad: float, least: float, most: int
) -> None:
    """One in five of the version before did."""
    share, count = rate(bad=bad)
    assert share >= least
    assert count <= most


def test_a_fall_that_is_sure_but_small_changes_nothing() -> None:
    verdict = judge([0.45] * 64 + [0.46] * 64, [0.5, 0.51] * 32)
    assert not verdict.fell
    assert verdict.p_value < 0.001


def test_too_few_experiments_say_nothing() -> None:
    for now, before in (([], [1.0] * 40), ([-2.0] * 15, [1.0] * 40), ([-2.0] * 40, [1.0] * 11), ([-2.0] * 40, [])):
        verdict = judge(now, before)
        assert (verdict.fell, verdict.looked, verdict.reason) == (False, 0, "")


def test_there_is_a_last_look() -> None:
    looks = [last_look(count) for count in (0, 15, 16, 31, 32, 64, 128, 256, 512, 10_000)]
    assert looks == [0, 0, 1, 1, 2, 3, 4, 4, 4, 4]
    good, bad = [1.0, 0.9] * 128, [-2.0] * 256
    assert not judge(good + bad, [1.0, 0.9] * 20).fell, "what comes after it is for the next learning"


def test_rewards_that_are_all_the_same_are_no_fall() -> None:
    assert not judge([0.0] * 64, [0.0] * 64).fell
    verdict = judge([-2.0] * 16, [0.5] * 16)
    assert verdict.fell
    assert "16 experiments" in verdict.reason
    assert "-2.000" in verdict.reason
