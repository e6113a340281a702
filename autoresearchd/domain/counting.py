"""Numbers of things in words, and which figures are numbers of things."""

from __future__ import annotations

_MOST_DIGITS = 1e9
"""From here on an integer is read by its size, not by its digits."""


def counted(number: int, one: str, several: str = "") -> str:
    """``1 line``, ``2 lines``, ``1,000 lines``; several: where that is not the one with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def is_whole(value: float) -> bool:
    """Whether a figure is an integer to be shown as one: `3`, where `3.000000` would claim six known decimals."""
    return abs(value) < _MOST_DIGITS and float(value).is_integer()
