"""Early abort beside the incumbent's own runs: time that they save, and improvements that they must not cost."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoresearchd.evaluator.abort import AbortPolicy
from tests.unit.evaluator.curves import BUDGET, DELTA, Points, ReplayPolicy, policy, training, until

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
UNIT = 3.0
SIGMA = DELTA / 2
SHARES = tuple(tenth / 10 for tenth in range(1, 10))


def logged(end: float, *, seed: int) -> Points:
    """As in karpathy/autoresearch: the log has another unit than the metric."""
    steps, losses = training(end, seed=seed)
    return steps, UNIT * losses


def session(*, reruns: int = 3, programs: int = 14, **more: Any) -> ReplayPolicy:
    """A baseline at 1.0 with its runs, and worse programs after it."""
    judge = policy(**more)
    luck = np.random.default_rng(5).normal(0, SIGMA, reruns + 1)
    judge.observe(*logged(1.0, seed=0), BUDGET, 1.0, another=True)
    judge.succeed()
    for k in range(reruns):
        judge.rerun(*logged(1.0 + luck[k], seed=50 + k), BUDGET, 1.0 + luck[k])
    for k in range(1, programs):
        end = 1.0 + 0.02 * ((5 * k) % programs)
        judge.observe(*logged(end, seed=k), BUDGET, end, another=True)
    return judge


def first_abort(judge: AbortPolicy, points: Points, bar: float = 1.0) -> float:
    judge.begin()
    return next((share for share in SHARES if judge.look(*until(share, points), BUDGET, bar).abort), 1.0)


def test_a_run_that_lies_above_the_incumbents_runs_is_ended_sooner_than_without_them() -> None:
    ends = [1.06 + 0.02 * k for k in range(8)]
    with_runs = [first_abort(session(), logged(end, seed=99)) for end in ends]
    without = [first_abort(session(reruns=0), logged(end, seed=99)) for end in ends]
    assert all(one <= other for one, other in zip(with_runs, without, strict=True))
    assert sum(with_runs) < 0.8 * sum(without)


@pytest.mark.parametrize("end", [0.7, 0.85, 0.95, 0.97])
@pytest.mark.parametrize("reruns", [1, 2, 8])
def test_a_run_that_will_improve_is_never_stopped(end: float, reruns: int) -> None:
    assert all(first_abort(session(reruns=reruns), logged(end, seed=seed)) == 1.0 for seed in range(90, 95))


@pytest.mark.parametrize("reruns", [0, pytest.param(3, marks=pytest.mark.nightly)])
def test_noise_that_is_underestimated_costs_time_but_no_improvement(reruns: int) -> None:
    """Delta is twice the incumbent's σ, of which few runs tell little: if it is too small, no run is ended sooner."""
    curves = [logged(0.9 + 0.02 * k, seed=99) for k in range(20)]
    right = [first_abort(session(reruns=reruns), points) for points in curves]
    assert min(right) < 0.5
    for share in (0.25, 0.5, 0.8):
        small = [first_abort(session(reruns=reruns, delta=share * DELTA), points) for points in curves]
        assert all(one >= other for one, other in zip(small, right, strict=True)), share


def test_one_lucky_run_of_a_new_incumbent_costs_no_improvement() -> None:
    """It was kept for that luck: by three standard deviations it looks better than it is."""
    judge, lucky = session(), 0.9 - 3 * SIGMA
    judge.succeed()
    judge.rerun(*logged(lucky, seed=70), BUDGET, lucky)
    assert first_abort(judge, logged(0.9 - 1.1 * DELTA, seed=99), bar=0.9) == 1.0


def test_a_restart_forgets_no_run_of_the_incumbent() -> None:
    judge = session(programs=24)
    again = policy()
    assert again.restore(json.loads(json.dumps(judge.to_state(), allow_nan=False)))
    for one in (judge, again):
        one.rerun(*logged(1.01, seed=60), BUDGET, 1.01)
        one.observe(*logged(1.1, seed=61), BUDGET, 1.1, another=True)
    for share in SHARES:
        points = until(share, logged(1.1, seed=99))
        assert judge.look(*points, BUDGET, 1.0) == again.look(*points, BUDGET, 1.0)
    assert judge.to_state() == again.to_state()


