"""Answers of a model as edits: each form is applied exactly, and what cannot be used is refused with the reason."""

from __future__ import annotations

import difflib
import json
import re

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from autoresearchd.domain.labels import Label
from autoresearchd.policy.edits.answer_parts import Edit, EditError
from autoresearchd.policy.edits.read_answer import FORMS, read_answer
from tests.timing import seconds

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


def operations(*items: dict[str, object]) -> str:
    return json.dumps({"hypothesis": "deeper is better", "edits": items})


DIFF = "--- a/train.py\n+++ b/train.py\n@@ -2,4 +2,4 @@\n \n learning_rate = 3e-4\n-depth = 4\n+depth = 6\n \n"
NEW = TRAIN.replace("depth = 4", "depth = 6")
DEEPER = block("depth = 4", "depth = 6")


DRESSES = {
    "search_replace": (
        DEEPER,
        "I will go deeper.\n\n" + block("depth = 4", "depth = 6", "train.py"),
        f"**`train.py`**:\n```python\n{DEEPER}```\n",
        "```python\n" + block("depth = 4", "depth = 6", "./train.py") + "```\n",
        DEEPER.replace("\n", "\r\n"),
        block("depth = 4   ", "depth = 6"),
        DEEPER + DEEPER,
        "<think>\n" + block("depth = 4", "depth = 99") + "</think>\n" + DEEPER,
        "maybe " + block("depth = 4", "depth = 99") + "</think>\n" + DEEPER,
        json.dumps({"edits": [{"file": "train.py", "search": "depth = 4", "replace": "depth = 6"}]}),
        json.dumps({"edits": [{"search": "depth = 4", "replace": "depth = 6"}]}),
        '{"edits": [{"search": "depth = 4\n", "replace": "depth = 6\n"}]}',
    ),
    "diff": (
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
        DIFF.replace("\n", "\r\n"),
    ),
    "whole": (
        f"```python train.py\n{NEW}```",
        f"```python:train.py\n{NEW}```",
        f'```python title="train.py"\n{NEW}```',
        f"Here it is.\n\n### `train.py`\n\n```python\n{NEW}```\n",
        # Shell commands beside an edit may name any file.
        f"Run it with\n```bash\n# prepare.py\npython prepare.py\n```\nThe file:\n```python\n{NEW}```\n",
        f"~~~python\n{NEW}~~~",
    ),
}


@pytest.mark.parametrize(("form", "answer"), [(form, answer) for form in DRESSES for answer in DRESSES[form]])
def test_an_edit_is_read_in_whatever_dress_it_comes(form: str, answer: str) -> None:
    found = edit(answer)
    assert (found.form, found.files) == (form, {"train.py": NEW})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (DIFF.join(("```diff\n", "")).removesuffix(" \n"), "no end"),
        (
            operations({"search": "depth = 4", "replace": "depth = 6"})
            + "\n"
            + operations({"search": "depth = 4", "replace": "depth = 7"}),
            "several JSON objects",
        ),
    ],
)
def test_half_of_what_a_model_meant_is_never_run(answer: str, words: str) -> None:
    assert words in refusal(answer).what


def test_a_text_file_with_fences_of_its_own_is_not_cut_at_the_first() -> None:
    old = "Solve it.\n\n```python\nx = 1\n```\n\nThink first.\n"
    new = old.replace("first", "twice")
    found = refusal(f"```markdown prompt.md\n{new}```\n", {"prompt.md": old})
    assert "backticks" in found.what and "four" in found.hint
    for text in (new, "Solve it without code, and think twice before you answer.\n"):
        for mark in ("````", "~~~"):
            assert edit(f"{mark}markdown prompt.md\n{text}{mark}\n", {"prompt.md": old}).files == {"prompt.md": text}


def test_tags_of_thoughts_in_edited_code_end_no_thought() -> None:
    """Prompts and chat templates of the programs have them: what stands before would be lost without a word."""
    code = {"train.py": 'PROMPT = """\n    think\n    </reasoning>\n"""\ndepth = 4\n'}
    answer = block("    think\n    </reasoning>", "    think twice\n    </reasoning>") + block("depth = 4", "depth = 6")
    assert edit(answer, code).files["train.py"] == code["train.py"].replace("think", "think twice").replace("4", "6")


