"""What a comment beside a constant, or on the line above it, says to the search: fixed, a range, a list of choices."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoresearchd.domain.quantities import parse_bounds

FIXED = re.compile(r"\bfixed\b|\b(?:do not|don't|never) (?:change|edit|tune|touch)\b", re.IGNORECASE)
_FIXED_ABOVE = re.compile(rf"[\s#]*(?:{FIXED.pattern})", re.IGNORECASE)  # a heading that has it in passing is none
_RANGE = re.compile(r"[\s#]*range\s*:(?P<bounds>.*)", re.IGNORECASE)
_ONE_OF = re.compile(r"[\s#]*one of\s*:(?P<listed>.*)", re.IGNORECASE)
_SPLIT = re.compile(r"[,|]")
_WRITE_RANGE = "write the lowest and the highest value: # range: 1e-5..1e-1"


@dataclass(frozen=True, slots=True)
class Said:
    """What the comments of a constant say. wrong: why that cannot be followed, and mend: what would be right."""

    fixed: bool = False
    bounds: tuple[float, float] | None = None
    listed: str = ""
    wrong: str = ""
    mend: str = ""


def read(beside: str, above: str) -> Said:
    """The meaning of the text after the literal's ``#``, and of the comment that is all of the line above."""
    if FIXED.search(beside) or fixed_above(above):
        return Said(fixed=True)
    for comment in (beside, above):
        if found := _RANGE.match(comment):
            try:
                return Said(bounds=parse_bounds(found["bounds"]))
            except ValueError as error:
                return Said(wrong=f"a comment gives a range, but {error}", mend=_WRITE_RANGE)
        if found := _ONE_OF.match(comment):
            return Said(listed=comment)
    return Said()


def fixed_above(above: str) -> bool:
    """Whether the comment on the line above keeps what follows as it is."""
    return _FIXED_ABOVE.match(above) is not None


def numbers(comment: str) -> tuple[int | float, ...] | None:
    """The numbers that ``one of: 16, 32, 64`` lists; None where something else stands there."""
    found = _ONE_OF.match(comment)
    text = re.split(r"[;(]|\.(?=\s|$)", found["listed"])[0] if found else ""
    parts = [part.strip() for part in _SPLIT.split(text)]
    try:
        return tuple(_number(part) for part in parts if part)
    except ValueError:
        return None


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
