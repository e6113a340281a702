"""The range of a number as people write it: ``1e-5..1e-1``."""

from __future__ import annotations

import math
import re

_NUMBER = r"[+-]?(?:\d[\d_]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?"
BOUNDS = re.compile(rf"\s*(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})(?![\w.])")
"""Two numbers with two dots between them."""


def parse_bounds(text: str) -> tuple[float, float]:
    """(lowest, highest) of ``LOW..HIGH``, whatever follows a space after it; ValueError with what is wrong."""
    found = BOUNDS.match(text)
    if found is None:
        raise ValueError(f"{text.strip()[:60]!r} is no range")
    return ordered(float(found["low"]), float(found["high"]))


def ordered(low: float, high: float) -> tuple[float, float]:
    """The two as they are; ValueError where they are no range."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError("a range needs two finite numbers")
    if low >= high:
        raise ValueError(f"the lower end, {low:g}, is not below the upper, {high:g}")
    return low, high
