"""Who is stuck is told so, and the longer it lasts, the further away the next idea should be."""

from __future__ import annotations

import pytest

from autoresearchd.policy.prompt.stuck import Mode, advice, mode


@pytest.mark.parametrize(
    ("streak", "expected"),
    [
        (0, Mode.NONE),
        (2, Mode.NONE),
        (3, Mode.REREAD),
        (5, Mode.REREAD),
        (6, Mode.COMBINE),
        (7, Mode.COMBINE),
        (8, Mode.RADICAL),
        (9, Mode.RADICAL),
        (10, Mode.CHANGE),
        (500, Mode.CHANGE),
    ],
)
def test_three_failures_change_the_prompt_and_ten_the_approach(streak: int, expected: Mode) -> None:
    assert mode(streak) is expected
    assert bool(advice(streak)) is (expected is not Mode.NONE)
    assert advice(streak) == "" or f"The last {streak} experiments were not kept." in advice(streak)


def test_the_advice_names_the_near_misses_and_what_was_turned_most() -> None:
    assert "MATRIX_LR, DEPTH: look elsewhere" in advice(3, near=(4,), constants=("MATRIX_LR", "DEPTH"))
    assert "Experiments 4, 9 and 2 nearly helped" in advice(6, near=(4, 9, 2))
    assert "Experiment 4 nearly helped" in advice(7, near=(4,))
    assert "None of them came near" in advice(7)
    assert "Leave MATRIX_LR alone" in advice(8, constants=("MATRIX_LR",))
    assert "further changes of MATRIX_LR" in advice(12, constants=("MATRIX_LR",))
