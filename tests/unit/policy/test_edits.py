"""What a model may write as an edit, and what it is told where that cannot be used."""

from __future__ import annotations

import json

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.policy.edits.parse import FORMS, Edit, EditError, read_answer

TRAIN = """\
import math

learning_rate = 3e-4
depth = 4


def schedule(step):
    warm = min(step / 100, 1.0)
    return learning_rate * warm


def main():
    for step in range(1000):
        loss = schedule(step)
        print(loss)


main()
"""
CODE = {"train.py": TRAIN}
TWO = {"train.py": TRAIN, "lib/model.py": "width = 64\nheads = 4\n"}


def block(search: str, replace: str, name: str = "") -> str:
    above = f"{name}\n" if name else ""
    return f"{above}<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def edit(text: str, code: dict[str, str] = CODE) -> Edit:
    return read_answer(text, code)


def refusal(text: str, code: dict[str, str] = CODE) -> EditError:
    with pytest.raises(EditError) as caught:
        read_answer(text, code)
    return caught.value


# ---------------------------------------------------------------------- SEARCH/REPLACE
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


# ---------------------------------------------------------------------- other files
@pytest.mark.parametrize(
    "answer",
    [
        block("depth = 4", "depth = 6", "../train.py"),
        block("depth = 4", "depth = 6", "/etc/passwd"),
        block("depth = 4", "depth = 6", "File: `evaluate.py`"),
        block("depth = 4", "depth = 6", "trаin.py"),  # a Cyrillic letter
        json.dumps({"edits": [{"file": "../train.py", "op": "delete", "line": 1}]}),
        json.dumps({"search_replace": [{"file": "TRAIN.PY", "search": "depth = 4", "replace": "depth = 6"}]}),
        json.dumps({"files": {"/etc/passwd": "root"}}),
        "--- a/evaluate.py\n+++ b/evaluate.py\n@@ -1 +1 @@\n-x\n+y\n",
        "--- /dev/null\n+++ b/train.py\n@@ -0,0 +1 @@\n+y\n",
        "--- a/train.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-import math\n",
        "--- a/train.py\n+++ b/other.py\n@@ -1 +1 @@\n-import math\n+import os\n",
        "```diff\ndiff --git a/train.py b/train.py\nold mode 100644\nnew mode 100755\n```",
        "diff --git a/train.py b/lib.py\nrename from train.py\nrename to lib.py\n",
        "diff --git a/train.py b/train.py\nBinary files a/train.py and b/train.py differ\n",
        "```python evaluate.py\nprint(1)\n```",
        "../../train.py\n```python\n" + TRAIN + "```",
    ],
)
def test_another_file_than_the_editable_ones_is_an_illegal_edit(answer: str) -> None:
    error = refusal(answer)
    assert error.label is Label.ILLEGAL_EDIT
    assert error.mend


def test_the_error_for_another_file_names_the_right_ones() -> None:
    assert "train.py, lib/model.py" in refusal(block("a", "b", "model.py"), TWO).mend


# ---------------------------------------------------------------------- line operations
def operations(*items: dict[str, object]) -> str:
    return json.dumps({"hypothesis": "deeper is better", "edits": items})


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


# ---------------------------------------------------------------------- unified diff
DIFF = "\n".join(
    [
        "--- a/train.py",
        "+++ b/train.py",
        "@@ -2,4 +2,4 @@",
        " ",
        " learning_rate = 3e-4",
        "-depth = 4",
        "+depth = 6",
        " ",
        "",
    ]
)


@pytest.mark.parametrize(
    "answer",
    [
        DIFF,
        f"Deeper.\n\n{DIFF}\nThat is all:\n\n- one\n- two\n",
        f"```diff\n{DIFF}```\n",
        f"```\ndiff --git a/train.py b/train.py\nindex 123..456 100644\n{DIFF}```\n",
        DIFF.replace("@@ -2,4 +2,4 @@", "@@ -200,40 +2,1 @@ def x():"),
        DIFF.replace("@@ -2,4 +2,4 @@", "@@ ... @@"),
        DIFF.replace("@@ -2,4 +2,4 @@\n", ""),
        DIFF.replace("\n \n", "\n\n"),
        DIFF.replace("a/", "").replace("b/", ""),
        DIFF.replace("a/train.py", "train.py.orig\t2026-01-01 00:00:00"),
        DIFF.replace("a/train.py", "before").replace("b/train.py", "after"),
        "```diff\n-depth = 4\n+depth = 6\n```",
        "@@ -4 +4 @@\n-depth = 4\n+depth = 6\n",
        json.dumps({"diff": DIFF, "description": "deeper"}),
        json.dumps({"diff": f"```diff\n{DIFF}```"}),
        DIFF.replace("\n", "\r\n"),
    ],
)
def test_a_diff_applies_whatever_its_numbers_say(answer: str) -> None:
    found = edit(answer)
    assert found.form == "diff"
    assert found.files == {"train.py": TRAIN.replace("depth = 4", "depth = 6")}


