"""What is longer than a run may take is left out, and what is left is no longer than that."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

pytest.importorskip("torch", reason="pip install 'autoresearchd[learn]'")

from autoresearchd.domain.labels import Label
from autoresearchd.learner.data.examples import within
from autoresearchd.learner.data.trajectories import Split, Trajectory


def answer(number: int, prompt: int, tokens: int) -> Trajectory:
    """An answer of some tokens to a prompt that has as many characters as it shall have tokens."""
    return Trajectory(
        "t", number, 0, f"{number}", f"{number}", datetime(2026, 1, 1, tzinfo=UTC), "",
        ({"role": "user", "content": "x" * prompt},), "y", (1,) * tokens, (-1.0,) * tokens, 0.0, False,
        Label.NO_GAIN, "",
    )  # fmt: skip


def characters(each: Trajectory) -> int:
    return len(each.messages[0]["content"])


PARTS = Split(
    (answer(1, 100, 20), answer(2, 300, 40), answer(3, 100, 250)), (answer(4, 120, 30), answer(5, 390, 30)), "time"
)


def test_what_is_longer_is_left_out_and_fresh_answers_are_no_longer_than_what_stays() -> None:
    found = within(PARTS, characters, most=342)
    assert [each.number for each in found.parts.train] == [1, 2]
    assert [each.number for each in found.parts.held_out] == [4]
    assert (found.left_out, found.answer) == (2, 40)
