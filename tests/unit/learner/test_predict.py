"""Foretelling rewards: what is alike earns alike, what is foretold no better than by the mean is told to be so."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.learner.predict import LEAST, Calibration, Change, Predictor, Tried, change_of, distance, together

BEFORE = {"train.py": "LR = 0.04\nDEPTH = 4\nBETAS = (0.9, 0.95)\nNAME = 'adam'\n\n\ndef f(x):\n    return x\n"}


def edit(old: str, new: str) -> Change:
    """An edit of the program that replaces one text by another."""
    after = {"train.py": BEFORE["train.py"].replace(old, new)}
    return change_of(BEFORE, after, f"--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n context\n-{old}\n+{new}\n")


def rate(value: float) -> Change:
    return edit("LR = 0.04", f"LR = {value!r}")


# ---------------------------------------------------------------------- what an edit does
def test_the_constants_of_an_edit_are_known_with_their_values_before_and_after() -> None:
    assert rate(0.02).moves == {"train.py:LR": (0.04, 0.02)}
    assert edit("(0.9, 0.95)", "(0.9, 0.99)").moves == {"train.py:BETAS[1]": (0.95, 0.99)}
    assert edit("return x", "return 2 * x").moves == {}
    assert rate(0.02).lines == "-LR = 0.04\n+LR = 0.02"


def test_the_same_edit_has_no_distance_and_the_opposite_one_the_largest() -> None:
    assert distance(rate(0.02), rate(0.02)) == 0.0
    assert distance(rate(0.02), rate(0.08)) == pytest.approx(1.0)
    assert distance(rate(0.02), edit("DEPTH = 4", "DEPTH = 8")) == 1.0


def test_a_smaller_step_the_same_way_is_nearer_than_a_larger_one() -> None:
    assert 0 < distance(rate(0.02), rate(0.018)) < distance(rate(0.02), rate(0.005)) < 1


def test_edits_of_more_than_constants_are_compared_by_their_lines() -> None:
    same, other = edit("return x", "return 2 * x"), edit("return x", "return 3 * x")
    assert 0 < distance(same, other) < 0.2
    assert distance(same, rate(0.02)) > 0.4


values = st.one_of(
    st.floats(-1e17, 1e17, allow_nan=False), st.integers(-(10**6), 10**6), st.booleans(), st.text(max_size=3)
)
changes = st.builds(
    Change,
    st.sampled_from(["-a\n+b", "-lr = 1\n+lr = 2", ""]),
    st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(values, values), max_size=3),
)


@given(changes, changes)
def test_a_distance_is_symmetric_and_within_its_bounds(a: Change, b: Change) -> None:
    assert 0.0 <= distance(a, b) <= 1.0
    assert distance(a, b) == pytest.approx(distance(b, a))
    assert distance(a, a) == 0.0


# ---------------------------------------------------------------------- predictions
def session(count: int, seed: int = 1) -> list[Tried]:
    """A lower rate pays, the more the nearer to a quarter of it; depth does not matter; some noise."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        if draw.random() < 0.5:
            octaves = draw.uniform(-3, 2)
            worth = 2.0 - abs(octaves + 2.0) * 1.2
            found.append(Tried(rate(0.04 * 2.0**octaves), worth + draw.gauss(0, 0.3)))
        else:
            found.append(Tried(edit("DEPTH = 4", f"DEPTH = {draw.randint(1, 16)}"), -0.5 + draw.gauss(0, 0.3)))
    return found


def test_what_is_like_an_edit_that_paid_is_foretold_to_pay() -> None:
    known = Predictor(session(60))
    assert known.calibration.useful
    assert known.calibration.r2 > 0.4
    assert known.predict(rate(0.011)) > 0.5 > known.mean > known.predict(rate(0.12))
    assert known.predict(edit("DEPTH = 4", "DEPTH = 6")) == pytest.approx(-0.5, abs=0.4)


def test_rewards_of_chance_are_foretold_by_the_mean_and_that_is_said() -> None:
    believed = 0
    for seed in range(60):
        draw = random.Random(seed)
        known = Predictor([Tried(each.change, draw.choice([-2.0, -1.0, 0.0, 4.0])) for each in session(30, seed)])
        believed += known.calibration.useful
        if not known.calibration.useful:
            assert known.predict(rate(0.01)) == known.mean
    assert believed <= 7, "a level of 5% allows 3 of 60"


def test_what_is_like_nothing_that_was_tried_is_foretold_by_the_mean() -> None:
    known = Predictor(session(60))
    strange = edit("def f(x):\n    return x", "class Lion:\n    pass\n\n\nimport math  # sign of the momentum")
    assert known.predict(strange) == pytest.approx(known.mean, abs=0.4)


@pytest.mark.parametrize("count", [0, 1, LEAST - 1])
def test_from_a_few_runs_nothing_is_foretold(count: int) -> None:
    known = Predictor(session(count))
    assert not known.calibration.useful
    mean = math.fsum(t.reward for t in session(count)) / count if count else 0.0
    assert known.predict(rate(0.01)) == pytest.approx(mean)


def test_equal_rewards_need_no_foretelling() -> None:
    known = Predictor([Tried(each.change, -1.0) for each in session(20)])
    assert not known.calibration.useful
    assert known.calibration.r2 == 0.0
    assert known.predict(rate(0.01)) == -1.0


@given(st.lists(st.floats(-5, 5), min_size=LEAST, max_size=20), st.floats(0.001, 1.0))
def test_no_prediction_leaves_the_range_of_what_was_earned(rewards: list[float], value: float) -> None:
    edits = session(len(rewards), seed=3)
    known = Predictor([Tried(each.change, reward) for each, reward in zip(edits, rewards, strict=True)])
    assert min(rewards) - 1e-9 <= known.predict(rate(value)) <= max(rewards) + 1e-9


def test_the_same_runs_give_the_same_predictions() -> None:
    first, second = Predictor(session(40)), Predictor(session(40))
    assert first.calibration == second.calibration
    assert first.predict(rate(0.02)) == second.predict(rate(0.02))


# ---------------------------------------------------------------------- calibrations
def test_a_calibration_says_what_it_is_worth() -> None:
    good = Calibration(runs=40, missed=20.0, by_mean=40.0, chance=0.005)
    assert good.words == "R² 0.50, error 0.71 (of the mean alone 1.00) over 40 runs"
    assert Calibration().words == "nothing was run to learn from"
    assert Calibration().error == math.inf


def test_of_several_sessions_those_that_fall_back_to_the_mean_count_with_the_mean() -> None:
    good = Calibration(runs=40, missed=20.0, by_mean=40.0, chance=0.005)
    useless = Calibration(runs=10, missed=15.0, by_mean=10.0, chance=0.9)
    both = together([good, useless])
    assert (both.runs, both.missed, both.by_mean) == (50, 30.0, 50.0)
    assert both.r2 == pytest.approx(0.4)
    assert both.useful
    assert not together([useless]).useful
    assert not together([]).useful