def test_a_hunk_that_fits_twice_goes_to_the_stated_line_or_nowhere() -> None:
    code = {"train.py": "x = 1\ny = 2\nx = 1\ny = 2\n"}
    diff = "--- train.py\n+++ train.py\n@@ -{0},2 +{0},2 @@\n x = 1\n-y = 2\n+y = 3\n"
    assert edit(diff.format(3), code).files["train.py"] == "x = 1\ny = 2\nx = 1\ny = 3\n"
    assert edit(diff.format(1), code).files["train.py"] == "x = 1\ny = 3\nx = 1\ny = 2\n"
    assert "lines 1, 3" in refusal(diff.format(2), code).what


def test_a_hunk_that_fits_nowhere_shows_the_most_similar_lines() -> None:
    error = refusal(DIFF.replace("depth = 4", "depth = 5"))
    assert "hunk 1" in error.what
    assert "| depth = 4" in error.what


def test_new_lines_without_a_place_are_refused() -> None:
    assert "place" in refusal("--- train.py\n+++ train.py\n@@ -4 +4,2 @@\n+depth = 6\n").what


def test_a_line_without_its_sign_spoils_the_diff_so_that_no_half_of_it_is_applied() -> None:
    broken = DIFF + "def schedule(step):\n-    warm = min(step / 100, 1.0)\n+    warm = 1.0\n"
    for answer in (broken, f"```diff\n{broken}```"):
        assert "belongs to no hunk" in refusal(answer).what


def test_a_diff_of_lines_with_line_feeds_keeps_the_line_ends_of_the_file() -> None:
    code = {"train.py": TRAIN.replace("\n", "\r\n")}
    assert edit(DIFF, code).files["train.py"] == TRAIN.replace("depth = 4", "depth = 6").replace("\n", "\r\n")


def test_a_diff_changes_several_files() -> None:
    answer = DIFF + "--- a/lib/model.py\n+++ b/lib/model.py\n@@ -1,2 +1,2 @@\n width = 64\n-heads = 4\n+heads = 8\n"
    assert edit(answer, TWO).files == {
        "train.py": TRAIN.replace("depth = 4", "depth = 6"),
        "lib/model.py": "width = 64\nheads = 8\n",
    }


# ---------------------------------------------------------------------- whole file
NEW = TRAIN.replace("depth = 4", "depth = 6")


@pytest.mark.parametrize(
    "answer",
    [
        f"```python train.py\n{NEW}```",
        f"```python:train.py\n{NEW}```",
        f'```python title="train.py"\n{NEW}```',
        f"Here it is.\n\n### `train.py`\n\n```python\n{NEW}```\n",
        f"Run it with\n```bash\npython train.py\n```\nThe file:\n```python\n{NEW}```\n",
        f"~~~python\n{NEW}~~~",
        json.dumps({"files": {"train.py": NEW}}),
        "```json\n" + json.dumps({"files": {"./train.py": NEW}, "description": "x"}) + "\n```",
    ],
)
def test_a_whole_file_replaces_the_old_one(answer: str) -> None:
    found = edit(answer)
    assert found.form == "whole"
    assert found.files == {"train.py": NEW}


def test_a_fragment_is_not_taken_for_the_whole_file() -> None:
    error = refusal("Change the depth:\n```python\ndepth = 6\n```")
    assert "1 line) is not the whole of train.py (18 lines)" in error.what
    assert "SEARCH/REPLACE" in error.mend


def test_a_much_shorter_program_with_the_same_definitions_is_the_whole_file() -> None:
    code = {"train.py": "x = 1\n" + "# long talk\n" * 50 + "def f():\n    return 1\n"}
    assert edit("```python\nx = 2\n\ndef f():\n    return 2\n```", code).form == "whole"


@pytest.mark.parametrize(
    "line",
    [
        "# ... rest unchanged",
        "# ... (existing code) ...",
        "# Rest of the training loop remains the same",
        "# ...",
        "    # the rest of the code",
        "# (unchanged)",
        "# same as before",
        "# existing imports...",
        "// ... keep the rest",
        "[rest of the file unchanged]",
        "<!-- remaining code omitted -->",
    ],
)
def test_a_new_file_that_leaves_code_out_is_refused(line: str) -> None:
    error = refusal(f"```python train.py\nimport math\ndepth = 6\n{line}\nmain()\n```")
    assert "leaves code out" in error.what
    assert line.strip() in error.what


@pytest.mark.parametrize(
    "line",
    [
        "# keep the learning rate low",
        "# three layers, all of the same width",
        "x[...] = 1",
        "...",
        "# why: see [1]...",
        "(...)",
    ],
)
def test_an_ordinary_line_is_no_omission(line: str) -> None:
    assert line in edit(f"```python train.py\n{NEW}{line}\n```").files["train.py"]


def test_a_block_that_the_model_did_not_finish_is_refused() -> None:
    assert "has no end" in refusal(f"```python train.py\n{NEW}").what


# ---------------------------------------------------------------------- words and choice of form
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
