"""A program, and answers of a model that edit it in each of the forms; what came of reading one."""

from __future__ import annotations

import json

import pytest

from autoresearchd.policy.edits.edit import Edit, EditError
from autoresearchd.policy.edits.read_answer import read_answer

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
NEW = TRAIN.replace("depth = 4", "depth = 6")
