"""An answer made to be slow or huge costs no more than a second."""

from __future__ import annotations

import json

import pytest

from autoresearchd.policy.edits.read_answer import EditError, read_answer
from tests.timing import seconds

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


def refused(answer: str) -> None:
    with pytest.raises(EditError):
        read_answer(answer, LONG)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_is_refused_within_a_second(name: str) -> None:
    answer = HOSTILE[name]
    assert len(answer) <= LIMIT
    assert seconds(lambda: refused(answer)) < 1.0


def test_an_answer_over_the_bound_is_refused_at_once() -> None:
    for answer in ("x" * (LIMIT + 1), "é" * (LIMIT // 2 + 1), "\n" * 100_000):
        with pytest.raises(EditError, match=r"larger than 2048 KiB|more than 100000 lines"):
            read_answer(answer, LONG)


@pytest.mark.parametrize("text", ["x = '\\u0000'", "x = '\\ud800'"])
def test_what_is_no_text_is_refused(text: str) -> None:
    with pytest.raises(EditError, match=r"zero byte|surrogate"):
        read_answer(f'{{"edits": [{{"op": "insert", "line": 1, "text": "{text}"}}]}}', LONG)
