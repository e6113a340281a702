"""Two pictures of a few marks: how a test went, and what was made of a program. Their colours are those of charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from markupsafe import Markup

from autoresearchd.report.plain_text import clean

_MARKS = {  # around a point, as charts.py draws them
    "discard": ("h0", "grey dot"), "abort": ("m0-4v8", "abort mark"), "crash": ("m-3-3l6 6m0-6l-6 6", "fail mark"),
    "check": ("m-3 3h6l-3-6z", "illegal mark"), "running": ("m-3 0h6", "tip mark"),
}  # fmt: skip
_MOST = 240


def test_path(path: Sequence[float], name: str, words: str) -> Markup:
    """The mean gain after each pair of runs of a confirmation; above the line of zero: better."""
    width, height, left, right = 260.0, 64.0, 10.0, 250.0
    most = max([abs(value) for value in path] or [0.0]) or 1.0
    xs = [left + (right - left) * (i + 0.5) / max(1, len(path)) for i in range(len(path))]
    ys = [height / 2 - value / most * (height / 2 - 8) for value in path]
    zero = f'<path class="base thin" d="M{left} {height / 2}H{right}"/>'
    line = "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(xs, ys, strict=True))
    dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in zip(xs, ys, strict=True))
    drawn = f'<path class="tip thin" d="M{line}"/><path class="tip dot" d="{dots}"/>' if path else ""
    return _svg(name, width, height, words, zero + drawn)


def strip(marks: Iterable[str], name: str, words: str) -> Markup:
    """What was tried on a program, in its order, one mark each; of very many the newest."""
    shown = list(marks)[-_MOST:]
    wide = 60
    parts = []
    for kind, (shape, classes) in _MARKS.items():
        at = "".join(
            f"M{6 + 9 * (i % wide)} {7 + 13 * (i // wide)}{shape}" for i, mark in enumerate(shown) if mark == kind
        )
        parts.append(f'<path class="{classes}" d="{at}"/>' if at else "")
    columns, rows = min(len(shown), wide), -(-len(shown) // wide)
    return _svg(name, 9.0 * max(1, columns) + 4, 13.0 * max(1, rows) + 1, words, "".join(parts))


def _svg(name: str, width: float, height: float, words: str, parts: str) -> Markup:
    head = (
        f'<svg class="chart small" role="img" width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    )
    return Markup(f'{head} aria-labelledby="{name}"><title id="{name}">{escape(clean(words))}</title>{parts}</svg>')  # noqa: S704
