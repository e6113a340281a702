"""Durations as people write them (``90s``, ``5m``, ``8h``) and as they read them."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_WHOLE = re.compile(r"(?:(?>\d+(?:\.\d+)?)\s*+[smhd]?\s*+)+")
"""Parts without end; nothing is tried twice, as every way to split a long row of digits takes for ever."""


def parse_duration(text: str | float | int) -> float:
    """Seconds of ``90``, ``90s``, ``5m``, ``1h30m``; ValueError for anything else, for zero and for less."""
    if isinstance(text, bool):
        raise ValueError(f"not a duration: {text!r}")
    if isinstance(text, (int, float)):
        seconds = float(text)
    else:
        cleaned = text.strip().lower()
        if cleaned.startswith("-") and _WHOLE.fullmatch(cleaned[1:]):
            raise ValueError(f"a duration must be more than zero: {text!r}")
        if not _WHOLE.fullmatch(cleaned):
            raise ValueError(f"not a duration: {text!r}")
        seconds = sum(float(n) * _UNITS[u] for n, u in _PART.findall(cleaned))
    if not 0 < seconds < 1e9:
        raise ValueError(f"a duration must be more than zero: {text!r}")
    return seconds


def format_duration(seconds: float) -> str:
    """``45s``, ``4m 10s``, ``3h 05m``: two units at most."""
    total = round(max(0.0, seconds))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m {total % 60:02d}s"
    return f"{total // 3600}h {total % 3600 // 60:02d}m"
