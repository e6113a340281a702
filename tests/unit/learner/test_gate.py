"""The gate: a policy takes the place of another only where it is surely better, and not by cheap tricks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, t

from autoresearchd.domain.labels import Label
from autoresearchd.learner.gate.compare_policies import SILENT, GateOptions, compare, interval
from autoresearchd.learner.gate.judge_answers import Outcome
from tests.unit.learner.fresh_outcomes import Policy, World, one

QUICK = GateOptions(resamples=999)
BETTER = Policy(gain=0.5)


def gates(policy: Policy, states: int, count: int, seed: int = 1) -> list[bool]:
    """Verdicts of many gates; the two policies of each draw independently, which is the harder case."""
    random = np.random.default_rng(seed)
    worlds = (World.drawn(random, states) for _ in range(count))
    return [compare(w.outcomes(random), w.outcomes(random, policy), QUICK).promote for w in worlds]


# ---------------------------------------------------------------------- what the gate promises
@pytest.mark.parametrize("states", [20, pytest.param(40, marks=pytest.mark.nightly)])
def test_equal_policies_are_promoted_in_at_most_one_gate_of_twenty(states: int) -> None:
    found = gates(Policy(), states, 400)
    assert sum(found) <= int(binom.ppf(0.95, len(found), 0.05)), "more than a level of 5% gives by chance"


def test_a_policy_that_earns_half_a_reward_more_is_mostly_found_at_a_hundred_states() -> None:
    assert sum(gates(BETTER, 100, 60)) >= 0.8 * 60


def test_a_worse_policy_is_never_promoted() -> None:
    assert not any(gates(Policy(gain=-0.5), 40, 60))


def test_a_policy_that_has_not_changed_is_never_promoted() -> None:
    """With common random numbers it proposes the same: the gain is 0, and its interval is a point."""
    random = np.random.default_rng(2)
    same = World.drawn(random, 40).outcomes(random)
    verdict = compare(same, same, QUICK)
    assert not verdict.promote
    assert verdict.figures["reward_gain"] == verdict.figures["reward_low"] == verdict.figures["reward_high"] == 0.0
    assert "states_needed" not in verdict.figures, "a spread that was not seen tells nothing"


def test_the_lower_limit_for_a_few_normal_values_is_that_of_students_t() -> None:
    values = np.random.default_rng(3).normal(1.0, 1.0, 12)
    low, high = interval([values], lambda x, *, axis: x.mean(axis=axis), GateOptions())
    half = float(t.ppf(0.95, 11)) * values.std(ddof=1) / math.sqrt(12)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


# ---------------------------------------------------------------------- what is refused although it earns more
def test_more_reward_by_proposing_the_same_again_and_again_is_refused() -> None:
    random = np.random.default_rng(4)
    world = World.drawn(random, 60)
    verdict = compare(world.outcomes(random), world.outcomes(random, Policy(gain=1.0, repeats=True)), QUICK)
    assert verdict.figures["reward_low"] > 0
    assert not verdict.promote
    assert "variety has collapsed" in verdict.reasons[0]


def test_more_reward_by_repeating_what_was_tried_is_refused() -> None:
    old = [one(n, 0.0, novelty=0.6, program=str(i)) for n in range(30) for i in range(2)]
    new = [one(n, 1.0 + 0.01 * n, novelty=0.1, program=str(i)) for n in range(30) for i in range(2)]
    verdict = compare(old, new, QUICK)
    assert not verdict.promote
    assert verdict.reasons[0] == "novelty has collapsed, its edits repeat what was tried: 0.60 → 0.10"


def test_more_reward_with_fewer_valid_edits_is_refused() -> None:
    random = np.random.default_rng(5)
    world = World.drawn(random, 60)
    verdict = compare(world.outcomes(random), world.outcomes(random, Policy(gain=1.5, validity=-0.2)), QUICK)
    assert verdict.figures["reward_low"] > 0
    assert not verdict.promote
    assert "valid edits have become fewer" in verdict.reasons[0]


def test_a_policy_without_one_valid_edit_is_refused_however_cheap_its_failures_are() -> None:
    old = [one(n, -2.0, label=Label.MALFORMED_ANSWER, valid=False) for n in range(30)]
    new = [one(n, -0.5, label=Label.NO_OP, valid=False) for n in range(30)]
    verdict = compare(old, new, QUICK)
    assert not verdict.promote
    assert verdict.reasons[0] == "none of its proposals is a valid edit"


def test_too_few_states_are_refused_and_told_how_many_are_needed() -> None:
    random = np.random.default_rng(6)
    world = World.drawn(random, 6)
    verdict = compare(world.outcomes(random), world.outcomes(random, Policy(gain=5.0)), QUICK)
    assert not verdict.promote
    needed = int(verdict.figures["states_needed"])
    assert verdict.reasons[0] == (
        "too few held-out states: 6; at least 20 are needed, "
        f"and about {needed} to find a gain of 0.5 with the spread seen"
    )


def test_an_uncertain_gain_is_refused_with_the_states_that_would_tell() -> None:
    random = np.random.default_rng(7)
    world = World.drawn(random, 25)
    small = GateOptions(gain=0.1, resamples=999)
    verdict = compare(world.outcomes(random), world.outcomes(random, Policy(gain=0.05)), small)
    assert not verdict.promote
    assert "it does not surely earn more" in verdict.reasons[0]
    assert f"{int(verdict.figures['states_needed'])} states would find a gain of 0.1" in verdict.reasons[0]


# ---------------------------------------------------------------------- what it says


def test_the_gain_is_split_into_how_often_edits_are_valid_and_what_a_valid_one_earns() -> None:
    old = [one(1, 1.0), one(1, -2.0, label=Label.MALFORMED_ANSWER, valid=False), one(2, 0.0), one(2, 0.5, program="b")]
    new = [one(1, 1.0), one(1, 3.0, program="b"), one(2, -0.5, label=Label.DUPLICATE), one(2, 0.5, program="b")]
    f = compare(old, new, QUICK).figures
    assert (f["reward_old"], f["reward_new"]) == pytest.approx((-0.125, 1.0))  # means of the states' means
    assert (f["valid_old"], f["valid_new"]) == pytest.approx((0.75, 1.0))
    assert (f["reward_of_valid_old"], f["reward_of_valid_new"]) == pytest.approx((0.5, 1.0))
    assert (f["duplicates_old"], f["duplicates_new"]) == pytest.approx((0.0, 0.25))
    assert (f["variety_old"], f["variety_new"]) == pytest.approx((1.0, 1.0))
    assert f["reward_gain"] == pytest.approx(1.125)


def test_states_that_were_not_compared_are_told_by_the_reason_with_the_verdict() -> None:
    old, new = [one(n, 0.1 * n) for n in range(30)], [one(n, 0.1 * n) for n in range(28)]
    verdict = compare(old, new, QUICK, left_out={"its prompt is too long": 7, "its session is gone": 3, "none": 0})
    assert [reason for reason in verdict.reasons if "not compared" in reason] == [
        "held-out states that were not compared: 7 (its prompt is too long)",
        "held-out states that were not compared: 3 (its session is gone)",
        f"held-out states that were not compared: 2 ({SILENT})",
    ]
    assert (verdict.figures["not_asked"], verdict.figures["left_out"]) == (10, 2)


# ---------------------------------------------------------------------- edits that are not run
def checked(worth: float, validity: int) -> list[Outcome]:
    """30 states; of ten answers for each as many valid as said, or one more or less."""
    found = []
    for n in range(30):
        good = validity + n % 3 - 1
        found += [one(n, worth, program=str(i), not_run=True) for i in range(good)]
        found += [one(n, -2.0, label=Label.MALFORMED_ANSWER, valid=False) for _ in range(10 - good)]
    return found


def test_where_edits_are_not_run_validity_alone_may_promote_and_it_is_said() -> None:
    verdict = compare(checked(0.0, 5), checked(0.0, 8), QUICK)
    assert verdict.promote
    assert "only validity, duplicates and novelty were compared" in verdict.reasons[-1]
    assert not compare(checked(0.0, 5), checked(0.0, 5), QUICK).promote


def test_a_guess_is_never_compared_with_a_measurement() -> None:
    with pytest.raises(ValueError, match="one judge"):
        compare([one(n, not_run=True) for n in range(20)], [one(n) for n in range(20)], QUICK)


# ---------------------------------------------------------------------- bad input
