"""Answers of a model as edits: each form is applied exactly, and what cannot be used is refused with the reason."""

from __future__ import annotations

import json

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.policy.edits.read_answer import FORMS
from tests.unit.policy.edit_answers import CODE, DIFF, NEW, TRAIN, TWO, block, edit, operations, refusal

DEEPER = block("depth = 4", "depth = 6")


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        *(
            ("search_replace", answer)
            for answer in (
                DEEPER,
                "I will go deeper.\n\n" + block("depth = 4", "depth = 6", "train.py"),
                f"**`train.py`**:\n```python\n{DEEPER}```\n",
                "```python\n" + block("depth = 4", "depth = 6", "./train.py") + "```\n",
                DEEPER.replace("\n", "\r\n"),
                block("depth = 4   ", "depth = 6"),
                DEEPER + DEEPER,
                "<think>\n" + block("depth = 4", "depth = 99") + "</think>\n" + DEEPER,
                "maybe " + block("depth = 4", "depth = 99") + "</think>\n" + DEEPER,
                json.dumps({"search_replace": [{"file": "train.py", "search": "depth = 4", "replace": "depth = 6"}]}),
                json.dumps({"edits": [{"search": "depth = 4", "replace": "depth = 6"}]}),
                '{"search_replace": [{"search": "depth = 4\n", "replace": "depth = 6\n"}]}',
            )
        ),
        *(
            ("diff", answer)
            for answer in (
                DIFF,
                f"Deeper.\n\n{DIFF}\nThat is all:\n\n- one\n- two\n",
                f"```\ndiff --git a/train.py b/train.py\nindex 123..456 100644\n{DIFF}```\n",
                DIFF.replace("@@ -2,4 +2,4 @@", "@@ -200,40 +2,1 @@ def x():"),
                DIFF.replace("@@ -2,4 +2,4 @@", "@@ ... @@"),
                DIFF.replace("@@ -2,4 +2,4 @@\n", ""),
                DIFF.replace("\n \n", "\n\n"),
                DIFF.replace("a/train.py", "train.py.orig\t2026-01-01 00:00:00"),
                "```diff\n-depth = 4\n+depth = 6\n```",
                "@@ -4 +4 @@\n-depth = 4\n+depth = 6\n",
                json.dumps({"diff": DIFF, "description": "deeper"}),
                json.dumps({"diff": f"```diff\n{DIFF}```"}),
                DIFF.replace("\n", "\r\n"),
            )
        ),
        *(
            ("whole", answer)
            for answer in (
                f"```python train.py\n{NEW}```",
                f"```python:train.py\n{NEW}```",
                f'```python title="train.py"\n{NEW}```',
                f"Here it is.\n\n### `train.py`\n\n```python\n{NEW}```\n",
                # Shell commands beside an edit may name any file.
                f"Run it with\n```bash\n# prepare.py\npython prepare.py\n```\nThe file:\n```python\n{NEW}```\n",
                f"~~~python\n{NEW}~~~",
                json.dumps({"files": {"train.py": NEW}}),
                "```json\n" + json.dumps({"files": {"./train.py": NEW}, "description": "x"}) + "\n```",
            )
        ),
    ],
)
def test_an_edit_is_read_in_whatever_dress_it_comes(form: str, answer: str) -> None:
    found = edit(answer)
    assert (found.form, found.files) == (form, {"train.py": NEW})


def test_the_examples_in_the_instructions_can_be_read() -> None:
    lines = [f"line_{n} = {n}" for n in range(1, 41)]
    lines[2], lines[11] = "learning_rate = 3e-4", "depth = 4"
    found = edit(FORMS, {"train.py": "\n".join(lines)})
    assert found.form == "lines"
    assert "depth = 6\n" in found.files["train.py"]
    assert found.words["expected_delta"] == 0.01


# ---------------------------------------------------------------------- what the answer says of itself
def test_the_words_are_bounded_and_cleaned() -> None:
    said = {
        "hypothesis": "a\x1b[31m" + "x" * 5000,
        "description": "deeper\nand wider",
        "expected_delta": "+0.02 bits",
        "confidence": 0.7,
        "cost_usd": 0.0,
    }
    words = edit(f"{DEEPER}\n```json\n{json.dumps(said)}\n```\n").words
    assert (len(words["hypothesis"]), "\x1b" in words["hypothesis"]) == (2000, False)
    assert {key: words[key] for key in words if key != "hypothesis"} == {
        "description": "deeper and wider",
        "expected_delta": 0.02,
        "confidence": 0.7,
    }


