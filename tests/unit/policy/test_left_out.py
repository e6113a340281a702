"""That what is not tuned is told, with the reason."""

from __future__ import annotations

from autoresearchd.policy.space import find, look


def test_a_constant_with_a_reason_against_it_is_left_alone_and_listed() -> None:
    """Without it the search would turn what makes the data, and show the easier data as an improvement."""
    text = "N = 400\nSIZES = (3, 4)\nLR = 0.1\n\ndef f(p):\n    return AdamW(p, lr=0.5, weight_decay=0.1)\n"
    reasons = {"N": "makes the data", "SIZES": "makes the data", "AdamW.lr": "why not"}
    space = look(text, reasons=reasons)
    assert [p.label for p in space.parameters] == ["LR", "AdamW.weight_decay#1"]
    assert [(left.label, left.source, left.why) for left in space.left_out] == [
        ("N", "400", "makes the data"),
        ("SIZES[0]", "3", "makes the data"),
        ("SIZES[1]", "4", "makes the data"),
        ("AdamW.lr#1", "0.5", "why not"),
    ]
    assert find(text, reasons=reasons) == space.parameters


def test_everything_that_is_left_alone_is_listed_with_its_reason() -> None:
    """A user who misses a constant sees why, and can mend it."""
    text = """
SEED = 1
DATA_DIR = "x"
EVAL_STEPS = 5
HEADS = 4  # fixed
WIDTH = HEADS * 16
LR = float(os.environ.get("LR", "0.1"))
MODE = "fast"
IGNORE = -1
BETAS = (  # fixed
    0.9, 0.99)
model = build()
loss = a + b
DEPTH = 4
"""
    space = look(text)
    assert [p.label for p in space.parameters] == ["DEPTH"]
    assert {left.label: left.why for left in space.left_out} == {
        "SEED": "its name is that of a seed",
        "DATA_DIR": "its name: path, address or name",
        "EVAL_STEPS": "its name: what is measured",
        "HEADS": "fixed by a comment",
        "WIDTH": "derived: computed from other values",
        "LR": "read from the environment",
        "MODE": "no other value is known: a comment can list them (# one of: a, b)",
        "IGNORE": "below zero: it may stand for all or none",
        "BETAS[0]": "fixed by a comment",
        "BETAS[1]": "fixed by a comment",
    }


def test_a_range_that_a_person_has_written_is_stronger_than_the_look_at_the_data() -> None:
    """The look may be wrong, and its author knows the program."""
    text = "N = 400  # range: 100..800\nFEATURES = 60\n"
    space = look(text, reasons={"N": "makes the data", "FEATURES": "makes the data"})
    assert [p.label for p in space.parameters] == ["N"]
    assert [left.label for left in space.left_out] == ["FEATURES"]
