"""The forecast of a run's final value: what a user would be told wrongly if it failed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.evaluator.abort.forecast import Programs, References, draw, forecast, line_through, summarise
from autoresearchd.evaluator.abort.learning_curve import Curve, Shape, clean_curve, fit_power_law, trailing
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
@given(
    st.lists(numbers, max_size=40),
    st.lists(numbers, max_size=40),
    st.one_of(numbers, st.just(300.0)),
)
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


def test_a_diverging_loss_is_no_change_of_unit() -> None:
    steps, losses = until(0.5, training(1.0))
    rising = losses.copy()
    rising[25:] += 0.3 * np.arange(1, len(rising) - 24)
    assert curve_of((steps, rising)).shape is Shape.REGULAR


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


# ---------------------------------------------------------------------- smoothing and the power law
def test_the_level_follows_a_power_law_without_lag_and_ignores_what_comes_later() -> None:
    curve = curve_of(training(1.0, noise=0.0))
    levels, slopes = trailing(curve)
    late = curve.progress > 0.3
    assert np.max(np.abs(levels - curve.losses)[late]) < 0.02
    assert np.all(slopes[late] > 0)
    early, _ = trailing(curve_of(until(0.4, training(1.0, noise=0.0))))
    assert early == pytest.approx(levels[: len(early)])


def test_the_power_law_is_found_from_its_first_half_in_spite_of_spikes() -> None:
    x = np.arange(1, 51) / 100
    y = 0.5 * x**-0.6 + 2.0
    y[[20, 33]] += 1.5
    law = fit_power_law(x, y)
    assert law is not None
    assert law.at(1.0) == pytest.approx(2.5, abs=0.03)


# ---------------------------------------------------------------------- references
def test_repeats_of_one_program_are_one_piece_of_evidence() -> None:
    references = library([1.0, 1.005, 0.998, 1.003, 1.4, 1.8])
    assert len(references) == 6
    assert references.distinct == 3


# ---------------------------------------------------------------------- the forecast


def test_the_offset_from_training_loss_to_the_metric_is_learned() -> None:
    references = library([1.0 + 0.1 * k for k in range(12)], offset=0.7)
    got = forecast(curve_of(until(0.4, training(1.25, seed=99, offset=0.7))), references)
    assert got is not None
    assert got.mean == pytest.approx(1.25, abs=0.03)


def test_a_cool_down_that_no_power_law_foresees_is_learned() -> None:
    def cooled(end: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
        steps, losses = training(end + 0.5, seed=seed, offset=0.0)
        return steps, losses - 0.5 * np.clip((steps / BUDGET - 0.6) / 0.4, 0, 1)

    references = References()
    for seed in range(12):
        end = 1.0 + 0.1 * seed
        references.add(summarise(curve_of(cooled(end, seed)), end), DELTA)
    curve = curve_of(until(0.5, cooled(1.33, 50)))
    got, law = forecast(curve, references), fit_power_law(curve.progress, curve.losses)
    assert got is not None
    assert law is not None
    assert law.at(1.0) > 1.7
    assert got.mean == pytest.approx(1.33, abs=0.04)


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


def programs(finals: np.ndarray, drops: np.ndarray, ends: np.ndarray) -> Programs:
    rows = np.arange(len(finals))
    return Programs(drops, ends, finals, finals, rows.astype(np.float64), rows, np.ones(len(finals)))


def scattered(unit: float, spread: float, *, noise: float = 0.01, count: int = 16) -> Programs:
    """Programs whose log is in another unit, and lies ``spread`` times as far apart now as in the end."""
    rng = np.random.default_rng(4)
    finals = 1.0 + rng.exponential(0.2, count)
    ends = unit * finals + 0.3 + rng.normal(0, noise, count)
    levels = unit * spread * finals + 0.9 + rng.normal(0, noise, count)
    return programs(finals, levels - finals, ends - finals)


@pytest.mark.parametrize("unit", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("spread", [1.0, 1.2])
def test_a_log_in_another_unit_is_as_sharp_as_one_in_the_metrics_own(unit: float, spread: float) -> None:
    line = line_through(scattered(unit, spread))
    assert 1 + line.gain == pytest.approx(unit * spread, rel=0.08)
    assert line.errors.std() < 0.015
    assert line.final(unit * spread * 1.1 + 0.9) == pytest.approx(1.1, abs=0.03)


@given(st.integers(0, 10**6), st.integers(-8, 8), st.floats(-50, 50), st.floats(-50, 50))
def test_scale_and_shifts_change_no_slope(seed: int, power: int, log_shift: float, metric_shift: float) -> None:
    rng = np.random.default_rng(seed)
    finals, noise = rng.normal(1, 0.2, 10), rng.normal(0, 0.1, 10)
    one = draw(noise + 0.5 * finals, finals, 0.0, 1.0)
    scale = 2.0**power
    other = draw((noise + 0.5 * finals + log_shift) * scale, (finals + metric_shift) * scale, 0.0, 1.0)
    assert other.gain == pytest.approx(one.gain, rel=1e-6, abs=1e-6)
    assert other.errors == pytest.approx(one.errors * scale, rel=1e-6, abs=1e-6 * scale)