def test_words_on_lines_of_their_own_are_read_where_there_is_no_object() -> None:
    answer = "**Hypothesis:** deeper learns more\n- Description: depth 6\nExpected delta: -0.5e-2\n\n"
    assert edit(answer + DEEPER).words == {
        "hypothesis": "deeper learns more",
        "description": "depth 6",
        "expected_delta": -0.005,
    }


@pytest.mark.parametrize("value", ["NaN", "1e999", '"5%"', '"much"', "true", "null"])
def test_an_expected_delta_that_is_no_number_is_left_out(value: str) -> None:
    assert edit(f'{{"description": "d", "expected_delta": {value}}}\n{DEEPER}').words == {"description": "d"}


# ---------------------------------------------------------------------- refused
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("", "empty"),
        ("I am sorry, but I cannot help with that.", "no change"),
        ("<think>\nLet me see", "still thinking"),
        ('{"edits": {"line": 4}}', "list"),
        ('{"edits": [{"op": "delete", "line": 4]}', "line 1, column 38"),
        ('{"diff": "just words"}', "hunk"),
        ('{"files": {"train.py": 7}}', "not a text"),
        (json.dumps({"diff": DIFF, "files": {"train.py": NEW}}), "2 forms"),
        ("<<<<<<< SEARCH\ndepth = 4\n=======\ndepth = 6\n", ">>>>>>> REPLACE"),
        ("<<<<<<< SEARCH\ndepth = 4\ndepth = 6\n>>>>>>> REPLACE", "======="),
        (block("", "x = 1"), "empty SEARCH"),
        (block("for step in range(1000):\nloss = schedule(step)", "pass"), "not in train.py"),
        (DEEPER + block("nowhere = 1", "x"), "block 2"),
        (DEEPER + block("learning_rate = 3e-4\ndepth = 4", "learning_rate = 1\ndepth = 5"), "overlap"),
        (block("rate = 3e", "rate = 4e"), "only a part"),
        (block("learning_rate", "lr"), "2 places"),
        (DIFF.replace("depth = 4", "depth = 5"), "| depth = 4"),
        ("--- train.py\n+++ train.py\n@@ -4 +4,2 @@\n+depth = 6\n", "place"),
        (DIFF + "def schedule(step):\n-    warm = min(step / 100, 1.0)\n+    warm = 1.0\n", "belongs to no hunk"),
        (f"```diff\n{DIFF}def schedule(step):\n-    warm = 1\n+    warm = 1.0\n```", "belongs to no hunk"),
        ("Change the depth:\n```python\ndepth = 6\n```", "1 line) is not the whole of train.py (18 lines)"),
        (f"```python train.py\n{NEW}", "has no end"),
        *(
            (operations(item), told)
            for item, told in (
                ({"op": "replace", "line": 5, "expect": "depth = 4", "text": "depth = 6"}, "at line 4"),
                ({"op": "replace", "line": 400, "text": "x"}, "18 lines"),
                ({"op": "replace", "line": 0, "text": "x"}, "from 1 to 18"),
                ({"op": "replace", "line": 4, "end": 3, "text": "x"}, "no lines 4 to 3"),
                ({"op": "replace", "line": True, "text": "x"}, "not a line number"),
                ({"op": "replace", "line": 10**400, "text": "x"}, "line number"),
                ({"op": "replace", "line": 4}, '"text"'),
                ({"op": "erase", "line": 4}, "insert, delete"),
                ({"op": "insert", "line": 4, "end": 5, "text": "x"}, 'no "end"'),
                ({"op": "delete", "line": 4, "expect": 7}, "not a text"),
            )
        ),
        (
            operations({"op": "replace", "line": 3, "end": 5, "text": "x"}, {"op": "delete", "line": 5, "end": 6}),
            "edit 1 and edit 2 overlap in line 5",
        ),
    ],
)
def test_an_answer_that_cannot_be_used_says_why(answer: str, told: str) -> None:
    error = refusal(answer)
    assert error.label is Label.MALFORMED_ANSWER
    assert told in str(error)


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


