"""Line operations of a model: they count in the file as it was shown, and a wrong number is noticed."""

from __future__ import annotations

import pytest

from tests.unit.policy.edit_answers import TRAIN, edit, operations, refusal


def test_line_operations_count_in_the_lines_of_the_file_as_shown() -> None:
    answer = operations(
        {"file": "train.py", "op": "insert", "line": 0, "text": "import os"},
        {"op": "replace", "line": 3, "end": 4, "expect": "learning_rate = 3e-4", "text": "lr = 1\n"},
        {"op": "delete", "line": "17"},
        {"op": "insert", "line": 17, "expect": "", "text": "main(2)"},
    )
    found = edit(answer)
    assert found.form == "lines"
    assert found.words == {"hypothesis": "deeper is better"}
    wanted = "import os\n" + TRAIN.replace("learning_rate = 3e-4\ndepth = 4\n", "lr = 1\n")
    assert found.files["train.py"].split("\n")[:4] == wanted.split("\n")[:4]
    assert found.files["train.py"].endswith("print(loss)\n\nmain(2)\nmain()\n")


def test_a_wrong_line_number_is_noticed_by_the_text_that_was_expected_there() -> None:
    error = refusal(operations({"op": "replace", "line": 5, "expect": "depth = 4", "text": "depth = 6"}))
    assert "line 5 of train.py is ``" in error.what
    assert "at line 4" in error.what


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"op": "replace", "line": 400, "text": "x"}, "18 lines"),
        ({"op": "replace", "line": 0, "text": "x"}, "from 1 to 18"),
        ({"op": "replace", "line": 4, "end": 3, "text": "x"}, "no lines 4 to 3"),
        ({"op": "replace", "line": True, "text": "x"}, "no line number"),
        ({"op": "replace", "line": 10**400, "text": "x"}, "line number"),
        ({"op": "replace", "line": 4}, '"text"'),
        ({"op": "erase", "line": 4}, "insert, delete"),
        ({"op": "insert", "line": 4, "end": 5, "text": "x"}, 'no "end"'),
        ({"op": "delete", "line": 4, "expect": 7}, "no text"),
        ({"file": ["train.py"], "op": "delete", "line": 4}, "train.py"),
    ],
)
def test_an_operation_that_cannot_be_done_says_why(item: dict[str, object], told: str) -> None:
    assert told in str(refusal(operations(item)))


def test_overlapping_operations_are_refused() -> None:
    error = refusal(
        operations({"op": "replace", "line": 3, "end": 5, "text": "x"}, {"op": "delete", "line": 5, "end": 6})
    )
    assert "edit 1 and edit 2 overlap in line 5" in error.what
