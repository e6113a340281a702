"""What comments say to the search: a range, choices; and that a wrong one is told with its line."""

from __future__ import annotations

import numpy as np
import pytest

from autoresearchd.policy.search.find_constants import apply, look
from autoresearchd.policy.search.parameter import Kind, Parameter, Scale
from autoresearchd.policy.search.program_constants import draw


def parameter(text: str) -> Parameter:
    (found,) = look(text).parameters
    return found


@pytest.mark.parametrize(
    ("text", "kind", "scale"),
    [
        ("LR = 0.01  # range: 1e-5..1e-1\n", Kind.FLOAT, Scale.LOG),
        ("# range: 1e-5 .. 1e-1 (more diverges)\nLR = 0.01\n", Kind.FLOAT, Scale.LOG),
        ("DEPTH = 4  # range: 2..8\n", Kind.INT, Scale.LINEAR),
        ("WIDTH = 64  # Range: 15..260\n", Kind.INT, Scale.OCTAVE),
        ("WIDTH = 64  # range: 20..100\n", Kind.INT, Scale.LOG),
        ("WIDTH = 60  # range: 7..130\n", Kind.INT, Scale.LOG),
        ("DROPOUT = 0  # range: 0..0.3\n", Kind.FLOAT, Scale.LOG1P),
        ("BETA2 = 0.95  # range: 0.855..0.9991\n", Kind.FLOAT, Scale.COMPLEMENT),
        ("SHIFT = -0.5  # range: -1..1\n", Kind.FLOAT, Scale.LINEAR),
        ("MIX_RATIO = 0.003  # range: 0.001..0.005\n", Kind.FLOAT, Scale.LOG1P),
        ("EVAL_SCALE = 3.0  # range: 2.5..3.5\n", Kind.FLOAT, Scale.LOG),
    ],
)
def test_a_range_bounds_every_value_that_is_tried_or_allowed(text: str, kind: Kind, scale: Scale) -> None:
    """A user who bounds a constant must never see a value outside."""
    found = parameter(text)
    assert (found.kind, found.range.scale) == (kind, scale)
    low, high = found.range.low, found.range.high
    random = np.random.default_rng(0)
    drawn = [draw({found.name: found}, random).get(found.name, found.value) for _ in range(200)]
    ends = found.bounds()
    stepped = [found.at(found.home + d * found.range.step) for d in (-9, -1, -0.5, 0.5, 1, 9)]
    for value in (*drawn, *stepped, found.at(ends[0]), found.at(ends[1])):
        assert isinstance(value, (int, float))
        assert low <= value <= high
        assert found.legal(value)
        assert look(apply(text, {found.name: value})).doubts == ()
    assert len(set(drawn)) > 2
    for outside in (low - 1, high + 1):
        assert not found.legal(int(outside) if kind is Kind.INT else outside)


def test_choices_of_numbers_are_read_and_written() -> None:
    found = parameter("BATCH = 32  # one of: 16, 32, 64 (more does not fit)\n")
    assert found.range.choices == (16, 32, 64)
    assert apply("BATCH = 32  # one of: 16, 32, 64\n", {"train.py:BATCH": 64}).startswith("BATCH = 64  #")
    assert not found.legal(48)
    text = "# one of: 1, 0.1\nSCALE = 0.1\n"
    assert parameter(text).range.choices == (1.0, 0.1)
    assert apply(text, {"train.py:SCALE": 1.0}) == "# one of: 1, 0.1\nSCALE = 1.0\n"


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("# range: 1..0.1", "lower end, 1, is not below the upper, 0.1"),
        ("# range: 5..5", "not below"),
        ("# range: low..high", "no range"),
        ("# range: 1e-3", "no range"),
        ("# range: 1..1e999", "finite"),
        ("# range: 0.6..0.9", "its value 0.5 is outside of the range 0.6..0.9"),
        ("# one of: small, large", "no numbers"),
        ("# one of: 1, 2", "its value 0.5 is not one of the choices (1, 2)"),
        ("# one of: 0.5", "too few"),
    ],
)
def test_a_comment_that_cannot_be_followed_is_told_with_its_line(comment: str, words: str) -> None:
    """Ignored, the search would leave the bounds that the user believes to have set."""
    for text, line in ((f"X = 1\nLR = 0.5  {comment}\n", 2), (f"X = 1\n{comment}\nLR = 0.5\n", 3)):
        (doubt,) = look(text).doubts
        assert words in doubt.what
        assert doubt.what.startswith("LR: ")
        assert doubt.line == line
        assert doubt.hint


def test_a_range_makes_a_constant_tunable_that_its_name_hides_but_never_a_seed() -> None:
    space = look(
        "EVAL_DEPTH = 4  # range: 1..8\nSEED = 3  # range: 0..9\nN = 5  # range: 3..9\n", reasons={"N": "data"}
    )
    assert [p.label for p in space.parameters] == ["EVAL_DEPTH", "N"], "a person knows the program"
    assert {left.label: left.why for left in space.left_out} == {"SEED": "its name is that of a seed"}
