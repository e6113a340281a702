"""Quantities as people write and read them: ranges (``1e-5..1e-1``), durations (``90s``, ``8h``), numbers of things."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_NUMBER = r"[+-]?(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
_BOUNDS = re.compile(rf"\s*({_NUMBER})\s*\.\.\s*({_NUMBER})(?![\w.])")


def parse_bounds(text: str) -> tuple[float, float]:
    """(lowest, highest) of ``LOW..HIGH``, whatever follows a space after it; ValueError with what is wrong."""
    bounds = _BOUNDS.match(text)
    if bounds is None:
        raise ValueError(f"{text.strip()[:60]!r} is not a range")
    return ordered(float(bounds[1]), float(bounds[2]))


def ordered(low: float, high: float) -> tuple[float, float]:
    """The two as they are; ValueError where they are no range."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("a range needs two finite numbers")
    if low >= high:
        raise ValueError(f"the lower end, {low:g}, is not below the upper, {high:g}")
    return low, high


def counted(number: int, one: str, several: str = "") -> str:
    """``1 line``, ``2 lines``, ``1,000 lines``; several: where that is not the one with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def some_of(names: Sequence[str], most: int = 5, between: str = ", ") -> str:
    """Some names in a sentence: the first of them, and how many more there are."""
    rest = len(names) - most
    return between.join(names[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def is_whole(value: float) -> bool:
    """Whether a figure is an integer to be shown as one; from a billion on it is read by its size, not its digits."""
    return abs(value) < 1e9 and float(value).is_integer()


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_WHOLE = re.compile(r"(?:(?>\d+(?:\.\d+)?)\s*+[smhd]?\s*+)+")
"""Parts without end; nothing is tried twice, as every way to split a long row of digits takes for ever."""


def parse_duration(text: str | float | int) -> float:
    """Seconds of ``90``, ``90s``, ``5m``, ``1h30m``; ValueError for anything else, for zero and for less."""
    if isinstance(text, bool):
        raise ValueError(f"not a duration: {text}")
    given = repr(str(text)[:40])
    if isinstance(text, (int, float)):
        seconds = float(text)
    else:
        cleaned = text.strip().lower()
        if cleaned.startswith("-") and _WHOLE.fullmatch(cleaned[1:]):
            raise ValueError(f"a duration must be more than zero: {given}")
        if not _WHOLE.fullmatch(cleaned):
            raise ValueError(f"not a duration: {given}")
        parts = _PART.findall(cleaned)
        if len(parts) > 1 and not all(unit for _, unit in parts):  # "3 600" are not 603 seconds
            joined = "".join(cleaned.split())
            meant = f" (did you mean {joined}?)" if len(_PART.findall(joined)) == 1 else ""
            raise ValueError(f"a duration of several parts needs a unit in each: {given}{meant}")
        seconds = sum(float(n) * _UNITS[u] for n, u in parts)
    if not 0 < seconds < 1e9:
        must = "less than 30 years" if seconds > 0 else "more than zero"
        raise ValueError(f"a duration must be {must}: {given}")
    return seconds


def format_duration(seconds: float) -> str:
    """``45s``, ``4m 10s``, ``3h 05m``: two units at most."""
    total = round(max(0.0, seconds))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    return f"{total // 3600}h {total % 3600 // 60:02d}m"
