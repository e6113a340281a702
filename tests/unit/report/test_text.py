"""Text of models and jobs must not steer the terminal that it is shown in."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.report.plain_text import clean, json_text, strip_controls


@pytest.mark.parametrize(
    ("hostile", "plain"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("\x1bPdevice\x1b\\text", "text"),
        ("a\rb\nc\td", "a b c d"),
        ("\u202egnirts", "gnirts"),
        ("bell\x07 back\x08space", "bell backspace"),
        ("half \x1b[3", "half"),
        ("größer → 大", "größer → 大"),
    ],
)
def test_escapes_are_taken_out_and_words_stay(hostile: str, plain: str) -> None:
    assert clean(hostile) == plain


@given(st.text())
def test_nothing_that_is_left_can_steer_a_terminal(text: str) -> None:
    for line in (clean(text), strip_controls(text)):
        assert not [c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != "\t"]


@given(st.text())
def test_json_is_the_same_value_and_safe_to_print(text: str) -> None:
    printed = json_text({"text": text})
    assert json.loads(printed) == {"text": text}
    assert not [c for c in printed if unicodedata.category(c) in ("Cc", "Cs")]
