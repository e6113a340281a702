"""What an edit says of itself: constants that a search can learn from, and words where a model gave none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.policy.answer_words import MAX_LINE, MAX_TEXT, asi_of, changes, cost_of, describe, last_object


def test_a_line_of_a_toml_file_is_not_taken_for_a_constant_of_another_table() -> None:
    """``a.toml:lr`` is nobody's name there: the search would learn from what it never tried."""
    old = {"a.toml": "[a]\nlr = 0.1\n[b]\nlr = 0.1\n"}
    new = {"a.toml": "[a]\nlr = 0.1\n[b]\nlr = 0.2\n"}
    assert changes(old, new) == {}
    assert "a.toml" in describe(old, new)


def changed(old: str, new: str) -> dict[str, object]:
    return dict(changes({"train.py": old}, {"train.py": new}))


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("LR = 0.1\n", "LR = 0.2\n", {"train.py:LR": 0.2}),
        ("LR = 0.1  # rate\n", "LR = 3e-2\n", {"train.py:LR": 0.03}),
        ("N: int = 4\n", "N: int = 2**3\n", {"train.py:N": 8}),
        ("N = -1\nM = 2\n", "N = 1\nM = 4\n", {"train.py:N": 1, "train.py:M": 4}),
        ("NAME = 'gelu'\n", 'NAME = "relu"\n', {"train.py:NAME": "relu"}),
        ("FLAG = True\n", "FLAG = False\n", {"train.py:FLAG": False}),
        ("B = (0.9, 0.95)\n", "B = (0.9, 0.99)\n", {"train.py:B[1]": 0.99}),
        ("LR = 0.1\n", "# higher\n\nLR = 0.2\n", {"train.py:LR": 0.2}),
    ],
)
def test_new_values_of_constants_are_found(old: str, new: str, found: dict[str, object]) -> None:
    assert changed(old, new) == found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LR = 0.1\n", "LR = 0.2\nx = f(LR)\n"),
        ("LR = 0.1\n", "RATE = 0.1\n"),
        ("LR = 0.1\n", "LR = schedule(0.1)\n"),
        ("LR = 0.1\nf(1)\n", "LR = 0.2\nf(2)\n"),
        ("def f():\n    lr = 0.1\n", "def f():\n    lr = 0.2\n"),
        ("LR = 0.1\nLR = 0.2\n", "LR = 0.3\nLR = 0.4\n"),
        ("B = (1, 2)\n", "B = (1, 2, 3)\n"),
        ("N = 1\n", "N = 9**9**9**9\n"),
        ("N = 1\n", "N = 1e999\n"),
        ("N = 1\n", "N = 1 / 0\n"),
        ("N = 'a'\n", "N = '\\ud800'\n"),
        ("N == 1\n", "N == 2\n"),
        ("N = 1\n", "N = 1\n"),
    ],
)
def test_an_edit_of_anything_else_is_not_taken_for_one_of_constants(old: str, new: str) -> None:
    assert changed(old, new) == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("LR = 0.1\n", "LR = 0.2  # higher\n", "Change LR 0.1 → 0.2 in train.py"),
        ("f(\n    lr=0.1,\n)\n", "f(\n    lr=0.2,\n)\n", "Change lr 0.1 → 0.2 in train.py"),
        (
            "A = 1\nB = 1\nC = 1\nD = 1\n",
            "A = 2\nB = 2\nC = 2\nD = 2\n",
            "Change A 1 → 2, B 1 → 2, C 1 → 2 and 1 more in train.py",
        ),
        ("x = 1\n", "x = 1\nx = norm(x)\n", "Change train.py: 1 line added, 0 removed, from `x = norm(x)`"),
        ("x = 1\ny = 2\n", "x = 1\n", "Change train.py: 0 lines added, 1 removed"),
    ],
)
def test_an_edit_without_words_is_put_into_plain_ones(old: str, new: str, words: str) -> None:
    assert describe({"train.py": old}, {"train.py": new}) == words


@given(st.text(), st.text())
def test_no_program_is_too_strange_to_be_described_and_stored(old: str, new: str) -> None:
    before, after = {"train.py": old}, {"train.py": new}
    words = describe(before, after)
    assert words.startswith("Change ")
    assert words.isprintable() and len(words) <= MAX_LINE
    json.dumps(changes(before, after), allow_nan=False, ensure_ascii=False).encode()


# ---------------------------------------------------------------------- answer
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_only_the_last_line_counts_and_only_as_an_object() -> None:
    assert last_object('{"a": 1}\n{"hypothesis": "deeper"}\n\n') == {"hypothesis": "deeper"}
    for text in ('{"a": 1}\nthat was it\n', "[1]\n", "", "{" * 50_000, '{"a":' * 20_000 + "1" + "}" * 20_000):
        assert last_object(text) == {}


def test_an_unnamed_price_is_unknown_and_not_zero() -> None:
    assert cost_of({}, 1.0).usd is None
    assert cost_of({"cost_usd": 0.25, "tokens_in": 10, "tokens_out": -3}, 1.0).usd == 0.25
    assert cost_of({"cost_usd": -1}, 1.0).usd is None


@given(st.dictionaries(st.text(), JSON, max_size=30))
def test_no_answer_can_make_an_asi_that_cannot_be_stored(found: dict[str, object]) -> None:
    asi = asi_of(found, "h")
    stored = json.dumps(asi.as_dict(), allow_nan=False, ensure_ascii=False).encode()
    assert len(stored) < 40 * MAX_TEXT
    assert len(asi.extra) <= 20


def test_what_the_daemon_says_of_an_experiment_cannot_be_said_by_a_policy() -> None:
    forged = {"\u200bresult": "kept", "failure": "none", "refused": "no_op", "off_surface": "x", "idea": "mine"}
    assert dict(asi_of(forged, "h").extra) == {"idea": "mine"}
