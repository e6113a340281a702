"""What a model says of its edit, which of several forms counts, and what it is told where there is no change."""

from __future__ import annotations

import json

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.policy.edits.parse import FORMS
from tests.unit.policy.edit_answers import DIFF, NEW, TRAIN, block, edit, operations, refusal


def test_the_words_are_bounded_and_cleaned() -> None:
    said = {
        "hypothesis": "a\x1b[31m" + "x" * 5000,
        "description": "deeper\nand wider",
        "expected_delta": "+0.02 bits",
        "confidence": 0.7,
        "cost_usd": 0.0,
    }
    words = edit(f"{block('depth = 4', 'depth = 6')}\n```json\n{json.dumps(said)}\n```\n").words
    assert len(words["hypothesis"]) == 2000
    assert "\x1b" not in words["hypothesis"]
    assert words["description"] == "deeper and wider"
    assert words["expected_delta"] == 0.02
    assert words["confidence"] == 0.7
    assert "cost_usd" not in words


def test_words_on_lines_of_their_own_are_read_where_there_is_no_object() -> None:
    answer = "**Hypothesis:** deeper learns more\n- Description: depth 6\nExpected delta: -0.5e-2\n\n"
    assert edit(answer + block("depth = 4", "depth = 6")).words == {
        "hypothesis": "deeper learns more",
        "description": "depth 6",
        "expected_delta": -0.005,
    }


@pytest.mark.parametrize("value", ["NaN", "1e999", '"5%"', '"much"', "true", "null"])
def test_an_expected_delta_that_is_no_number_is_left_out(value: str) -> None:
    answer = f'{{"description": "d", "expected_delta": {value}}}\n' + block("depth = 4", "depth = 6")
    assert edit(answer).words == {"description": "d"}


def test_of_several_forms_the_first_in_order_counts() -> None:
    whole = f"```python train.py\n{TRAIN.replace('depth = 4', 'depth = 9')}```\n"
    lines = operations({"op": "replace", "line": 4, "text": "depth = 7"})
    blocks = block("depth = 4", "depth = 8")
    assert edit(whole + DIFF + blocks + lines).form == "lines"
    assert edit(whole + DIFF + blocks).form == "search_replace"
    assert edit(whole + DIFF).form == "diff"
    assert edit(whole).form == "whole"


def test_search_and_replace_may_be_given_as_json() -> None:
    pairs = [{"file": "train.py", "search": "depth = 4", "replace": "depth = 6"}]
    for key in ("search_replace", "edits"):
        found = edit(json.dumps({key: pairs}))
        assert (found.form, found.files) == ("search_replace", {"train.py": NEW})


def test_an_object_with_line_feeds_in_its_texts_is_read_all_the_same() -> None:
    assert edit('{"search_replace": [{"search": "depth = 4\n", "replace": "depth = 6\n"}]}').files == {"train.py": NEW}


def test_broken_json_is_refused_with_the_place() -> None:
    error = refusal('{"edits": [{"op": "delete", "line": 4]}')
    assert "line 1, column 38" in error.what


def test_two_forms_in_one_object_are_refused() -> None:
    assert "2 forms" in refusal(json.dumps({"diff": DIFF, "files": {"train.py": NEW}})).what


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("", "empty"),
        ("I am sorry, but I cannot help with that.", "no change"),
        ("<think>\nLet me see", "still thinking"),
        ('{"edits": {"line": 4}}', "list"),
        ('{"diff": "just words"}', "hunk"),
        ('{"files": {"train.py": 7}}', "no text"),
    ],
)
def test_an_answer_without_a_change_says_so(answer: str, told: str) -> None:
    error = refusal(answer)
    assert error.label is Label.MALFORMED_ANSWER
    assert told in str(error)
    assert error.mend


@pytest.mark.parametrize(
    "answer",
    [
        block("depth = 4", "depth = 4"),
        f"```python train.py\n{TRAIN}```",
        '{"edits": []}',
        operations({"op": "replace", "line": 4, "text": "depth = 4"}),
    ],
)
def test_an_edit_that_changes_nothing_is_a_no_op(answer: str) -> None:
    assert refusal(answer).label is Label.NO_OP


def test_the_examples_in_the_instructions_can_be_read() -> None:
    code = {"train.py": "".join(f"line_{n} = {n}\n" for n in range(1, 41))}
    lines = code["train.py"].split("\n")
    lines[2], lines[11] = "learning_rate = 3e-4", "depth = 4"
    code = {"train.py": "\n".join(lines)}
    found = edit(FORMS, code)
    assert found.form == "lines"
    assert "depth = 6\n" in found.files["train.py"]
    assert found.words["expected_delta"] == 0.01
