"""Refuse a program that brings what it should learn: weights as text or numbers in its source. Protected.

The data are the same in every run, so whoever can train beforehand could write the result into the program and train
for no time at all. A program that learns needs few literals, and short ones.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PROGRAM = Path("train.py")
MOST_BYTES = 16_000
MOST_NUMBERS = 400
LONGEST_LITERAL = 240
LONGEST_NAME = 40
MOST_TEXT = 5_000


def fault(source: str) -> str:
    """What is wrong with a program; empty when nothing is."""
    if len(source.encode()) > MOST_BYTES:
        return f"it has more than {MOST_BYTES} bytes"
    nodes = list(ast.walk(ast.parse(source)))
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    texts = [value for value in values if isinstance(value, str | bytes)]
    numbers = [value for value in values if isinstance(value, int | float | complex) and not isinstance(value, bool)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    names += [node.attr for node in nodes if isinstance(node, ast.Attribute)]
    if any(len(text) > LONGEST_LITERAL for text in texts) or sum(map(len, texts)) > MOST_TEXT:
        return f"it has a text of more than {LONGEST_LITERAL} characters, or more than {MOST_TEXT} in all"
    if len(numbers) > MOST_NUMBERS or any(isinstance(n, int) and abs(n) >= 2**64 for n in numbers):
        return f"it has more than {MOST_NUMBERS} numbers, or a very large one"
    if any(len(name) > LONGEST_NAME for name in names):
        return f"it has a name of more than {LONGEST_NAME} characters"
    return ""


def main() -> int:
    """Say what is wrong with the program."""
    found = fault(PROGRAM.read_text(encoding="utf-8"))
    if found:
        print(f"FAIL: {PROGRAM} may hold no trained weights: {found}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
