"""What a policy is told: the task's words with figures filled in, and no way for a model's text to be interpreted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import RULES, Label, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.evaluator.feedback import feedback, fill
from tests.unit.evaluator.builders import experiment, scoring, task

KEPT = Decision(Status.KEEP, Label.NONE, 0.9, 0.1, {"peak_vram_mb": 512.0}, reason="It is better.")


def told(decision: Decision, **templates: str) -> str:
    t = task(scoring(display_metrics=("peak_vram_mb",)), feedback=templates)
    return feedback(t, experiment(decision=decision))


def test_a_keep_is_told_with_its_figures() -> None:
    assert told(KEPT) == (
        "val_bpb = 0.9 (0.1 better) | peak_vram_mb = 512\nThis is an improvement: val_bpb is now 0.9. Build on it."
    )


def test_the_tasks_own_words_are_used() -> None:
    assert told(
        KEPT, success="{metric}={value:.3f} d={delta:+.2f} {{x}} {unknown} {0} {value!r} {value:>99999999}"
    ).endswith("val_bpb=0.900 d=+0.10 {x} {unknown} {0} {value!r} {value:>99999999}")


@pytest.mark.parametrize(
    ("label", "key"),
    [
        (Label.NO_GAIN, "failure"),
        (Label.OOM, "crash"),
        (Label.DUPLICATE, "duplicate"),
        (Label.NO_OP, "no_change"),
        (Label.MALFORMED_ANSWER, "sed_failed"),
        (Label.CHECK_FAILED, "checks"),
    ],
)
def test_each_outcome_has_its_own_words(label: Label, key: str) -> None:
    decision = Decision(RULES[label].status or Status.CRASH, label, reason="Because.")
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
