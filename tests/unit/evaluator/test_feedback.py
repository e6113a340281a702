"""What a policy is told and earns: the task's words and no other text interpreted; cheats and crashes never pay."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.evaluator.feedback import FORMULA, feedback, fill, novelty, reward
from tests.unit.evaluator.builders import experiment, scoring, task

KEPT = Decision(Status.KEEP, Label.NONE, 0.9, 0.1, {"peak_vram_mb": 512.0}, reason="It is better.")


def told(decision: Decision, **templates: str) -> str:
    t = task(scoring(display_metrics=("peak_vram_mb",)), feedback=templates)
    return feedback(t, experiment(decision=decision))


def test_a_keep_is_told_with_its_figures() -> None:
    assert told(KEPT) == (
        "val_bpb = 0.9 (0.1 better) | peak_vram_mb = 512\n"
        "This is kept: it gave val_bpb 0.9, and a gain is expected. Build on it."
    )


def test_the_tasks_own_words_are_used() -> None:
    assert told(
        KEPT, success="{metric}={value:.3f} d={delta:+.2f} {{x}} {unknown} {0} {value!r} {value:>99999999}"
    ).endswith("val_bpb=0.900 d=+0.10 {x} {unknown} {0} {value!r} {value:>99999999}")


@pytest.mark.parametrize(
    ("label", "key"),
    [
        (Label.NO_GAIN, "failure"), (Label.OOM, "crash"), (Label.DUPLICATE, "duplicate"), (Label.NO_OP, "no_change"),
        (Label.MALFORMED_ANSWER, "sed_failed"), (Label.CHECK_FAILED, "checks"),
    ],
)  # fmt: skip
def test_each_outcome_has_its_own_words(label: Label, key: str) -> None:
    decision = Decision(RULES[label] or Status.CRASH, label, reason="Because.")
    assert told(decision, **{key: "MINE {reason}"}) == "MINE Because."
    assert "Because." in told(decision)


@given(st.text(max_size=60), st.text(max_size=60))
def test_braces_in_a_models_text_are_only_text(hypothesis: str, reason: str) -> None:
    e = experiment(decision=replace(KEPT, reason=reason or "x"))
    e = replace(e, proposal=Proposal({}, hypothesis, "random"))
    t = task(feedback={"success": "<{hypothesis}|{reason}>"})
    assert feedback(t, e).endswith(f"<{hypothesis}|{reason or 'x'}>")


@given(st.text(alphabet="{}:.+,fgex_value0!r", max_size=40))
def test_no_template_makes_the_filler_raise(template: str) -> None:
    fill(template, {"value": 1.5, "x": "text", "e": None})


number = st.floats(-1e6, 1e6)


def total(label: Label = Label.NONE, improvement: float | None = 0.0, **more: float) -> float:
    return reward(label, improvement, 1.0, 100.0, **more).total


def test_it_is_the_papers_formula_within_its_bounds() -> None:
    """r = −Δbpb + λ_eff·η, with Δbpb in units of σ."""
    found = reward(Label.NONE, 0.990 - 0.987, 0.001, 0.990, saved=0.25)
    assert found.total == pytest.approx(-(0.987 - 0.990) / 0.001 + 0.2 * 0.25)
    assert found.formula == FORMULA


def test_thrift_is_no_reward_for_a_program_that_got_worse() -> None:
    assert total(Label.NO_GAIN, -0.5, saved=1.0) == -0.5
    assert total(improvement=1.0, saved=1.0) == pytest.approx(1.2)
    assert total(improvement=1.0, saved=-1.0) == pytest.approx(0.8)


def test_no_outcome_pays_better_than_an_honest_failure() -> None:
    """Else a policy would learn to crash, to repeat itself or to cheat."""
    honest = total(Label.NO_GAIN, -1e9)
    for label, status in RULES.items():
        if status in (Status.CRASH, Status.CHECKS_FAILED):
            assert total(label, 1e9) < honest, label
    rewarded = [label for label, status in RULES.items() if status is not None and label != "stale_parent"]
    worst = min(total(label, 0.0) for label in rewarded)
    assert worst == total(Label.METRIC_TAMPERING) == total(Label.NOT_CAUSAL)
    assert total(Label.DUPLICATE, None) < 0 and total(Label.NO_OP, None) < 0


@pytest.mark.parametrize("label", [Label.STALE_PARENT, Label.INTERRUPTED, Label.HOST_LOST, Label.DISK_FULL])
def test_what_the_proposal_cannot_help_is_not_rewarded_at_all(label: Label) -> None:
    assert reward(label, 1.0, 1.0, 1.0) is None


def test_an_aborted_run_is_rewarded_by_its_forecast() -> None:
    found = reward(Label.ABORTED_EARLY, -0.5, 1.0, 1.0)
    assert found is not None and found.total == -0.5
    assert reward(Label.ABORTED_EARLY, None, 1.0, 1.0) is None


@pytest.mark.parametrize("sigma", [0.0, None])
def test_a_metric_without_noise_is_measured_in_shares_of_its_value(sigma: float | None) -> None:
    assert reward(Label.NONE, 0.0002, sigma, 1.0).total == pytest.approx(2.0)
    assert reward(Label.NONE, 0.5, sigma, 0.0).total == 0.5


@pytest.mark.parametrize("label", [Label.GATE_MISS, Label.SIZE_BLOCKED, Label.CONSTRAINT])
def test_what_is_refused_without_a_value_is_no_neutral_outcome(label: Label) -> None:
    """A version that misses the gate with each program would never be told from one that does nothing."""
    found = reward(label, None, 1.0, 1.0)
    assert found is not None and found.total == -1.0


@given(st.sampled_from(list(Label)), number, st.none() | st.floats(0, 1e3), number, st.floats(-9, 9), st.floats(0, 1))
def test_every_reward_is_bounded_and_the_sum_of_its_parts(
    label: Label, improvement: float, sigma: float | None, reference: float, saved: float, distance: float
) -> None:
    found = reward(label, improvement, sigma, reference, saved=saved, distance=distance)
    if found is not None:
        assert -5.0 <= found.total <= 5.3 + 1e-9
        assert found.total == pytest.approx(sum(found.parts.values()))


def test_a_diff_is_as_new_as_its_distance_to_the_nearest_one() -> None:
    old = "--- a/train.py\n+++ b/train.py\n@@ -1,2 +1,2 @@\n context\n-LR = 0.1\n+LR = 0.2\n"
    other, near = "-def f():\n-    pass\n", old.replace("0.2", "0.3")
    assert novelty(near, [other, old]) == novelty(near, [old]) < 0.1 < novelty(near, [other])
    assert novelty(old, []) == 1.0
