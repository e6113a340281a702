"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """``1 line``, ``2 lines``, ``1,000 lines``; several: where that is not the one with an s."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
