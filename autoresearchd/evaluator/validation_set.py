"""Whether runs were measured on the same validation set, as far as the sizes tell that programs print of it.

A program that computes its own score can be edited so that it measures on other data, and the numbers then say nothing
about each other. Only whole numbers under names that clearly are of the evaluation set count: ``n_val=400``,
``validation rows: 120``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from autoresearchd.domain.experiment import Run
from autoresearchd.evaluator.text import as_lines

_PARTS = frozenset({"val", "valid", "validation", "test", "eval", "evaluation", "holdout", "heldout"})
_AMOUNTS = frozenset(
    {"n", "num", "number", "size", "count", "len", "length", "rows", "samples", "examples", "points", "items"}
    | {"images", "sequences", "documents"}
)
_FILLERS = frozenset({"of", "the", "set", "split", "data", "dataset", "total"})
_NOT_A_PART = frozenset({"valid"})
"""Rows may be valid without being of a validation set: with such a word alone, only ``n_valid`` and its like count."""
_SIZED = re.compile(
    r"(?<![\w.])([A-Za-z][A-Za-z_ \-]{1,48})[ \t]{0,8}[:=][ \t]{0,8}"
    r"(\d{1,3}(?:[,_]\d{3}){1,4}|\d{1,15})(?![\w%]|[.,]\d)"
)
_ABOUT = re.compile(r"val|test|eval|h[eo]ld", re.IGNORECASE)
_MOST_LINE = 500
_HALF = 2**18


def sizes(log: str) -> dict[str, float]:
    """Sizes of the evaluation set that a log tells, by name; the last value of a name counts."""
    text = as_lines(log if len(log) <= 2 * _HALF else f"{log[:_HALF]}\n{log[-_HALF:]}")
    found: dict[str, float] = {}
    for line in text.split("\n"):
        if len(line) <= _MOST_LINE and _ABOUT.search(line):
            for match in _SIZED.finditer(line):
                name = _size_name(match[1])
                if name:
                    found[name] = float(match[2].replace(",", "").replace("_", ""))
    return found


def other_set(runs: Sequence[Run], baseline: Sequence[Run]) -> str:
    """Why runs cannot be compared with the baseline's; empty where nothing speaks against it.

    A size that differs between the baseline's own runs (a split by chance) says nothing.
    """
    for name, value in _agreed(baseline):
        other = next((r.metrics[name] for r in runs if r.metrics.get(name, value) != value), None)
        if other is not None:
            return f"but it was measured on another validation set: {name} {other:g}, the baseline's {value:g}"
    return ""


def _agreed(runs: Sequence[Run]) -> Iterator[tuple[str, float]]:
    """Sizes that every run tells alike."""
    first: Mapping[str, float] = runs[0].metrics if runs else {}
    for name, value in first.items():
        if _size_name(name) and value == int(value) and all(r.metrics.get(name) == value for r in runs):
            yield name, value


def _size_name(text: str) -> str:
    """The name of a size of the evaluation set at the end of a text; empty where there is none."""
    words = [word for word in re.split(r"[_\s\-]+", text.strip().lower()) if word]
    own: list[str] = []
    while words and words[-1] in _PARTS | _AMOUNTS | _FILLERS:
        own.insert(0, words.pop())
    parts, amounts = _PARTS & set(own), _AMOUNTS & set(own)
    if parts == _NOT_A_PART and not amounts & {"n", "num", "number", "size"}:
        return ""
    return "_".join(own) if parts and amounts else ""
