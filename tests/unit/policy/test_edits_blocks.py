"""SEARCH/REPLACE blocks of a model: applied where their text is once, refused with the reason everywhere else."""

from __future__ import annotations

import pytest

from autoresearchd.domain.labels import Label
from tests.unit.policy.edit_answers import TRAIN, TWO, block, edit, refusal


@pytest.mark.parametrize(
    "answer",
    [
        block("depth = 4", "depth = 6"),
        "I will go deeper.\n\n" + block("depth = 4", "depth = 6", "train.py"),
        "**`train.py`**:\n```python\n" + block("depth = 4", "depth = 6") + "```\n",
        "```python train.py\n" + block("depth = 4", "depth = 6") + "```\n",
        "```python\n" + block("depth = 4", "depth = 6", "./train.py") + "```\n",
        block("depth = 4", "depth = 6").replace("\n", "\r\n"),
        block("depth = 4   ", "depth = 6"),
        block("learning_rate = 3e-4\ndepth = 4\n", "learning_rate = 3e-4\ndepth = 6\n"),
        "<think>\n" + block("depth = 4", "depth = 99") + "</think>\n" + block("depth = 4", "depth = 6"),
        "maybe " + block("depth = 4", "depth = 99") + "</think>\n" + block("depth = 4", "depth = 6"),
    ],
)
def test_a_block_changes_the_one_place_where_its_text_is(answer: str) -> None:
    found = edit(answer)
    assert found.form == "search_replace"
    assert found.files == {"train.py": TRAIN.replace("depth = 4", "depth = 6")}


def test_blocks_are_all_matched_against_the_file_as_shown() -> None:
    answer = block("depth = 4", "depth = 8\nlearning_rate = 3e-4") + block(
        "learning_rate = 3e-4", "learning_rate = 1.0"
    )
    text = edit(answer).files["train.py"]
    assert text.startswith("import math\n\nlearning_rate = 1.0\ndepth = 8\nlearning_rate = 3e-4\n\n")


def test_shifted_indentation_is_put_right_in_the_replacement_too() -> None:
    less = block(
        "for step in range(1000):\n    loss = schedule(step)", "for step in range(9):\n    loss = 1\n    step += 1"
    )
    more = block(
        "        for step in range(1000):\n            loss = schedule(step)",
        "        for step in range(9):\n            loss = 1\n            step += 1",
    )
    wanted = TRAIN.replace("range(1000)", "range(9)").replace("loss = schedule(step)", "loss = 1\n        step += 1")
    assert edit(less).files["train.py"] == wanted
    assert edit(more).files["train.py"] == wanted


def test_a_shift_that_is_not_the_same_on_all_lines_is_refused() -> None:
    error = refusal(block("for step in range(1000):\nloss = schedule(step)", "pass"))
    assert error.label is Label.MALFORMED_ANSWER
    assert "not in train.py" in str(error)


def test_the_lines_around_a_change_keep_their_white_space_and_line_ends() -> None:
    code = {"train.py": "a = 1  \r\nb = 2\r\nc = 3\t\r\nd = 4"}
    assert edit(block("a = 1\nb = 2\nc = 3", "a = 1\nb = 5\nnew = 1\nc = 3"), code).files == {
        "train.py": "a = 1  \r\nb = 5\r\nnew = 1\r\nc = 3\t\r\nd = 4"
    }
    assert edit(block("d = 4", "d = 5\ne = 6"), code).files["train.py"].endswith("c = 3\t\r\nd = 5\r\ne = 6")


def test_text_that_is_there_twice_is_refused_with_both_places() -> None:
    code = {"train.py": "x = 1\ny = 2\nx = 1\n"}
    error = refusal(block("x = 1", "x = 2"), code)
    assert "block 1" in error.what
    assert "lines 1, 3" in error.what
    assert "around it" in error.mend


def test_text_that_is_not_there_is_refused_with_the_most_similar_lines() -> None:
    error = refusal(
        block("depth = 4", "depth = 6") + block("def schedul(step):\n    warm = min(step / 10, 1.0)", "pass")
    )
    assert "block 2" in error.what
    assert "    7| def schedule(step):" in error.what
    assert "    8|     warm = min(step / 100, 1.0)" in error.what


def test_a_part_of_a_line_counts_where_it_is_there_once_and_is_no_part_of_a_longer_word() -> None:
    assert edit(block("range(1000)", "range(50)")).files["train.py"] == TRAIN.replace("1000", "50")
    assert "only a part" in refusal(block("rate = 3e", "rate = 4e")).what
    assert "copy the whole line" in refusal(block("learning_rate = 3e", "learning_rate = 4e")).mend
    assert "2 places" in refusal(block("learning_rate", "lr")).what


def test_an_empty_search_is_for_an_empty_file_only() -> None:
    assert edit(block("", "x = 1"), {"train.py": ""}).files == {"train.py": "x = 1\n"}
    assert "empty SEARCH" in refusal(block("", "x = 1")).what


def test_a_file_may_hold_lines_like_the_divider() -> None:
    code = {"train.py": '"""\nTitle\n=======\nText\n"""\nx = 1\n'}
    answer = block("Title\n=======\nText", "Other\n=======\nText")
    assert edit(answer, code).files["train.py"] == '"""\nOther\n=======\nText\n"""\nx = 1\n'


def test_unfinished_blocks_are_refused() -> None:
    assert ">>>>>>> REPLACE" in refusal("<<<<<<< SEARCH\ndepth = 4\n=======\ndepth = 6\n").what
    assert "=======" in refusal("<<<<<<< SEARCH\ndepth = 4\ndepth = 6\n>>>>>>> REPLACE").what


def test_one_bad_block_spoils_the_answer_so_that_no_half_of_an_edit_is_run() -> None:
    assert "block 2" in refusal(block("depth = 4", "depth = 6") + block("nowhere = 1", "x")).what


def test_overlapping_blocks_are_refused_and_repeated_ones_count_once() -> None:
    one = block("depth = 4", "depth = 6")
    assert edit(one + one).files == edit(one).files
    assert "overlap" in refusal(one + block("learning_rate = 3e-4\ndepth = 4", "learning_rate = 1\ndepth = 5")).what


def test_with_several_files_each_block_needs_a_name_or_follows_one() -> None:
    answer = block("width = 64", "width = 96", "lib/model.py") + block("heads = 4", "heads = 6")
    answer += block("depth = 4", "depth = 6", "Now in `train.py`:")
    found = edit(answer, TWO)
    assert found.files == {
        "lib/model.py": "width = 96\nheads = 6\n",
        "train.py": TRAIN.replace("depth = 4", "depth = 6"),
    }
    assert "lib/model.py" in refusal(block("depth = 4", "depth = 6"), TWO).mend
