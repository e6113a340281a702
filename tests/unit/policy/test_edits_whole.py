"""Whole files of a model: taken where they are the file, refused where they are a part of it or leave code out."""

from __future__ import annotations

import json

import pytest

from tests.unit.policy.edit_answers import NEW, edit, refusal


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
