"""What is kept after one run: what is expected to be better, within the constraints, by a run that ended well."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import BaselineError
from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.task import Constraint, Direction, Task
from autoresearchd.evaluator.keep.decide import (
    belief_of,
    decide,
    decide_baseline,
    decide_failed_proposal,
    step_of,
    tip_value,
)
from autoresearchd.evaluator.keep.noise import mad_confidence
from autoresearchd.evaluator.keep.tip_belief import follow
from tests.unit.evaluator.builders import experiment, incumbent, run, scoring, task

MINIMIZE, MAXIMIZE = Direction.MINIMIZE, Direction.MAXIMIZE
BASELINE = (0.99, 1.0, 1.01)
STEADY = (1.0, 1.0, 1.0)


def decided(t: Task, e: Experiment, before: Experiment, **more: Any) -> Decision:
    return decide(t, e, before, belief_of(t, before), **more)


def test_a_clear_improvement_is_kept_after_one_run_and_explained() -> None:
    d = decided(task(), experiment(run(-2.0)), incumbent(*BASELINE))
    assert (d.status, d.label, d.value, d.reward) == (Status.KEEP, Label.NONE, -2.0, None)
    assert d.delta == pytest.approx(3.0, abs=0.02) and d.sigma == pytest.approx(0.01, rel=0.5)
    assert "val_bpb -2, where experiment 0 is believed to be at 1 ±" in d.reason
    assert "better ±" in d.reason and d.reason.endswith("kept, as on average a gain is to be expected.")


def test_a_value_that_may_be_luck_is_believed_in_part_only() -> None:
    d = decided(task(), experiment(run(0.985)), incumbent(*BASELINE))
    assert d.delta is not None and d.delta < 0.0075


def test_a_loss_is_not_kept() -> None:
    for new in (1.0, 1.005, 1.3):
        d = decided(task(), experiment(run(new)), incumbent(*BASELINE))
        assert (d.status, d.label) == (Status.DISCARD, Label.NO_GAIN) and d.delta is not None and d.delta <= 0


def test_code_that_hardly_brings_anything_is_not_worth_its_place() -> None:
    """Else the tip would fill with clutter, two thirds of which truly brings nothing."""
    small, clear = experiment(run(0.9825)), experiment(run(0.95))
    assert decided(task(), small, incumbent(*BASELINE)).status is Status.KEEP
    d = decided(task(), small, incumbent(*BASELINE), larger=True)
    assert d.label is Label.NO_GAIN and "not worth the code" in d.reason
    assert decided(task(), clear, incumbent(*BASELINE), larger=True).status is Status.KEEP


def test_a_tie_goes_to_the_simpler_program_and_a_loss_does_not() -> None:
    tie = decided(task(), experiment(run(0.9985)), incumbent(*BASELINE), simpler=True)
    assert (tie.status, tie.label) == (Status.KEEP, Label.SIMPLER) and "simpler" in tie.reason
    assert decided(task(), experiment(run(1.02)), incumbent(*BASELINE), simpler=True).label is Label.NO_GAIN


def test_an_edit_after_which_the_program_gives_the_very_same_value_changes_nothing() -> None:
    same = experiment(run(0.99))
    d = decided(task(), same, incumbent(*BASELINE))
    assert (d.label, d.delta) == (Label.NO_GAIN, 0.0) and "changes nothing" in d.reason
    assert decided(task(), same, incumbent(*BASELINE), simpler=True).label is Label.SIMPLER


def test_without_noise_the_sign_alone_decides() -> None:
    any_gain = task(scoring(min_delta=0.0))
    for before, words in ((incumbent(*STEADY), "no noise"), (incumbent(1.0), "σ is not known")):
        for new in (1.0, 1.1):
            d = decided(any_gain, experiment(run(new)), before)
            assert d.status is Status.DISCARD and words in d.reason
        d = decided(any_gain, experiment(run(0.999999)), before, larger=True)
        assert d.status is Status.KEEP and words in d.reason and d.delta == pytest.approx(1e-6)
    blind = decided(task(), experiment(run(0.9)), incumbent(*STEADY), seeded=False)
    assert "ignores AUTORESEARCHD_SEED" in blind.reason


@pytest.mark.parametrize("direction", Direction)
def test_a_trifle_is_no_gain_where_there_is_no_noise(direction: Direction) -> None:
    """A momentum went from .961 to .99999 in nine keeps of twenty, each better by a fourth decimal or less."""
    sign = 1.0 if direction is MAXIMIZE else -1.0
    t = task(scoring(direction=direction))
    d = decided(t, experiment(run(1.0 + sign * 0.00003)), incumbent(*STEADY))
    assert d.label is Label.NO_GAIN
    assert "a gain of 0.00003 is below scoring.min_delta (0.0001)" in d.reason
    assert decided(t, experiment(run(1.0 + sign * 0.0002)), incumbent(*STEADY)).status is Status.KEEP
    tie = decided(t, experiment(run(1.0 + sign * 0.00003)), incumbent(*STEADY), simpler=True)
    assert tie.label is Label.SIMPLER, "as a tie it may be kept"


def test_a_least_gain_that_the_task_names_holds_with_noise_as_well() -> None:
    e = experiment(run(-2.0))
    assert decided(task(scoring(min_delta=2.5)), e, incumbent(*BASELINE)).status is Status.KEEP
    d = decided(task(scoring(min_delta=3.5)), e, incumbent(*BASELINE))
    assert d.label is Label.NO_GAIN and "is below scoring.min_delta (3.5)" in d.reason
    assert decided(task(scoring(min_delta=3.5)), e, incumbent(*BASELINE), simpler=True).label is Label.SIMPLER


def test_the_same_program_is_never_kept_however_lucky() -> None:
    for before in (incumbent(*BASELINE), incumbent(*STEADY), incumbent(1.0)):
        d = decided(task(), experiment(run(0.1)), before, identical=True, simpler=True)
        assert (d.status, d.label, d.delta) == (Status.DISCARD, Label.NO_GAIN, 0.0) and "own program" in d.reason


@pytest.mark.parametrize("label", [label for label in Label if label])
def test_no_labelled_run_is_ever_kept_even_with_a_value(label: Label) -> None:
    d = decided(task(), experiment(run(0.0001, label, detail="it was so")), incumbent(*STEADY))
    assert d.status is not Status.KEEP and d.value is None
    if RULES[label] not in (None, Status.KEEP):
        assert (d.status, d.label) == (RULES[label], label) and "it was so" in d.reason


def test_a_run_that_was_ended_early_tells_by_how_much_it_would_have_missed() -> None:
    ended = run(None, Label.ABORTED_EARLY, metrics={"forecast": 1.5}, detail="hopeless")
    d = decided(task(), experiment(ended), incumbent(*BASELINE))
    assert (d.status, d.label, d.value) == (Status.DISCARD, Label.ABORTED_EARLY, None)
    assert d.delta == pytest.approx(-0.5)


def test_interrupted_runs_do_not_count_against_an_experiment() -> None:
    d = decided(task(), experiment(run(None, Label.INTERRUPTED), run(0.5)), incumbent(*STEADY))
    assert d.status is Status.KEEP
    assert decided(task(), experiment(), incumbent(*STEADY)).status is Status.CRASH


@pytest.mark.parametrize("huge", [1e99, -1e99, 1.7e308])
@pytest.mark.parametrize("before", [incumbent(*BASELINE), incumbent(*STEADY), incumbent(1e200, 2e200, 4e200)])
def test_no_number_is_too_large_for_a_decision(huge: float, before: Experiment) -> None:
    for direction in Direction:
        t = task(scoring(direction=direction))
        belief = belief_of(t, before)
        for value in (huge, huge / 2, 1.0, 0.99):
            d = decide(t, experiment(run(value)), before, belief)
            assert d.reason and math.isfinite(d.delta or 0.0) and math.isfinite(tip_value(t, belief, before))
            step = step_of(t, experiment(run(value), decision=d))
            assert belief is not None and step is not None
            belief = follow(belief, step)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_a_value_that_is_none_or_not_finite_is_never_kept(bad: float | None, direction: Direction) -> None:
    assert decided(task(scoring(direction=direction)), experiment(run(bad)), incumbent(*STEADY)).status == "crash"


class TestConstraints:
    """A better metric does not buy a broken constraint."""

    @pytest.mark.parametrize(
        ("constraint", "holds", "broken", "label"),
        [
            (Constraint("peak_vram_mb", max=100), 100.0, [101.0, math.nan], Label.CONSTRAINT),
            (Constraint("accuracy", min=0.9), 0.9, [0.89, None], Label.CONSTRAINT),
            (Constraint("peak_vram_mb", max_increase=0.25), 125.0, [126.0], Label.CONSTRAINT),
            (Constraint("artifact_bytes", max=16_000_000), 16e6, [16_000_001.0], Label.SIZE_BLOCKED),
        ],
    )
    def test_bounds(self, constraint: Constraint, holds: float, broken: list[float | None], label: Label) -> None:
        before, t = incumbent(*STEADY, metrics={constraint.metric: 100.0}), task(scoring(constraints=(constraint,)))
        for printed in (holds, *broken):
            metrics = {} if printed is None else {constraint.metric: printed}
            d = decided(t, experiment(run(0.5, metrics=metrics)), before)
            if printed == holds:
                assert (d.status, d.label) == (Status.KEEP, Label.NONE)
            else:
                assert (d.status, d.label) == (Status.DISCARD, label) and constraint.metric in d.reason

    def test_an_increase_is_one_over_what_is_confirmed(self) -> None:
        """As in the confirmation to come: a chain of two keeps, each within the bound, would fall there as a whole."""
        t = task(scoring(constraints=(Constraint("peak_vram_mb", max_increase=0.25),)))
        tip, confirmed = (incumbent(*STEADY, metrics={"peak_vram_mb": mb}) for mb in (120.0, 100.0))
        edit = experiment(run(0.5, metrics={"peak_vram_mb": 144.0}))
        assert decided(t, edit, tip).label is Label.NONE
        assert decided(t, edit, tip, confirmed=confirmed).label is Label.CONSTRAINT


value = st.floats(-1e6, 1e6, allow_nan=False)


@given(value, st.lists(value, min_size=1, max_size=4), st.lists(value, max_size=6), st.booleans(), st.booleans())
def test_minimising_and_maximising_judge_mirrored_values_alike(
    new: float, old: list[float], values: list[float], simpler: bool, larger: bool
) -> None:
    down, up, words = task(scoring(direction=MINIMIZE)), task(scoring(direction=MAXIMIZE)), (simpler, larger)
    how = dict(zip(("simpler", "larger"), words, strict=True))
    a = decided(down, experiment(run(new)), incumbent(*old), values=values, **how)
    mirrored = [-v for v in old], [-v for v in values]
    b = decided(up, experiment(run(-new)), incumbent(*mirrored[0]), values=mirrored[1], **how)
    assert (a.status, a.label, a.delta) == (b.status, b.label, b.delta)


class TestBaseline:
    """Experiment 0."""

    def test_it_is_kept_with_the_mean_of_its_runs(self) -> None:
        runs = (run(1.0, metrics={"peak_vram_mb": 10.0}), run(2.0, metrics={"peak_vram_mb": 20.0}), run(3.0))
        d = decide_baseline(task(), experiment(*runs, number=0))
        assert (d.status, d.label, d.value, d.sigma, dict(d.metrics)) == (Status.KEEP, Label.NONE, 2.0, 1.0, {})

    @pytest.mark.parametrize("label", [label for label in Label if RULES[label] is Status.CRASH])
    def test_without_a_good_run_the_error_names_label_detail_log_and_cure(self, label: Label) -> None:
        failed = experiment(run(None, label, detail="went wrong"), number=0)
        with pytest.raises(BaselineError) as caught:
            decide_baseline(task(), failed, log="runs/0/0/training.log")
        text = str(caught.value)
        assert label.value in text and "went wrong" in text and "runs/0/0/training.log" in text
        assert caught.value.hint and "{" not in caught.value.hint and caught.value.exit_code == 3

    def test_a_partly_failed_baseline_is_refused_because_sigma_would_be_unknown(self) -> None:
        with pytest.raises(BaselineError, match="slow"):
            decide_baseline(task(), experiment(run(1.0), run(None, Label.TIMEOUT, detail="slow"), number=0))

    def test_a_constraint_that_could_never_hold_is_told_at_once_and_not_after_a_night(self) -> None:
        t = task(scoring(constraints=(Constraint("artifact_bytes", max=1),)))
        with pytest.raises(BaselineError, match="artifact_bytes"):
            decide_baseline(t, experiment(run(1.0), number=0))


@pytest.mark.parametrize("label", list(Label))
def test_a_failed_proposal_is_never_kept_and_always_closed(label: Label) -> None:
    d = decide_failed_proposal(label, "two\nlines")
    assert d.status in (Status.DISCARD, Status.CRASH, Status.CHECKS_FAILED) and d.reason == "two lines."
    if RULES[label] not in (None, Status.KEEP):
        assert d.label is label


def test_confidence_is_computed_as_pi_autoresearch_does() -> None:
    assert mad_confidence([100.0, 90.0, 110.0, 95.0], 100.0, 90.0) == pytest.approx(10 / 5)