def test_text_that_is_not_there_is_refused_with_the_most_similar_lines() -> None:
    error = refusal(block("def schedul(step):\n    warm = min(step / 10, 1.0)", "pass"))
    assert "    7| def schedule(step):" in error.what
    assert "    8|     warm = min(step / 100, 1.0)" in error.what


# ---------------------------------------------------------------------- where a change goes


def test_line_operations_count_in_the_lines_of_the_file_as_shown() -> None:
    answer = operations(
        {"file": "train.py", "op": "insert", "line": 0, "text": "import os"},
        {"op": "replace", "line": 3, "end": 4, "expect": "learning_rate = 3e-4", "text": "lr = 1\n"},
        {"op": "delete", "line": "17"},
        {"op": "insert", "line": 17, "expect": "", "text": "main(2)"},
    )
    wanted = "import os\n" + TRAIN.replace("learning_rate = 3e-4\ndepth = 4\n", "lr = 1\n")
    text = edit(answer).files["train.py"]
    assert text.split("\n")[:4] == wanted.split("\n")[:4]
    assert text.endswith("print(loss)\n\nmain(2)\nmain()\n")


@pytest.mark.parametrize("by", ["", "        "])
def test_shifted_indentation_is_put_right_in_the_replacement_too(by: str) -> None:
    old, new = ("for step in range(1000):\n    loss = schedule(step)", "for step in range(9):\n    loss = 1\n    s = 1")
    shifted = block(*("\n".join(by + line for line in text.split("\n")) for text in (old, new)))
    wanted = TRAIN.replace("range(1000)", "range(9)").replace("loss = schedule(step)", "loss = 1\n        s = 1")
    assert edit(shifted).files["train.py"] == wanted


def test_the_lines_around_a_change_keep_their_white_space_and_line_ends() -> None:
    code = {"train.py": "a = 1  \r\nb = 2\r\nc = 3\t\r\nd = 4"}
    assert edit(block("a = 1\nb = 2\nc = 3", "a = 1\nb = 5\nnew = 1\nc = 3"), code).files == {
        "train.py": "a = 1  \r\nb = 5\r\nnew = 1\r\nc = 3\t\r\nd = 4"
    }
    assert edit(block("d = 4", "d = 5\ne = 6"), code).files["train.py"].endswith("c = 3\t\r\nd = 5\r\ne = 6")
    crlf = {"train.py": TRAIN.replace("\n", "\r\n")}
    assert edit(DIFF, crlf).files["train.py"] == NEW.replace("\n", "\r\n")


def test_text_that_is_there_twice_is_refused_with_both_places_unless_a_hunk_names_one() -> None:
    code = {"train.py": "x = 1\ny = 2\nx = 1\ny = 2\n"}
    error = refusal(block("x = 1", "x = 2"), code)
    assert "block 1" in error.what
    assert "lines 1, 3" in error.what
    diff = "--- train.py\n+++ train.py\n@@ -{0},2 +{0},2 @@\n x = 1\n-y = 2\n+y = 3\n"
    assert edit(diff.format(3), code).files["train.py"] == "x = 1\ny = 2\nx = 1\ny = 3\n"
    assert edit(diff.format(1), code).files["train.py"] == "x = 1\ny = 3\nx = 1\ny = 2\n"
    assert "lines 1, 3" in refusal(diff.format(2), code).what


def test_an_answer_may_change_several_files() -> None:
    blocks = block("width = 64", "width = 96", "lib/model.py") + block("heads = 4", "heads = 6")
    blocks += block("depth = 4", "depth = 6", "Now in `train.py`:")
    assert edit(blocks, TWO).files == {"lib/model.py": "width = 96\nheads = 6\n", "train.py": NEW}
    diff = DIFF + "--- a/lib/model.py\n+++ b/lib/model.py\n@@ -1,2 +1,2 @@\n width = 64\n-heads = 4\n+heads = 8\n"
    assert edit(diff, TWO).files == {"train.py": NEW, "lib/model.py": "width = 64\nheads = 8\n"}
    assert "lib/model.py" in refusal(block("depth = 4", "depth = 6"), TWO).hint


