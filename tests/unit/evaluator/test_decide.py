"""What is kept: improvements beyond the noise, within the constraints, by runs that all ended well."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.metric import Direction
from autoresearchd.domain.task import Constraint
from autoresearchd.errors import BaselineError
from autoresearchd.evaluator.confidence import mad_confidence
from autoresearchd.evaluator.decide import decide, decide_baseline, decide_failed_proposal
from autoresearchd.evaluator.noise import estimate_sigma, mean, noise_bar, within_noise
from tests.unit.evaluator.builders import experiment, incumbent, run, scoring, task

MINIMIZE, MAXIMIZE = Direction.MINIMIZE, Direction.MAXIMIZE
value = st.floats(-1e6, 1e6, allow_nan=False)


def test_an_improvement_beyond_the_noise_is_kept_and_explained() -> None:
    d = decide(task(), experiment(run(0.90)), incumbent(1.0), sigma=0.01, values=[1.0, 0.98, 0.90])
    assert (d.status, d.label, d.value, d.sigma, d.reward) == (Status.KEEP, Label.NONE, 0.90, 0.01, None)
    assert d.delta == pytest.approx(0.1)
    assert d.reason == (
        "val_bpb 0.9 is 0.1 better than 1 of experiment 0; that is more than the noise bar of 0.0282843 "
        "(2σ·√(1/1 + 1/1), σ = 0.01)."
    )


def test_an_improvement_within_the_noise_is_discarded() -> None:
    d = decide(task(), experiment(run(0.98)), incumbent(1.0), sigma=0.01, values=[])
    assert (d.status, d.label) == (Status.DISCARD, Label.NO_GAIN)
    assert "within the noise bar" in d.reason and d.delta == pytest.approx(0.02)


def test_repeats_of_baseline_and_experiment_lower_the_bar() -> None:
    many = [run(0.98)] * 4
    assert decide(task(), experiment(*many), incumbent(*[1.0] * 4), sigma=0.01, values=[]).status is Status.KEEP
    assert noise_bar(1.0, 1, 1) == pytest.approx(2 * math.sqrt(2))
    assert noise_bar(1.0, 3, 3) == pytest.approx(2 * math.sqrt(2 / 3))


@pytest.mark.parametrize("sigma", [0.0, None])
def test_without_noise_the_sign_alone_decides(sigma: float | None) -> None:
    for new, status in ((0.999999, Status.KEEP), (1.0, Status.DISCARD), (1.1, Status.DISCARD)):
        d = decide(task(), experiment(run(new)), incumbent(1.0), sigma=sigma, values=[])
        assert d.status is status
        assert ("σ is not known" in d.reason) == (sigma is None)


def test_one_failed_run_fails_the_experiment_however_good_the_others_are() -> None:
    runs = (run(0.1), run(None, Label.OOM, detail="CUDA out of memory"), run(0.1))
    d = decide(task(), experiment(*runs), incumbent(1.0), sigma=0.0, values=[])
    assert (d.status, d.label, d.value) == (Status.CRASH, Label.OOM, None) and "CUDA" in d.reason


@pytest.mark.parametrize("label", [label for label in Label if label not in (Label.NONE,)])
def test_no_labelled_run_is_ever_kept_even_with_a_value(label: Label) -> None:
    d = decide(task(), experiment(run(0.0001, label)), incumbent(1.0), sigma=0.0, values=[])
    assert d.status is not Status.KEEP and d.value is None
    if RULES[label].status not in (None, Status.KEEP):
        assert (d.status, d.label) == (RULES[label].status, label)


def test_interrupted_runs_do_not_count_against_an_experiment() -> None:
    d = decide(task(), experiment(run(None, Label.INTERRUPTED), run(0.5)), incumbent(1.0), sigma=0.0, values=[])
    assert d.status is Status.KEEP
    assert decide(task(), experiment(), incumbent(1.0), sigma=0.0, values=[]).status is Status.CRASH


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_a_value_that_is_none_or_not_finite_is_never_kept(bad: float | None) -> None:
    for direction in Direction:
        t = task(scoring(direction=direction))
        assert decide(t, experiment(run(bad)), incumbent(1.0), sigma=0.0, values=[]).status is Status.CRASH


class TestConstraints:
    """A better metric does not buy a broken constraint."""

    @pytest.mark.parametrize(
        ("constraint", "printed", "label"),
        [
            (Constraint("peak_vram_mb", max=100), 101.0, Label.CONSTRAINT),
            (Constraint("peak_vram_mb", max=100), 100.0, Label.NONE),
            (Constraint("accuracy", min=0.9), 0.89, Label.CONSTRAINT),
            (Constraint("accuracy", min=0.9), 0.9, Label.NONE),
            (Constraint("peak_vram_mb", max_increase=0.25), 126.0, Label.CONSTRAINT),
            (Constraint("peak_vram_mb", max_increase=0.25), 125.0, Label.NONE),
            (Constraint("artifact_bytes", max=16_000_000), 16_000_001.0, Label.SIZE_BLOCKED),
            (Constraint("artifact_bytes", max=16_000_000), None, Label.CONSTRAINT),
            (Constraint("peak_vram_mb", max=100), math.nan, Label.CONSTRAINT),
        ],
    )
    def test_bounds(self, constraint: Constraint, printed: float | None, label: Label) -> None:
        metrics = {} if printed is None else {constraint.metric: printed}
        before = incumbent(1.0, metrics={constraint.metric: 100.0})
        t = task(scoring(constraints=(constraint,)))
        d = decide(t, experiment(run(0.5, metrics=metrics)), before, sigma=0.0, values=[])
        assert d.label is label and d.status is (Status.DISCARD if label else Status.KEEP)
        assert not label or constraint.metric in d.reason

    def test_a_figure_that_one_of_the_runs_left_out_cannot_hold_a_constraint(self) -> None:
        t = task(scoring(constraints=(Constraint("peak_vram_mb", max=100),)))
        runs = (run(0.5, metrics={"peak_vram_mb": 1.0}), run(0.5))
        d = decide(t, experiment(*runs), incumbent(1.0), sigma=0.0, values=[])
        assert d.label is Label.CONSTRAINT and "did not print" in d.reason

    def test_a_relative_bound_needs_the_incumbents_figure(self) -> None:
        t = task(scoring(constraints=(Constraint("peak_vram_mb", max_increase=0.1),)))
        d = decide(t, experiment(run(0.5, metrics={"peak_vram_mb": 1.0})), incumbent(1.0), sigma=0.0, values=[])
        assert d.label is Label.CONSTRAINT and "the incumbent has no peak_vram_mb" in d.reason


@given(value, value, st.none() | st.floats(0, 1e3), st.lists(value, max_size=6), st.integers(1, 4))
def test_minimising_and_maximising_judge_mirrored_values_alike(
    new: float, old: float, sigma: float | None, values: list[float], n: int
) -> None:
    down, up = task(scoring(direction=MINIMIZE)), task(scoring(direction=MAXIMIZE))
    a = decide(down, experiment(*[run(new)] * n), incumbent(old), sigma=sigma, values=values)
    b = decide(up, experiment(*[run(-new)] * n), incumbent(-old), sigma=sigma, values=[-v for v in values])
    assert (a.status, a.label, a.delta, a.confidence) == (b.status, b.label, b.delta, b.confidence)


@given(value, value, st.floats(0, 1e3))
def test_what_is_kept_is_strictly_better_than_the_noise(new: float, old: float, sigma: float) -> None:
    d = decide(task(), experiment(run(new)), incumbent(old), sigma=sigma, values=[])
    assert (d.status is Status.KEEP) == (old - new > 2 * sigma * math.sqrt(2))


def test_an_incumbent_without_a_value_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="incumbent"):
        decide(task(), experiment(run(0.5)), experiment(number=0), sigma=0.0, values=[])


class TestBaseline:
    """Experiment 0."""

    def test_it_is_kept_with_the_mean_of_its_runs(self) -> None:
        runs = (run(1.0, metrics={"peak_vram_mb": 10.0}), run(2.0, metrics={"peak_vram_mb": 20.0}), run(3.0))
        d = decide_baseline(task(), experiment(*runs, number=0))
        assert (d.status, d.label, d.value, d.sigma, dict(d.metrics)) == (Status.KEEP, Label.NONE, 2.0, 1.0, {})

    @pytest.mark.parametrize("label", [label for label in Label if RULES[label].status is Status.CRASH])
    def test_without_a_good_run_the_error_names_label_detail_log_and_cure(self, label: Label) -> None:
        with pytest.raises(BaselineError) as caught:
            decide_baseline(
                task(), experiment(run(None, label, detail="went wrong"), number=0), log="runs/0/0/training.log"
            )
        text = str(caught.value)
        assert label.value in text and "went wrong" in text and "runs/0/0/training.log" in text
        assert caught.value.mend and "{" not in caught.value.mend and caught.value.exit_code == 3

    def test_a_partly_failed_baseline_is_refused_because_sigma_would_be_unknown(self) -> None:
        with pytest.raises(BaselineError, match="slow"):
            decide_baseline(task(), experiment(run(1.0), run(None, Label.TIMEOUT, detail="slow"), number=0))

    def test_a_constraint_that_could_never_hold_is_told_at_once_and_not_after_a_night(self) -> None:
        t = task(scoring(constraints=(Constraint("artifact_bytes", max=1),)))
        with pytest.raises(BaselineError, match="artifact_bytes"):
            decide_baseline(t, experiment(run(1.0), number=0))

    def test_nothing_ran_at_all(self) -> None:
        with pytest.raises(BaselineError, match="no run"):
            decide_baseline(task(), experiment(number=0))


@pytest.mark.parametrize("label", list(Label))
def test_a_failed_proposal_is_never_kept_and_always_closed(label: Label) -> None:
    d = decide_failed_proposal(label, "two\nlines")
    assert d.status in (Status.DISCARD, Status.CRASH, Status.CHECKS_FAILED) and d.reason == "two lines."
    if RULES[label].status not in (None, Status.KEEP):
        assert d.label is label


class TestNoise:
    """σ from repeats."""

    def test_known_values(self) -> None:
        assert estimate_sigma([1.0]) is None and estimate_sigma([]) is None
        assert estimate_sigma([0.1] * 3) == 0.0
        assert estimate_sigma([1.0, 2.0, 3.0]) == pytest.approx(1.0)
        assert estimate_sigma([1.0, math.nan, 3.0]) == pytest.approx(math.sqrt(2))
        assert not within_noise(0.1, None) and within_noise(0.0, None)
        with pytest.raises(ValueError, match="nothing"):
            mean([])

    @given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=9))
    def test_any_finite_values_give_a_mean_between_them_and_a_sigma_that_is_not_negative(
        self, values: list[float]
    ) -> None:
        sigma = estimate_sigma(values)
        assert sigma is not None and sigma >= 0
        slack = 1e-9 * max(1e-300, max(map(abs, values)))
        assert min(values) - slack <= mean(values) <= max(values) + slack


class TestConfidence:
    """|best − baseline| / MAD, as pi-autoresearch computes it."""

    def test_the_figure_of_a_worked_example(self) -> None:
        assert mad_confidence([100.0, 90.0, 110.0, 95.0], 100.0, 90.0) == pytest.approx(10 / 5)

    def test_it_is_absent_where_it_means_nothing(self) -> None:
        assert mad_confidence([1.0, 2.0], 1.0, 2.0) is None
        assert mad_confidence([1.0, 1.0, 1.0], 1.0, 0.5) is None
        assert mad_confidence([1.0, 2.0, 3.0], 1.0, 1.0) is None
        assert mad_confidence([1.0, 2.0, 3.0], 1.0, None) is None

    @given(st.lists(value, min_size=3, max_size=9), value, st.floats(0.001, 1000))
    def test_shift_and_sign_of_the_metric_do_not_matter(self, values: list[float], best: float, scale: float) -> None:
        a = mad_confidence(values, values[0], best)
        b = mad_confidence([-v for v in values], -values[0], -best)
        assert a == b
        c = mad_confidence([v * scale for v in values], values[0] * scale, best * scale)
        assume(a is not None and c is not None and 1e-6 < a < 1e6)
        assert a is not None and c == pytest.approx(a, rel=1e-3)
