"""The forecast of a run's final value: what a user would be told wrongly if it failed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.evaluator.abort.forecast import References, forecast, summarise
from autoresearchd.evaluator.abort.learning_curve import Curve, Shape, clean_curve
from tests.unit.evaluator.curves import BUDGET, DELTA, training, until

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)


def curve_of(points: tuple[np.ndarray, np.ndarray]) -> Curve:
    curve = clean_curve(*points, BUDGET)
    assert curve is not None
    return curve


def library(ends: list[float], *, offset: float = 0.1) -> References:
    references = References()
    for seed, end in enumerate(ends):
        references.add(summarise(curve_of(training(end, seed=seed, offset=offset)), end), DELTA)
    return references


# ---------------------------------------------------------------------- reading curves
@given(st.lists(numbers, max_size=40), st.lists(numbers, max_size=40), st.one_of(numbers, st.just(300.0)))
@settings(max_examples=200, deadline=None)
def test_any_log_gives_a_clean_curve_or_none(steps: list[float], losses: list[float], budget: float) -> None:
    curve = clean_curve(steps, losses, budget)
    if curve is not None:
        assert len(curve.progress) == len(curve.losses) > 0
        assert np.all(np.diff(curve.progress) > 0)
        assert np.all((curve.progress > 0) & (curve.progress <= 1 + 1e-6))
        assert np.all(np.isfinite(curve.losses))


def test_a_restart_in_the_middle_is_noticed() -> None:
    steps = np.concatenate((np.arange(1, 60), np.arange(1, 60))) * 2.0
    assert curve_of((steps, np.linspace(3, 1, len(steps)))).shape is Shape.RESTARTED


def test_a_change_of_unit_inside_a_run_is_noticed() -> None:
    steps, losses = until(0.5, training(1.0))
    half = len(losses) // 2
    assert curve_of((steps, losses)).shape is Shape.REGULAR
    assert curve_of((steps, np.append(losses[:half], losses[half:] * 1.44))).shape is Shape.JUMPED


def test_a_clock_that_jumps_is_noticed() -> None:
    steps, losses = until(0.5, training(1.0))
    half = len(steps) // 2
    assert curve_of((np.append(steps[:half], steps[half:] + 100.0), losses)).shape is Shape.GAP


@pytest.mark.parametrize("noise", [0.0, 0.005])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (8.0, -40.0), (0.125, 30.0)])
def test_a_loss_that_leaps_to_a_plateau_has_diverged(noise: float, scale: float, shift: float) -> None:
    """Else the curve would be one that cannot be compared for the rest of the budget."""
    steps, losses = training(1.0)
    wobble = np.random.default_rng(7).normal(0, noise, len(losses))
    plateau = np.where(np.arange(len(losses)) < 20, losses, 9.0 + wobble)
    for share, shape in ((0.45, Shape.JUMPED), (0.5, Shape.REGULAR), (0.9, Shape.REGULAR)):
        assert curve_of(until(share, (steps, scale * plateau + shift))).shape is shape


@pytest.mark.parametrize(("bad", "shape"), [(3, Shape.REGULAR), (20, Shape.DEAD)])
def test_a_loss_that_stays_nan_is_dead_and_a_few_nans_are_not(bad: int, shape: Shape) -> None:
    steps, losses = until(0.5, training(1.0))
    losses[-bad:] = math.nan
    assert curve_of((steps, losses)).shape is shape


# ---------------------------------------------------------------------- the forecast


def test_the_offset_from_training_loss_to_the_metric_is_learned() -> None:
    references = library([1.0 + 0.1 * k for k in range(12)], offset=0.7)
    got = forecast(curve_of(until(0.4, training(1.25, seed=99, offset=0.7))), references)
    assert got is not None
    assert got.mean == pytest.approx(1.25, abs=0.03)


def test_the_interval_holds_the_end_nine_times_in_ten() -> None:
    rng = np.random.default_rng(5)
    references = library([1.0 + 0.1 * float(v) for v in rng.uniform(0, 5, 30)])
    hits = 0
    for seed in range(100, 150):
        end = 1.0 + 0.1 * float(rng.uniform(0, 5))
        got = forecast(curve_of(until(0.5, training(end, seed=seed))), references)
        assert got is not None
        hits += got.low <= end <= got.high
    assert hits >= 40
