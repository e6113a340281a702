"""What early abort saw of an experiment, as a sentence and a small chart: forecasts against the bar, look by look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autoresearchd.cli.render import Paint, clean, number

WIDTH = 36
LINES = 20
_SYMBOLS = ("─", "●", "┃")
_ASCII = ("-", "o", "|")


def look_lines(looks: Sequence[Mapping[str, Any]], paint: Paint, *, ascii_only: bool = False) -> list[str]:
    """Nothing where there was no look; else the last one in words, and all that had a forecast as a chart."""
    if not looks:
        return []
    lines = ["", f"  {paint('early abort', 'bold')}  {_verdict(looks[-1])}"]
    drawn = _spread([look for look in looks if None not in _ends(look)])
    values = [v for look in drawn for v in _ends(look) if v is not None]
    if not values:
        return lines
    low, high = min(values), max(values)
    line, dot, bar = _ASCII if ascii_only else _SYMBOLS
    scale = f"{number(low)} to {number(high)}; {bar} the bar, {line}{dot}{line} 90% of the forecast"
    lines.append(paint(f"  {'at':>5}  {'forecast':>10}  {scale}", "dim"))
    for look in drawn:
        mean, start, end, target = (_column(v, low, high) for v in _ends(look))
        cells = [line if start <= i <= end else " " for i in range(WIDTH)]
        cells[target], cells[mean] = bar, dot
        progress = look.get("progress")
        at = f"{100 * progress:.0f}%" if isinstance(progress, (int, float)) else ""
        lines.append(f"  {at:>5}  {number(look.get('forecast')):>10}  {''.join(cells)}".rstrip())
    return lines


def _verdict(last: Mapping[str, Any]) -> str:
    """Whether the run was ended or let go on, and what the look at it saw that this was decided by."""
    sentence = clean(last.get("sentence") or "", 400)
    if last.get("abort"):
        return f"ended {sentence}".rstrip()
    return f"let go on; the last look, {sentence}" if sentence else "let go on"


def _spread(looks: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """At most ``LINES`` of them, evenly chosen, the last one among them."""
    if len(looks) <= LINES:
        return looks
    return [looks[round(i * (len(looks) - 1) / (LINES - 1))] for i in range(LINES)]


def _ends(look: Mapping[str, Any]) -> tuple[float | None, ...]:
    """Forecast, its interval, and the bar; None for what is no finite number."""
    found = (look.get(name) for name in ("forecast", "low", "high", "bar"))
    return tuple(float(v) if isinstance(v, (int, float)) and math.isfinite(v) else None for v in found)


def _column(value: float | None, low: float, high: float) -> int:
    if value is None or not high > low:
        return WIDTH // 2
    return min(WIDTH - 1, int((value - low) / (high - low) * WIDTH))