# ---------------------------------------------------------------------- whole files


@pytest.mark.parametrize(
    "line",
    [
        "# ... rest unchanged",
        "# ...",
        "# same as before",
        "// ... keep the rest",
        "[rest of the file unchanged]",
        "<!-- remaining code omitted -->",
    ],
)
def test_a_new_file_that_leaves_code_out_is_refused(line: str) -> None:
    error = refusal(f"```python train.py\nimport math\ndepth = 6\n{line}\nmain()\n```")
    assert f"leaves code out: `{line.strip()}`" in error.what


@pytest.mark.parametrize(
    "line",
    ["# keep the learning rate low", "# layers, all of the same width", "x[...] = 1", "...", "# see [1]...", "(...)"],
)
def test_an_ordinary_line_is_no_omission(line: str) -> None:
    assert line in edit(f"```python train.py\n{NEW}{line}\n```").files["train.py"]


# ---------------------------------------------------------------------- names of files
@pytest.mark.parametrize(
    "answer",
    [
        block("depth = 4", "depth = 6", "../train.py"),
        block("depth = 4", "depth = 6", "/etc/passwd"),
        block("depth = 4", "depth = 6", "trаin.py"),  # a Cyrillic letter
        json.dumps({"edits": [{"file": "../train.py", "op": "delete", "line": 1}]}),
        json.dumps({"edits": [{"file": ["train.py"], "op": "delete", "line": 1}]}),
        json.dumps({"search_replace": [{"file": "TRAIN.PY", "search": "depth = 4", "replace": "depth = 6"}]}),
        json.dumps({"files": {"/etc/passwd": "root"}}),
        "--- a/evaluate.py\n+++ b/evaluate.py\n@@ -1 +1 @@\n-x\n+y\n",
        "--- /dev/null\n+++ b/train.py\n@@ -0,0 +1 @@\n+y\n",
        "--- a/train.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-import math\n",
        "--- a/train.py\n+++ b/other.py\n@@ -1 +1 @@\n-import math\n+import os\n",
        "--- a/other.py\n+++ b/train.py\n@@ -1 +1 @@\n-import math\n+import os\n",
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
    assert error.hint


@pytest.mark.parametrize(
    "name",
    ["TRAIN.PY", ".git/config", ".git\\config", ".env", "evaluate.py", "lib/train.py", "~/train.py", "C:\\train.py",
     "/work/train.py", "checkpoint.pt", "Makefile"],
)  # fmt: skip
def test_what_is_titled_with_another_files_name_is_not_applied_to_the_only_file(name: str) -> None:
    for shape in ("{}", "### `{}`", "**{}**:", "1. {}", "File: `{}`", "In `{}`:", "Changes to {} below:"):
        error = refusal(block("depth = 4", "depth = 6", shape.format(name)))
        assert error.label is Label.ILLEGAL_EDIT
        assert f"SEARCH/REPLACE block 1: {name} is not one of the files that may be edited" in error.what
        assert "edit only train.py" in error.hint
    for shape in ("{0}\n```python\n{1}```", "```python {0}\n{1}```", "```python\n# {0}\n{1}```"):
        assert refusal(shape.format(name, NEW)).label is Label.ILLEGAL_EDIT


@pytest.mark.parametrize(
    "name", ["train.py", "././train.py", ".//train.py", "lib/../train.py", ".\\train.py", "a/train.py"]
)
def test_any_spelling_that_leads_to_the_file_is_its_name(name: str) -> None:
    for shape in ("{}", "## `{}`", "File: {}", "In `{}`:"):
        assert edit(block("depth = 4", "depth = 6", shape.format(name))).files == {"train.py": NEW}


@pytest.mark.parametrize(
    "line",
    [
        "Deeper, then:",
        "## Model/optimiser",
        "and/or",
        "3/4",
        "optimizer.step()",
        "This mirrors what evaluate.py and prepare.py do when they load the model from its checkpoint:",
    ],
)
def test_prose_above_a_block_names_no_file(line: str) -> None:
    assert edit(block("depth = 4", "depth = 6", line)).files == {"train.py": NEW}
    assert edit(f"evaluate.py stays as it is.\n\n{DIFF}", CODE).files == {"train.py": NEW}
