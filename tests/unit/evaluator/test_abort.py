"""Early abort and its forecast: improvements that would be lost, and hopeless runs that would be paid for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoresearchd.evaluator.abort.abort_policy import MOST_CAUTION, AbortPolicy, Promise, Reason, wilson_upper
from autoresearchd.evaluator.abort.band import GRID, MIN_DISTINCT, Finished, Forecast
from autoresearchd.evaluator.abort.learning_curve import Curve, Shape, clean_curve, levels_at
from tests.unit.evaluator.curves import BUDGET, DELTA, Points, ReplayPolicy, finished, policy, training, until, varied

numbers = st.floats(allow_nan=True, allow_infinity=True, width=64)
History = list[dict[str, Any]]


def verdicts(judge: ReplayPolicy, history: History, points: Points, bar: float) -> list[bool]:
    return [judge(history, *until(tenth / 10, points), BUDGET, bar) for tenth in range(1, 10)]


def after(history: History, **more: Any) -> ReplayPolicy:
    judge = policy(**more)
    judge.observe_new(history)
    return judge


# ---------------------------------------------------------------------- what it is for
def test_a_hopeless_run_is_stopped_before_half_of_its_budget() -> None:
    assert any(verdicts(policy(), varied(), training(2.5, seed=99), 1.0)[:5])


@pytest.mark.parametrize("end", [0.8, 0.9, 0.95, 0.97])
def test_a_run_that_will_improve_is_never_stopped(end: float) -> None:
    assert not any(verdicts(policy(), varied(), training(end, seed=99), 1.0))


def test_a_look_explains_itself() -> None:
    judge = after(varied())
    look = judge.look(*until(0.5, training(2.5, seed=99)), BUDGET, 1.0)
    assert look.abort and look.reason is Reason.HOPELESS
    assert (look.forecast, look.bar) == (pytest.approx(2.5, abs=0.05), pytest.approx(1.0 - DELTA))
    assert look.score > look.threshold
    assert look.explain().startswith(
        "at 50% of the budget: the curve lies too high for a run that reaches the bar; forecast 2."
    )


def test_a_loss_that_stays_nan_is_stopped_once_there_is_a_history() -> None:
    steps, losses = until(0.5, training(1.0))
    losses[-20:] = math.nan
    assert after(varied()).look(steps, losses, BUDGET, 1.0).abort
    assert not policy().look(steps, losses, BUDGET, 1.0).abort


# ---------------------------------------------------------------------- no abort without evidence
@given(st.integers(0, MIN_DISTINCT - 1), st.floats(0.5, 50), st.integers(1, 9), st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_nothing_is_aborted_before_the_minimum_evidence(count: int, end: float, tenth: int, copies: int) -> None:
    history = varied()[:count] + [dict(varied()[0]) for _ in range(copies if count else 0)]
    bar = min((run["final"] for run in history), default=math.inf)
    assert not policy()(history, *until(tenth / 10, training(end, seed=99)), BUDGET, bar)


def test_twelve_copies_of_the_baseline_are_not_evidence() -> None:
    copies = [finished(1.0, seed=seed) for seed in range(30)]
    assert not any(verdicts(policy(), copies, training(1.4, seed=99), 1.0))


def test_where_the_end_cannot_be_foreseen_nothing_is_aborted() -> None:
    rng = np.random.default_rng(2)
    history = [finished(1.0 + 0.05 * k, seed=k, offset=float(rng.normal(0, 1.0))) for k in range(30)]
    assert not any(verdicts(policy(), history, training(1.6, seed=99), 1.0))


@pytest.mark.parametrize("bar", [math.inf, math.nan, None])
def test_without_an_incumbent_nothing_is_aborted(bar: float | None) -> None:
    look = after(varied()).look(*until(0.8, training(5.0)), BUDGET, bar)
    assert not look.abort and look.reason is Reason.NO_INCUMBENT


LEARNED = after(varied(12)).to_state()


@given(st.lists(numbers, max_size=30), st.lists(numbers, max_size=30), numbers, numbers)
@settings(max_examples=60, deadline=None)
@example([3.9e16, 4.1e16, 5.0e16], [0.0, 0.0, 0.0], 1.8e119, 0.0)
@example([3.7e15, 1.18e16, 1.22e16], [0.0, 0.0, 0.0], 2.3e67, 0.0)
def test_no_log_however_broken_raises(steps: list[float], losses: list[float], budget: float, bar: float) -> None:
    judge = policy()
    assert judge.restore(LEARNED)
    judge.look(steps, losses, budget, bar).explain()
    judge.observe(steps, losses, budget, bar)
    judge.look(*until(0.5, training(2.0)), BUDGET, 1.0)


def bad_curves() -> dict[str, Points]:
    steps, losses = until(0.5, training(0.95, seed=99))
    some_nan, some_inf = losses.copy(), losses.copy()
    some_nan[::7], some_inf[::9] = math.nan, math.inf
    half = len(steps) // 2
    return {
        "nan": (steps, some_nan),
        "inf": (steps, some_inf),
        "repeated": (np.repeat(steps, 2), np.repeat(losses, 2)),
        "decreasing": (steps[::-1], losses[::-1]),
        "restart": (np.append(steps[:half], steps[:half]), np.append(losses[:half], losses[:half])),
        "one point": (steps[-1:], losses[-1:]),
        "empty": (steps[:0], losses[:0]),
        "constant": (steps, np.full(len(steps), losses[-1])),
        "unit change": (steps, np.append(losses[:half], losses[half:] * 1.44)),
        "beyond the end": (np.append(steps, [900.0, 1e12]), np.append(losses, [70.0, 80.0])),
        "clock jumps": (np.append(steps[:half], steps[half:] + 100.0), losses),
        "different lengths": (steps, losses[:-3]),
    }


@pytest.mark.parametrize("kind", bad_curves())
def test_a_good_run_with_a_broken_log_is_not_stopped(kind: str) -> None:
    assert not after(varied()).look(*bad_curves()[kind], BUDGET, 1.0).abort


def moved(history: History, change: Any) -> History:
    return [{**run, "losses": change(run["losses"]), "final": change(run["final"])} for run in history]


@given(st.integers(0, 10**6), st.integers(-8, 8), st.floats(-100, 100), st.integers(1, 9), st.floats(0.9, 3.0))
@settings(max_examples=25, deadline=None)
def test_scale_and_shift_of_the_loss_change_nothing(
    seed: int, power: int, shift: float, tenth: int, end: float
) -> None:
    rng = np.random.default_rng(seed)
    scale = 2.0**power
    history = [finished(1.0 + float(rng.exponential(0.4)), seed=seed + k) for k in range(14)]
    points = until(tenth / 10, training(end, seed=seed))

    def change(value: Any) -> Any:
        return value * scale + shift * scale

    judge, other = policy(), policy(delta=DELTA * scale)
    judge(history, *points, BUDGET, 1.0)
    other(moved(history, change), points[0], change(points[1]), BUDGET, change(1.0))
    one, two = judge.last_look, other.last_look
    if one.score is None or two.score is None:
        assert one.score == two.score
        return
    assert two.score == pytest.approx(one.score, rel=1e-3, abs=1e-3)
    assert two.threshold == pytest.approx(one.threshold, rel=1e-3)
    if abs(one.score - one.threshold) > 0.01:
        assert one.abort == two.abort


@given(st.integers(0, 10**6), st.integers(1, 9), st.floats(0.9, 3.0))
@settings(max_examples=15, deadline=None)
def test_a_maximised_metric_is_judged_like_its_mirror_image(seed: int, tenth: int, end: float) -> None:
    rng = np.random.default_rng(seed)
    history = [finished(1.0 + float(rng.exponential(0.4)), seed=seed + k) for k in range(14)]
    points = until(tenth / 10, training(end, seed=seed))
    judge, mirror = policy(), policy(maximize=True)
    one = judge(history, *points, BUDGET, 1.0)
    two = mirror(moved(history, lambda value: -value), points[0], -points[1], BUDGET, -1.0)
    assert one == two
    seen, mirrored = judge.last_look, mirror.last_look
    assert seen.score == mirrored.score
    assert seen.low is None or mirrored.high == -seen.low


# ---------------------------------------------------------------------- restarts
def test_a_policy_goes_on_after_a_restart_as_if_nothing_had_happened() -> None:
    history = varied(24)
    judge = after(history[:20], seed=3, audit_rate=0.2)
    judge.look(*until(0.2, training(1.3, seed=98)), BUDGET, 1.0)
    state = json.loads(json.dumps(judge.to_state(), allow_nan=False))
    again = policy(seed=3, audit_rate=0.2)
    assert again.restore(state)
    for end in (0.95, 1.3, 2.5):
        points = until(0.5, training(end, seed=99))
        assert judge(history, *points, BUDGET, 1.0) == again(history, *points, BUDGET, 1.0)
        assert judge.last_look == again.last_look
    assert judge.to_state() == again.to_state()


def test_a_state_of_an_earlier_version_changes_nothing() -> None:
    """The daemon then learns from the stored curves again."""
    judge = after(varied())
    before = judge.to_state()
    assert not judge.restore({"version": 3, "observed": 2})
    assert judge.to_state() == before


# ---------------------------------------------------------------------- the promise
def test_audits_are_never_aborted_and_the_same_after_a_restart() -> None:
    judge = policy(audit_rate=0.3, seed=1)
    audits = []
    for k, run in enumerate(varied(14) + [finished(3.0 + 0.1 * k, seed=200 + k) for k in range(20)]):
        audits.append(judge.is_audit)
        if judge.is_audit:
            assert first_share(judge, training(5.0, seed=k)) == 1.0
        judge.observe(run["steps"], run["losses"], BUDGET, run["final"])
    assert 3 <= sum(audits) <= 20
    assert judge.promise.audited == sum(audits)


def test_a_long_row_of_aborts_forces_an_audit() -> None:
    judge = after(varied())
    seen = False
    for k in range(40):
        seen = seen or judge.is_audit
        if judge.is_audit:
            judge.observe(*training(2.5, seed=k), BUDGET, 2.5)
        else:
            judge.observe(*until(0.3, training(2.5, seed=k)), BUDGET, None, aborted=True)
    assert seen
    assert judge.promise.hopeless >= 1
    assert judge.promise.lost == 0


def test_a_change_of_the_logged_unit_suspends_aborting() -> None:
    judge, bar = after(varied(24)), 1.0
    aborted, caution = 0, []
    for k in range(20):
        end = 0.97 - 0.03 * k
        steps, losses = training(end, seed=500 + k)
        points = steps, losses * 1.5
        stop = first_share(judge, points, bar)
        caution.append(judge.caution)
        aborted += stop < 1
        judge.observe(*until(stop, points), BUDGET, None if stop < 1 else end)
        bar = bar if stop < 1 else end
    assert 1 <= aborted <= 4
    assert max(caution) == MOST_CAUTION


@pytest.mark.parametrize("unit", [0.3, 3.0])
def test_a_log_in_another_unit_than_the_metric_ends_hopeless_runs_and_no_others(unit: float) -> None:
    """As in karpathy/autoresearch: nats per token are logged, bits per byte are scored."""
    history = [{**run, "losses": run["losses"] * unit} for run in varied()]
    for end in (0.8, 0.9, 0.97):
        steps, losses = training(end, seed=99)
        assert not any(verdicts(policy(), history, (steps, unit * losses), 1.0))
    steps, losses = training(1.6, seed=99)
    assert any(verdicts(policy(), history, (steps, unit * losses), 1.0)[:7])


UNIT = 3.0
SIGMA = DELTA / 2
SHARES = tuple(tenth / 10 for tenth in range(1, 10))


def logged(end: float, *, seed: int) -> Points:
    """As in karpathy/autoresearch: the log has another unit than the metric."""
    steps, losses = training(end, seed=seed)
    return steps, UNIT * losses


def first_share(judge: AbortPolicy, points: Points, bar: float = 1.0) -> float:
    return next((share for share in SHARES if judge.look(*until(share, points), BUDGET, bar).abort), 1.0)


def test_hardly_any_improvement_drawn_at_random_is_lost() -> None:
    rng = np.random.default_rng(12)
    lost = improved = aborted = 0
    for stream in range(6):
        judge, best = policy(seed=stream), math.inf
        for k in range(40):
            true = 1.0 + float(rng.exponential(0.15)) - 0.004 * k
            end = true + float(rng.normal(0, SIGMA))
            points = logged(end, seed=1000 * stream + k)
            stop = first_share(judge, points, best)
            better = math.isfinite(best) and end < best - DELTA
            improved += better
            lost += better and stop < 1
            aborted += stop < 1
            judge.observe(*until(stop, points), BUDGET, None if stop < 1 else end, aborted=stop < 1, another=True)
            best = end if stop == 1.0 and end < best else best
    assert improved >= 20
    assert lost <= 0.05 * improved
    assert aborted > 60


def test_the_promise_counts_what_audits_saw_and_does_not_claim_more() -> None:
    assert Promise().false_abort_rate is None
    assert Promise().false_abort_limit == 1.0
    promise = Promise(audited=20, hopeless=10, lost=0, improved=8)
    assert promise.false_abort_rate == 0
    assert promise.false_abort_limit == pytest.approx(0.324, abs=0.001)
    assert wilson_upper(5, 100) == pytest.approx(0.1118, abs=0.0005)


def curve_of(points: Points) -> Curve:
    return clean_curve(*points, BUDGET)


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


@pytest.mark.parametrize("noise", [0.0, 0.005])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (8.0, -40.0), (0.125, 30.0)])
def test_a_loss_that_leaps_to_a_plateau_has_diverged(noise: float, scale: float, shift: float) -> None:
    """Else the curve would be one that cannot be compared for the rest of the budget."""
    steps, losses = training(1.0)
    wobble = np.random.default_rng(7).normal(0, noise, len(losses))
    plateau = np.where(np.arange(len(losses)) < 20, losses, 9.0 + wobble)
    for share, shape in ((0.45, Shape.JUMPED), (0.5, Shape.REGULAR), (0.9, Shape.REGULAR)):
        assert curve_of(until(share, (steps, scale * plateau + shift))).shape is shape


# ---------------------------------------------------------------------- the band
def known(ends: Sequence[float], offset: Callable[[int], float] = lambda k: 0.0) -> Finished:
    finished = Finished()
    for k, end in enumerate(ends):
        steps, losses = training(end, seed=k)
        finished.add(levels_at(clean_curve(steps, losses + offset(k), BUDGET), GRID), end, k, DELTA, another=True)
    return finished


def test_the_interval_holds_the_end_nine_times_in_ten() -> None:
    rng = np.random.default_rng(5)
    band, hits = known(1.0 + 0.1 * rng.uniform(0, 5, 30)).band(), 0
    for seed in range(100, 150):
        end = 1.0 + 0.1 * float(rng.uniform(0, 2.5))
        levels = levels_at(clean_curve(*until(0.5, training(end, seed=seed)), BUDGET), GRID)
        got = band.forecast(8, levels[8])
        hits += got.low <= end <= got.high
    assert hits >= 40


def test_no_more_runs_that_end_just_at_the_bar_are_ended_than_it_says() -> None:
    """Whatever the noise is like: here its tails are heavy and the offset of the log is each program's own."""
    rng = np.random.default_rng(3)
    above = trials = 0
    for _ in range(40):
        offsets = rng.standard_t(3, 44) * 0.05
        ends = 1.0 + rng.exponential(0.2, 44)
        band = known(ends[:24], lambda k, offsets=offsets: float(offsets[k])).band()
        for k in np.flatnonzero(ends[24:] < np.median(ends[:24])) + 24:
            steps, losses = training(ends[k], seed=500 + int(k))
            levels = levels_at(clean_curve(steps, losses + offsets[k], BUDGET), GRID)
            above += band.scores(levels, float(ends[k])).max() > band.limit
            trials += 1
    assert trials > 300
    assert above <= 0.1 * trials


