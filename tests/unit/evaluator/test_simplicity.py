"""Simpler means fewer nodes in the syntax tree, not fewer lines, comments or letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.evaluator.simplicity import is_simpler, size

PROGRAM = 'def f(x):\n    """Documented."""\n    y = x + 1\n    return y\n'


def simpler(new: str, old: str = PROGRAM, path: str = "train.py") -> bool:
    return is_simpler({path: new}, {path: old})


def test_less_code_is_simpler_and_more_is_not() -> None:
    shorter = "def f(x):\n    return x + 1\n"
    assert simpler(shorter) and not simpler(PROGRAM, shorter)


@pytest.mark.parametrize(
    "new",
    [
        PROGRAM,
        PROGRAM.replace('    """Documented."""\n', ""),
        PROGRAM.replace("x", "a"),
        PROGRAM + "# a comment\n",
        PROGRAM.replace("x + 1", "x + 2"),
        f"exec({PROGRAM!r})\n",
        "def f(:\n",
    ],
)
def test_comments_names_constants_and_tricks_do_not_count(new: str) -> None:
    assert not simpler(new)


def test_code_hidden_in_a_long_string_counts_by_its_length() -> None:
    hidden, plain = size(f"exec({PROGRAM * 20!r})"), size("exec('')")
    assert hidden is not None and plain is not None and hidden.weight > plain.weight + 100
    assert not simpler(f"exec({PROGRAM!r})\n"), "fewer nodes, and all of the code"


def test_a_shorter_constant_is_another_value_and_no_simplification() -> None:
    assert not simpler('WINDOWS = "L"\n', 'WINDOWS = "SSSL"\n')
    assert not simpler("RATE = 1.0\n", "RATE = 0.125\n")
    assert not simpler("SIZES = (1, 2)\n", "SIZES = (3, 4)\n")


def test_files_that_are_no_python_are_never_called_simpler() -> None:
    assert not simpler("a: 1\n", "a: 1\nb: 2\n", "config.yaml")
    assert not is_simpler({}, {})
    assert is_simpler({"a.py": "x = 1\n", "b.yaml": "c"}, {"a.py": "x = 1\ny = 2\n", "b.yaml": "c"})


@given(st.text(max_size=200))
def test_any_text_is_counted_or_not_but_never_an_error(text: str) -> None:
    found = size(text)
    assert found is None or 1 <= found.nodes <= found.weight
