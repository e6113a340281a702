"""What a program has left as its answer, read without trusting it. Protected; it runs no edited code."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST = 100_000
"""Bytes of an answer."""


class Wrong(Exception):
    """Why an answer has no score."""


def read() -> Any:
    """The answer as JSON has it. The file is opened once, and no link is followed."""
    path = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "answer.json"
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Wrong(f"answer.json cannot be opened: {error.strerror}") from None
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST:
            raise Wrong(f"answer.json is no file of at most {MOST:,} bytes")
        text = file.read(MOST)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Wrong(f"answer.json is no JSON: {error}") from None


def numbers(answer: Any, key: str, count: int, width: int) -> list[list[float]]:
    """``count`` lists of ``width`` finite numbers, under the answer's only key."""
    rows = answer[key] if isinstance(answer, dict) and set(answer) == {key} else None
    if not isinstance(rows, list) or len(rows) != count:
        raise Wrong(f'the answer has to be {{"{key}": a list of {count}}}')
    found = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != width or not all(type(x) in (int, float) for x in row):
            raise Wrong(f"{key}[{number}] is no list of {width} numbers")
        # Beyond that size nothing is feasible; whole numbers may be too large for a float.
        if not all(-1e6 <= x <= 1e6 for x in row):
            raise Wrong(f"{key}[{number}] has a number that is not finite, or huge")
        found.append([float(x) for x in row])
    return found


def run(value: Callable[[Any], float]) -> int:
    """Print the score of the answer, or why there is none; the exit code of the evaluation."""
    try:
        found = value(read())
        if not math.isfinite(found):
            raise Wrong("the score is not finite")
    except Wrong as wrong:
        print(f"FAIL: {str(wrong)[:300]}")
        return 1
    print(f"score: {found:.12g}")
    return 0