def test_a_git_diff_of_a_file_with_a_space_in_its_name_is_read() -> None:
    answer = "diff --git a/my model.py b/my model.py\n" + DIFF.replace("train.py", "my model.py")
    found = edit(answer, {"my model.py": TRAIN})
    assert found.files == {"my model.py": NEW}


def test_the_examples_in_the_instructions_can_be_read() -> None:
    lines = [f"line_{n} = {n}" for n in range(1, 41)]
    lines[2], lines[11] = "learning_rate = 3e-4", "depth = 4"
    found = edit(FORMS, {"train.py": "\n".join(lines)})
    after = [*lines[:11], "depth = 6", *lines[12:20], "warmup = 100", *lines[20:30], *lines[33:]]
    assert (found.form, found.files["train.py"].split("\n")) == ("lines", after)
    assert found.words["expected_delta"] == 0.01


# ---------------------------------------------------------------------- what the answer says of itself
def test_the_words_are_bounded_and_cleaned() -> None:
    said = {"hypothesis": "a\x1b[31m" + "x" * 5000, "description": "deeper\nand wider"}
    said |= {"expected_delta": "+0.02 bits", "confidence": 0.7, "cost_usd": 0.0}
    words = edit(f"{DEEPER}\n```json\n{json.dumps(said)}\n```\n").words
    assert (len(words["hypothesis"]), "\x1b" in words["hypothesis"]) == (2000, False)
    others = {"description": "deeper and wider", "expected_delta": 0.02, "confidence": 0.7}
    assert {key: words[key] for key in words if key != "hypothesis"} == others


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
        ("<<<<<<< SEARCH\ndepth = 4\n=======\ndepth = 6\n", ">>>>>>> REPLACE"),
        ("<<<<<<< SEARCH\ndepth = 4\ndepth = 6\n>>>>>>> REPLACE", "======="),
        (block("", "x = 1"), "empty SEARCH"),
        (block("for step in range(1000):\nloss = schedule(step)", "pass"), "not in train.py"),
        (DEEPER + block("nowhere = 1", "x"), "block 2"),
        (DEEPER + block("learning_rate = 3e-4\ndepth = 4", "learning_rate = 1\ndepth = 5"), "overlap"),
        (block("rate = 3e", "rate = 4e"), "not in train.py; line 3 is most like it"),
        (block("learning_rate", "lr"), "not in train.py"),
        ("<<<<<<< SEARCH\na\n=======\nb\n=======\nc\n>>>>>>> REPLACE", "2 ======= lines"),
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
    assert error.label is Label.MALFORMED_ANSWER and told in str(error)


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
    assert "    7| def schedule(step):" in error.what and "    8|     warm = min(step / 100, 1.0)" in error.what


# ---------------------------------------------------------------------- where a change goes
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


def test_a_part_of_a_line_that_is_there_once_is_enough() -> None:
    code = {"train.py": "LR = 0.1  # of Adam\nLRS = 0.1\n"}
    assert edit(block("LR = 0.1", "LR = 0.2"), code).files["train.py"] == "LR = 0.2  # of Adam\nLRS = 0.1\n"


def test_text_that_is_there_twice_is_refused_with_both_places_unless_a_hunk_names_one() -> None:
    code = {"train.py": "x = 1\ny = 2\nx = 1\ny = 2\n"}
    error = refusal(block("x = 1", "x = 2"), code)
    assert "block 1" in error.what and "lines 1, 3" in error.what
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
OMISSIONS = """\
# ... rest unchanged
# ...
# same as before
// ... keep the rest
[rest of the file unchanged]
<!-- remaining code omitted -->"""


@pytest.mark.parametrize("line", OMISSIONS.split("\n"))
def test_a_new_file_that_leaves_code_out_is_refused(line: str) -> None:
    error = refusal(f"```python train.py\nimport math\ndepth = 6\n{line}\nmain()\n```")
    assert f"leaves code out: `{line}`" in error.what


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
        json.dumps({"edits": [{"file": "TRAIN.PY", "search": "depth = 4", "replace": "depth = 6"}]}),
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
     "/srv/train.py", "checkpoint.pt", "Makefile"],
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