def test_what_a_run_may_gain_is_its_normal_expectation() -> None:
    draws = np.random.default_rng(0).normal(1.0, 0.3, 200_000)
    assert Forecast(1.0, 0.3).gain(0.8) == pytest.approx(float(np.maximum(0, 0.8 - draws).mean()), rel=0.02)
    assert Forecast(1.0, 0.0).gain(0.8) == 0.0


# ---------------------------------------------------------------------- when it cannot know
def test_a_session_that_improves_again_and_again_ends_fewer_runs() -> None:
    """Records come far more often than among runs in no order: the past does not tell what comes next."""
    steady, mixed = policy(), policy()
    for k in range(24):
        steady.observe(*training(2.0 - 0.03 * k, seed=k), BUDGET, 2.0 - 0.03 * k)
        end = 2.0 - 0.03 * ((7 * k + 16) % 24)
        mixed.observe(*training(end, seed=k), BUDGET, end)
    assert steady.caution == MOST_CAUTION
    assert mixed.caution < 1.2


def test_where_the_session_has_gained_little_a_run_is_finished() -> None:
    """Nothing was found yet, so its time is worth little elsewhere."""
    offsets = np.random.default_rng(4).normal(0, 0.4, 40)
    judge = policy(delta=1e-4)
    for k in range(30):
        end = 1.0 + 0.02 * ((7 * k) % 30)
        steps, losses = training(end, seed=k)
        judge.observe(steps, losses + offsets[k], BUDGET, end)
    steps, losses = training(1.3, seed=99)
    look = judge.look(*until(0.5, (steps, losses + 1.2)), BUDGET, 1.0)
    assert look.score > look.threshold and look.gain > look.price
    assert not look.abort and look.reason is Reason.WORTH