def test_an_audit_is_judged_against_the_incumbent_and_not_the_luckiest_run() -> None:
    """A discarded experiment's first run may have been lucky: what is better than the incumbent is an improvement."""
    judge = session(audit_rate=1.0)
    judge.observe(*logged(0.9, seed=80), BUDGET, 0.9, another=True)
    before = judge.promise.improved
    judge.observe(*logged(0.95, seed=81), BUDGET, 0.95, another=True)
    assert judge.promise.improved == before + 1


@given(st.integers(-6, 6), st.floats(-50, 50), st.floats(0.9, 1.5), st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_scale_shift_and_direction_change_nothing(power: int, shift: float, end: float, tenth: int) -> None:
    scale = 2.0**power
    one = session()
    ways = ((policy(delta=DELTA * scale), scale, shift), (policy(maximize=True), -1.0, 0.0))
    points = until(tenth / 10, logged(end, seed=99))
    look = one.look(*points, BUDGET, 1.0)
    luck = np.random.default_rng(5).normal(0, SIGMA, 4)
    for judge, factor, more in ways:

        def moved(points: Points, factor: float = factor, more: float = more) -> Points:
            return points[0], factor * points[1] + factor * more

        def put(value: float, factor: float = factor, more: float = more) -> float:
            return float(factor * value + factor * more)

        judge.observe(*moved(logged(1.0, seed=0)), BUDGET, put(1.0), another=True)
        judge.succeed()
        for k in range(3):
            judge.rerun(*moved(logged(1.0 + luck[k], seed=50 + k)), BUDGET, put(1.0 + luck[k]))
        for k in range(1, 14):
            value = 1.0 + 0.02 * ((5 * k) % 14)
            judge.observe(*moved(logged(value, seed=k)), BUDGET, put(value), another=True)
        other = judge.look(*moved(points), BUDGET, put(1.0))
        assert look.score is not None and other.score is not None and look.threshold is not None
        assert other.score == pytest.approx(look.score, rel=1e-3, abs=1e-3)
        if abs(look.score - look.threshold) > 0.01:
            assert other.abort == look.abort


LEARNED = session().to_state()


@given(st.lists(numbers, max_size=30), st.lists(numbers, max_size=30), numbers, numbers)
@settings(max_examples=60, deadline=None)
def test_no_log_of_the_incumbent_however_broken_raises(
    steps: list[float], losses: list[float], budget: float, final: float
) -> None:
    judge = policy()
    assert judge.restore(LEARNED)
    judge.rerun(steps, losses, budget, final)
    judge.observe(*logged(1.1, seed=98), BUDGET, 1.1, another=True)
    judge.look(*until(0.5, logged(1.1, seed=99)), BUDGET, 1.0).explain()


def test_of_improvements_drawn_at_random_hardly_any_is_lost() -> None:
    rng = np.random.default_rng(12)
    lost = improved = aborted = 0
    for stream in range(6):
        judge, best = policy(seed=stream), math.inf
        for k in range(40):
            true = 1.0 + float(rng.exponential(0.15)) - 0.004 * k
            end = true + float(rng.normal(0, SIGMA))
            points = logged(end, seed=1000 * stream + k)
            stop = first_abort(judge, points, best)
            better = math.isfinite(best) and end < best - DELTA
            improved += better
            lost += better and stop < 1
            aborted += stop < 1
            judge.observe(*until(stop, points), BUDGET, None if stop < 1 else end, aborted=stop < 1, another=True)
            if stop == 1.0 and end < best:
                judge.succeed()
                values = [end, *(true + float(rng.normal(0, SIGMA)) for _ in range(2))]
                for j, value in enumerate(values):
                    judge.rerun(*logged(value, seed=7000 + 100 * stream + 3 * k + j), BUDGET, value)
                best = float(np.mean(values))
    assert improved >= 20
    assert lost <= 0.05 * improved
    assert aborted > 60
