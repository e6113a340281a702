"""Unified diffs of a model: whatever their numbers say, a hunk goes where its lines are, or nowhere."""

from __future__ import annotations

import json

import pytest

from tests.unit.policy.edit_answers import DIFF, TRAIN, TWO, edit, refusal


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
