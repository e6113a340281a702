"""The file that an answer names: one of the editable ones in any spelling of its folders, or nothing is edited."""

from __future__ import annotations

import json

import pytest

from autoresearchd.domain.labels import Label
from tests.unit.policy.edit_answers import CODE, DIFF, NEW, TRAIN, TWO, block, edit, refusal


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


OTHER_NAMES = [
    "TRAIN.PY",
    "Train.py",
    ".git/config",
    ".git\\config",
    ".env",
    "evaluate.py",
    "lib/train.py",
    "~/train.py",
    "C:\\train.py",
    "/work/train.py",
    "checkpoint.pt",
    "Makefile",
    "Dockerfile",
]


@pytest.mark.parametrize("name", OTHER_NAMES)
@pytest.mark.parametrize("shape", ["{}", "### `{}`", "**{}**:", "1. {}", "In `{}`:", "Changes to {} below:"])
def test_a_block_titled_with_another_files_name_is_not_applied_to_the_only_file(name: str, shape: str) -> None:
    error = refusal(block("depth = 4", "depth = 6", shape.format(name)))
    assert error.label is Label.ILLEGAL_EDIT, "it goes back to the model as every answer that cannot be used"
    assert f"SEARCH/REPLACE block 1: {name} is not one of the files that may be edited" in error.what
    assert "edit only train.py" in error.mend


@pytest.mark.parametrize("name", OTHER_NAMES)
@pytest.mark.parametrize("shape", ["{0}\n```python\n{1}```", "```python {0}\n{1}```", "```python\n# {0}\n{1}```"])
def test_a_whole_file_titled_with_another_files_name_does_not_replace_the_only_one(name: str, shape: str) -> None:
    error = refusal(shape.format(name, NEW))
    assert error.label is Label.ILLEGAL_EDIT
    assert name.rpartition(":")[2] in error.what


@pytest.mark.parametrize(
    "name",
    [
        "train.py", "./train.py", "././train.py", ".//train.py", "lib/../train.py", ".\\train.py", "a/train.py",
        "b/./train.py",
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", ["{}", "## `{}`", "File: {}", "In `{}`:"])
def test_any_spelling_that_leads_to_the_file_is_its_name(name: str, shape: str) -> None:
    assert edit(block("depth = 4", "depth = 6", shape.format(name))).files == {"train.py": NEW}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Deeper, then:",
        "## Model/optimiser",
        "and/or",
        "3/4",
        "0.04",
        "optimizer.step()",
        "This mirrors what evaluate.py and prepare.py do when they load the model from its checkpoint:",
        "Change:",
    ],
)
def test_prose_above_a_block_names_no_file(line: str) -> None:
    assert edit(block("depth = 4", "depth = 6", line)).files == {"train.py": NEW}


def test_the_comment_that_a_program_begins_with_is_no_title() -> None:
    old = "# gpt.py\n" + TRAIN
    new = old.replace("depth = 4", "depth = 6")
    assert edit(f"```python\n{new}```", {"train.py": old}).files == {"train.py": new}


def test_a_name_in_other_letters_is_another_file_also_where_files_have_no_usual_ending() -> None:
    code = {"Modelfile": "depth = 4\n", "conf/recipe.nml": "lr = 1\n"}
    for name in ("modelfile", "recipe.NML", "other.nml"):
        assert name in refusal(block("depth = 4", "depth = 6", name), code).what
    assert edit(block("lr = 1", "lr = 2", "conf/recipe.nml"), code).files == {"conf/recipe.nml": "lr = 2\n"}


def test_shell_commands_beside_an_edit_may_name_any_file() -> None:
    answer = f"Run it with\n```bash\n# prepare.py\npython prepare.py\n```\nThe file:\n```python\n{NEW}```\n"
    assert edit(answer).files == {"train.py": NEW}
    assert edit(f"evaluate.py stays as it is.\n\n{DIFF}", CODE).files == {"train.py": NEW}