PROSE = """\
Deeper, then:
## Model/optimiser
and/or
3/4
optimizer.step()
This mirrors what evaluate.py and prepare.py do when they load the model from its checkpoint:"""


@pytest.mark.parametrize("line", PROSE.split("\n"))
def test_prose_above_a_block_names_no_file(line: str) -> None:
    assert edit(block("depth = 4", "depth = 6", line)).files == {"train.py": NEW}
    assert edit(f"evaluate.py stays as it is.\n\n{DIFF}", CODE).files == {"train.py": NEW}


# ---------------------------------------------------------------------- edits properties
FILE = "train.py"
ODD = ["", "a", "b", "    a", "x = 1 ", "-", "+", "--- a", "-- a", "++ b", "@@ -1 +1 @@", "```", "{", " ", "\u2028"]
LINE = st.sampled_from(ODD) | st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\0.…"), max_size=12
)
END = st.sampled_from(["\n", "\r\n"])
TEXT = st.lists(LINE, max_size=12)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two texts, the second mostly made from the first."""
    old = draw(TEXT)
    if draw(st.booleans()):
        lines = draw(TEXT)
    else:
        lines = list(old)
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(lines)))
            lines[at : at + draw(st.integers(0, 2))] = draw(st.lists(LINE, max_size=2))
    return "".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in lines)


def pieces(text: str) -> list[str]:
    """Lines with their line feeds; no other character ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def unified(old: str, new: str, context: int) -> str:
    return "".join(difflib.unified_diff(pieces(old), pieces(new), f"a/{FILE}", f"b/{FILE}", n=context))


@settings(max_examples=150, deadline=None)
@given(pairs(), st.integers(1, 3))
@example(("", "a\n"), 1)
@example(("-- a\n++ b\n", "a\n"), 1)
def test_a_diff_of_two_texts_makes_the_second_of_the_first(pair: tuple[str, str], context: int) -> None:
    old, new = pair
    assume(old != new)
    diff = unified(old, new, context)
    for answer in (diff, f"Why not.\n\n```diff\n{diff}```\nDone.\n"):
        found = read_answer(answer, {FILE: old})
        assert (found.form, found.files) == ("diff", {FILE: new})


def rendered(lines: list[str], end: str, final: bool) -> str:
    return end.join(lines) + (end if final else "") if lines else ""


@settings(max_examples=150, deadline=None)
@given(st.lists(LINE, min_size=1, max_size=12), st.data(), st.lists(LINE, max_size=4), END, st.booleans())
def test_a_search_that_is_there_once_is_replaced_whatever_the_texts(
    lines: list[str], data: st.DataObject, new: list[str], end: str, final: bool
) -> None:
    start = data.draw(st.integers(0, len(lines) - 1))
    stop = data.draw(st.integers(start + 1, len(lines)))
    search = lines[start:stop]
    assume(final or lines[-1])
    assume(any(line.strip() for line in search))
    assume(not any("think" in line or "reason" in line for line in (*lines, *new)))  # such a section is dropped whole
    assume(sum(lines[i : i + len(search)] == search for i in range(len(lines))) == 1)
    after = lines[:start] + new + lines[stop:]
    old, wanted = rendered(lines, end, final), rendered(after, end, final)
    assume(old != wanted and (end in old or end == "\n"))  # a single open line does not tell how lines end
    block = "".join(f"{line}\n" for line in ["<<<<<<< SEARCH", *search, "=======", *new, ">>>>>>> REPLACE"])
    pair = {"search": "".join(f"{line}\n" for line in search), "replace": "".join(f"{line}\n" for line in new)}
    for answer in (block, f"{FILE}\n```python\n{block}```\n", json.dumps({"edits": [pair]})):
        assert read_answer(answer, {FILE: old}).files == {FILE: wanted}


