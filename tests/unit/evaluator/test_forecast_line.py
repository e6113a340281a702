"""The line from the metric to the log: what a user loses where the two have no common unit, and where they have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.evaluator.forecast import Programs, draw, line_through


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