SOUP = st.lists(
    st.sampled_from(
        [
            *["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```", "```python", "```diff", "```json", "~~~"],
            *["--- a/train.py", "+++ b/train.py", "@@ -1,2 +1,2 @@", "@@", " import x", "-import x", "+import y"],
            *["diff --git a/train.py b/train.py", "--- /dev/null", "rename from x", "<think>", "</think>", "x = 1"],
            *['{"edits": [', '{"line": 1, "op": "delete"}', "]}", '"}', '{"edits": [{"search": "'],
            *['{"hypothesis": "\\ud800"}', "Hypothesis: x", "/etc/passwd", "lib.py", "\r", "\0", "\ud800", "# ..."],
            *["train.py", "\\ No", "", " ", "{"],
            *['{"edits": [{"op": "insert", "line": 0, "text": "\\ud800"}]}'],
        ]
    )
    | st.text(max_size=8),
    max_size=14,
)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 9)
    | st.floats()
    | st.sampled_from(["replace", FILE, "x = 1", "@@", "\0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "line", "end", "file", "text", "expect", "search", "replace"]), inner)
    ),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.sampled_from(["edits", "hypothesis", FILE]), JSON).map(json.dumps)


@settings(max_examples=300, deadline=None)
@example("```\ud800.py")
@given(SOUP.map("\n".join) | SOUP.map("".join) | st.text(st.characters(), max_size=200) | OBJECT)
def test_no_text_makes_the_reader_fail_or_touch_another_file(answer: str) -> None:
    for code in ({"train.py": "import x\nx = 1\n"}, {"train.py": "", "lib.py": "x = 1"}, {}):
        try:
            found = read_answer(answer, code)
        except EditError as error:
            assert error.what
            str(error).encode()
        else:
            assert found.files
            assert found.files.keys() <= code.keys()
            for text in found.files.values():
                assert "\0" not in text
                text.encode()
            json.dumps(dict(found.words), allow_nan=False)


# ---------------------------------------------------------------------- edits hostile
LIMIT = 2 * 1024 * 1024
PROGRAM = "".join(f"def function_{n}(x):\n    y = x + {n}\n    z = y * y\n    return z\n" for n in range(250))
LONG = {"train.py": PROGRAM}


def filled(unit: str) -> str:
    return unit * (LIMIT // len(unit))


HOSTILE = {
    **{repr(unit): filled(unit) for unit in ("<", "{", "@@", "`", "@@ -1 +1 @@ ", "<think></think>", "--- ", "\t")},
    **{repr(unit): filled(unit)[: 10 * 99_000] for unit in ("{        \n", '{"a":[1, \n', "```      \n")},
    "nested objects": filled('{"a":' * 3 + "\n"),
    "search markers": "<<<<<<< SEARCH\n" * 99_000,
    "hunk headers": "--- train.py\n+++ train.py\n" + "@@ -1,9 +1,9 @@\n" * 99_000,
    "one hunk": "--- train.py\n+++ train.py\n@@ -1,90000 +1,90000 @@\n" + "+\n" * 99_000,
    "spaces in a name": "--- train.py" + " " * 2_000_000 + "x\n+++ train.py\n@@ -1 +1 @@\n-x\n+y\n",
    "spaces after a marker": "<<<<<<< SEARCH" + " " * 2_000_000 + "\nx\n=======\ny\n>>>>>>> REPLACE",
    "comments of dots": "```python train.py\n"
    + ("# ......... . ... . ......... x ...... . . ..y" * 3 + "\n") * 7_000
    + "# ... rest unchanged\n```",
    "thoughts without end": "<think>\n" * 99_000,
    "many operations": json.dumps({"edits": [{"op": "delete", "line": 1}] * 60_000}),
    "a deep program": "```python\n" + "(" * 5000 + "\n```",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_refused_within_a_second(name: str) -> None:
    answer = HOSTILE[name]
    assert len(answer) <= LIMIT
    assert seconds(lambda: refusal(answer, LONG)) < 1.0


def test_an_answer_over_the_bound_is_refused_at_once() -> None:
    for answer in ("x" * (LIMIT + 1), "é" * (LIMIT // 2 + 1), "\n" * 100_000):
        with pytest.raises(EditError, match=r"larger than 2048 KiB|more than 100000 lines"):
            read_answer(answer, LONG)
