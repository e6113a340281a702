"""Charts as inline SVG for the page and the report: no script, no style attribute, no font from elsewhere.

Colours come from the classes of ``STYLE``, dark and light: those of Okabe and Ito (https://jfly.uni-koeln.de/color/),
which colour-blind people tell apart; shapes tell the same again. What lies within the same few pixels is drawn once,
so that a chart of ten thousand experiments stays small. Lengths are in CSS pixels at ``width``.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import NamedTuple

from autoresearchd.domain.quantities import format_duration
from autoresearchd.report.plain_text import clean, cut
from autoresearchd.report.plot import Chart, Point, Step, Steps, axis_limits

STYLE = """\
:root{--ink:#1f2328;--soft:#59636e;--line:#d5d9de;--paper:#fff;--ok:#009e73;--ok-ink:#00704f;--tip:#0072b2;
--grey:#8b929a;--abort:#e69f00;--fail:#d55e00;--fail-ink:#a84500;--illegal:#cc79a7}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#a3abb5;--line:#3a4048;--paper:#16191d;--ok:#1fc497;
--ok-ink:#3fd6ab;--tip:#56b4e9;--grey:#7d858e;--abort:#e69f00;--fail:#ff7b33;--fail-ink:#ff9a63;
--illegal:#dd93ba}}
svg.chart{display:block;max-width:100%;height:auto;font:12px system-ui,sans-serif;fill:var(--ink)}
.chart path{fill:none}.chart .soft{fill:var(--soft)}.chart .grid{stroke:var(--line)}
.chart .edge{stroke:var(--soft)}.chart .base{stroke:var(--ink);stroke-dasharray:5 4;opacity:.6}
.chart .ok{stroke:var(--ok)}.chart .tip{stroke:var(--tip)}.chart .grey{stroke:var(--grey)}
.chart .abort{stroke:var(--abort)}.chart .fail{stroke:var(--fail)}.chart .illegal{stroke:var(--illegal)}
.chart .thick{stroke-width:2.6}.chart .thin{stroke-width:1.2}.chart .mark{stroke-width:1.5}
.chart .dot{stroke-width:4.5;stroke-linecap:round}.chart .big{stroke-width:9;stroke-linecap:round}
.chart .lane{stroke-width:12}.chart .faint{opacity:.6}
.chart .band{stroke:none;opacity:.16}.chart .band.ok{fill:var(--ok)}.chart .band.tip{fill:var(--tip)}
.chart .full.ok{fill:var(--ok)}.chart .full.tip{fill:var(--tip)}.chart .full.grey{fill:var(--grey)}
.chart .full.fail{fill:var(--fail)}.chart .full{stroke:none}
.chart .hollow{fill:var(--paper);stroke-width:1.6}
@media print{:root{--ink:#000;--soft:#333;--line:#bbb;--paper:#fff;--ok:#009e73;--tip:#0072b2;--grey:#777}}
"""
"""Of a page with charts, which it serves, too: texts in ``--ink``, ``--soft``, ``--ok-ink``, ``--fail-ink``."""

Link = Callable[[int], str]
Scale = Callable[[float], float]
_LEFT, _FONT_WIDTH, _ROW = 64.0, 7.2, 18.0
_MOST_LABELS = 14
_MOST_NAMED = 200
"""Keeps of a kind that have words of their own: the newest."""
_SHAPES = {  # around a point, by what it is
    "dot": "h0",
    "big": "h0",
    "x": "m-3.5-3.5l7 7m0-7l-7 7",
    "bar": "m0-4v8",
    "up": "m-4 3l4-6l4 6z",
    "ring": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
    "diamond": "m-4.5 0l4.5-4.5l4.5 4.5l-4.5 4.5z",
}
_KINDS = {  # of experiments on the staircase, in the order of drawing: words, shape, classes
    "repeats": ("Repeated runs, lowest to highest", "bar", "grey mark"),
    "discards": ("Discarded", "dot", "grey dot faint"),
    "beyond": ("Discarded, off the chart", "up", "grey mark"),
    "aborted": ("Ended early", "bar", "abort mark"),
    "crashes": ("Crashed or failed a check", "x", "fail mark"),
    "fell": ("Kept, fell back", "diamond", "grey hollow"),
    "open": ("Kept, not confirmed yet", "ring", "tip hollow"),
    "proven": ("Kept and confirmed", "big", "ok big"),
}


class Span(NamedTuple):
    """What a slot did: from and to in seconds since the session began; kind: a key of ``SPAN_KINDS``."""

    lane: str
    start: float
    end: float
    kind: str


SPAN_KINDS = {
    "run": ("Running an experiment", "tip"),
    "confirmation": ("Confirming", "ok"),
    "aborted": ("Ended early", "abort"),
    "failed": ("Crashed, failed or lost", "fail"),
}
"""Words and colours of what a slot does; what is left is idle."""


class Bar(NamedTuple):
    """A value with its standard error (None: not known); note: what stands behind it."""

    label: str
    value: float
    error: float | None = None
    note: str = ""


# ---------------------------------------------------------------------- the staircase
def staircase(
    chart: Chart,
    *,
    name: str,
    sigma: float | None = None,
    width: int = 960,
    height: int = 420,
    link: Link | None = None,
    explained: bool = True,
) -> str:
    """The progress of a session: confirmed and tip in steps, with its standard error, and all that was tried.

    name: unique on the page, a word; sigma: of a run of the last segment, drawn around its confirmed program; link: the
    address of an experiment's page, for keeps; explained: with a legend.
    """
    low, high = axis_limits(chart)
    last = max([1, chart.last, *(math.ceil(line[-1].at) for line in (*chart.confirmed, *chart.tips) if line)])
    svg = _Svg(name, width)
    svg.y = 8.0
    counts = {**dict.fromkeys(_KINDS, 0), **_counts(chart, low, high)}
    band = " ± σ of a run" if sigma else ""
    legend = [(f"Confirmed program{band}", "line", "ok thick"), ("Tip, believed ± standard error", "line", "tip thin")]
    legend = [entry for entry, there in zip(legend, (chart.confirmed, any(chart.tips)), strict=True) if there]
    legend += [(f"{words} ({counts[k]:,})", shape, cls) for k, (words, shape, cls) in _KINDS.items() if counts[k]]
    if explained:
        svg.legend(legend)
    what = f"{clean(chart.metric, 40)} ({'lower' if chart.minimize else 'higher'} is better)"
    x, y, top, bottom = svg.frame(what, low, high, last, height)
    for index, (begin, end, value) in enumerate(chart.baselines):
        stop = float(last if index == len(chart.baselines) - 1 else end)
        svg.path(f"M{_n(x(begin))} {_n(y(value))}H{_n(x(stop))}", "base thin")
        around = sigma if index == len(chart.baselines) - 1 else None
        for steps, cls, spread in ((chart.confirmed[index], "ok thick", around), (chart.tips[index], "tip thin", None)):
            _draw_steps(svg, steps, cls, spread, stop, x, y)
    svg.path("".join(f"M{_n(x(n))} {_n(y(a))}V{_n(y(b))}" for n, a, b in chart.repeats[-500:]), "grey mark")
    edge = top + 5 if chart.minimize else bottom - 5
    inside = [(x(p.number), y(p.value)) for p in chart.discards if low <= p.value <= high]
    beyond = [(x(p.number), edge) for p in chart.discards if not low <= p.value <= high]
    svg.marks("discards", inside)
    svg.marks("beyond", beyond)
    svg.marks("aborted", [(x(n), bottom - 16) for n in chart.aborted])
    svg.marks("crashes", [(x(n), bottom - 6) for n in chart.crashes])
    for kind, state in (("fell", False), ("open", None), ("proven", True)):
        own = [point for point in chart.keeps if point.confirmed is state]
        svg.marks(kind, [(x(point.number), y(point.value)) for point in own[:-_MOST_NAMED]])
        for point in own[-_MOST_NAMED:]:
            svg.keep(kind, point, x(point.number), y(point.value), link)
    _label_keeps(svg, chart, x, y, bottom - 24)
    return svg.close("Progress", _words(chart))


def _counts(chart: Chart, low: float, high: float) -> dict[str, int]:
    inside = sum(low <= point.value <= high for point in chart.discards)
    keeps = {kind: sum(p.confirmed is s for p in chart.kept) for kind, s in (("fell", False), ("open", None))}
    return keeps | {
        "proven": chart.proven, "discards": inside, "beyond": len(chart.discards) - inside,
        "aborted": len(chart.aborted), "crashes": len(chart.crashes), "repeats": len(chart.repeats),
    }  # fmt: skip


def _words(chart: Chart) -> str:
    """What the picture tells, for those who cannot see it."""
    told = f"{chart.tried:,} experiments beside the baseline, {len(chart.kept):,} kept, {chart.proven:,} confirmed"
    told += f", {len(chart.aborted):,} ended early, {len(chart.crashes):,} crashed or failed a check."
    if chart.baselines and chart.confirmed:
        told += f" The baseline is at {chart.baselines[-1][2]:.6g}, the confirmed program"
        told += f" at {chart.confirmed[-1][-1].value:.6g}."
    return told


def _draw_steps(
    svg: _Svg, steps: Sequence[Step], classes: str, spread: float | None, stop: float, x: Scale, y: Scale
) -> None:
    """A line in steps with its band; of several steps within a pixel the last one is drawn."""
    if not steps:
        return
    shown = list({round(x(step.at)): step for step in steps}.values())
    ends = [x(step.at) for step in shown[1:]] + [x(max(stop, shown[-1].at))]
    line = f"M{_n(x(shown[0].at))} {_n(y(shown[0].value))}"
    upper, lower = "", []
    for step, end in zip(shown, ends, strict=True):
        around = step.error if spread is None else spread
        line += f"V{_n(y(step.value))}H{_n(end)}"
        upper += f"V{_n(y(step.value + around))}H{_n(end)}"
        lower.append(f"V{_n(y(step.value - around))}H{_n(x(step.at))}")
    if spread or any(step.error for step in shown):
        svg.path(f"M{_n(x(shown[0].at))} {_n(y(shown[0].value))}{upper}{''.join(reversed(lower))}z", f"{classes} band")
    svg.path(line, classes)


def _label_keeps(svg: _Svg, chart: Chart, x: Scale, y: Scale, lowest: float) -> None:
    """Numbers at the largest steps, where there is room; lowest: below it are the marks of crashes."""
    steps = zip(chart.keeps, chart.keeps[1:], strict=False)
    by_size = sorted(steps, key=lambda pair: -abs(pair[0].value - pair[1].value))
    taken: list[tuple[float, float]] = []
    for _, point in by_size:
        under = chart.minimize and y(point.value) + 17 <= lowest
        at = x(point.number), y(point.value) + (17 if under else -9)
        if len(taken) < _MOST_LABELS and all(abs(at[0] - a) > 34 or abs(at[1] - b) > 14 for a, b in taken):
            taken.append(at)
            svg.text(*at, f"#{point.number}", "soft", anchor="middle")


# ---------------------------------------------------------------------- sessions side by side
class Line(NamedTuple):
    """A session among others. steps: its confirmed gain over its own baseline, in %; last: its newest experiment."""

    label: str
    steps: Steps
    last: int


_LINES = (
    ("big", "ok big"), ("ring", "tip hollow"), ("x", "fail mark"), ("diamond", "illegal hollow"), ("up", "abort mark"),
    ("bar", "grey mark"),
)  # fmt: skip
MOST_LINES = len(_LINES)
_LARGEST_GAIN = 1e9
"""In %: what an imported log has beyond that is no gain."""


def line_of(label: str, chart: Chart) -> Line | None:
    """A session as one of several; None: it has no baseline that a gain could be a share of."""
    steps = [step for own in chart.better for step in own if abs(step.value) < _LARGEST_GAIN]
    return Line(label, tuple(steps), chart.last) if steps else None


def side_by_side(lines: Sequence[Line], *, name: str, width: int = 960) -> str:
    """Sessions on common axes, at most ``MOST_LINES``: a mark at the end of each tells it apart without its colour."""
    svg = _Svg(name, width)
    svg.y = 8.0
    svg.legend([(cut(clean(one.label), 40), shape, cls) for one, (shape, cls) in zip(lines, _LINES, strict=False)])
    gains = [step.value for one in lines for step in one.steps]
    low, high = min(0.0, *gains), max(0.0, *gains)
    reach = (high - low) or 1.0
    low, high = low - 0.06 * reach, high + 0.1 * reach
    last = max([1, *(math.ceil(max(one.last, one.steps[-1].at)) for one in lines)])
    x, y, _, _ = svg.frame("% better than its own baseline, confirmed", low, high, last, 300)
    for one, (shape, cls) in zip(lines, _LINES, strict=False):
        end = max(float(one.last), one.steps[-1].at)
        _draw_steps(svg, one.steps, f"{cls.split()[0]} mark", None, end, x, y)
        svg.shapes(shape, cls, [(x(end), y(one.steps[-1].value))])
    told = "; ".join(f"{one.label}: {one.steps[-1].value:+.3g}% after {one.last:,} experiments" for one in lines)
    return svg.close("Sessions side by side", told)


# ---------------------------------------------------------------------- slots over time
def timeline(spans: Sequence[Span], illegal: Sequence[float], *, name: str, until: float, width: int = 960) -> str:
    """What each slot did, from the session's begin to ``until`` (seconds); illegal: when an edit was refused."""
    lanes = list(dict.fromkeys(span.lane for span in spans)) or ["slot 1"]
    grouped: dict[str, dict[str, list[tuple[float, float]]]] = {kind: defaultdict(list) for kind in SPAN_KINDS}
    for span in spans:
        grouped[span.kind][span.lane].append((span.start, span.end))
    svg = _Svg(name, width)
    left = 20 + min(0.25 * width, max(len(lane) for lane in lanes) * _FONT_WIDTH)
    legend = [(text, "lane", f"{cls} lane") for kind, (text, cls) in SPAN_KINDS.items() if grouped[kind]]
    legend += [(f"Refused before it ran ({len(illegal):,})", "x", "illegal mark")] if illegal else []
    svg.legend([*legend, ("Idle", "lane", "grid lane")])
    first, right, until = svg.y + 12, width - 14.0, max(until, 1.0)

    def x(at: float) -> float:
        return left + (right - left) * min(max(at, 0.0), until) / until

    for row, lane in enumerate(lanes):
        y = first + row * _ROW
        svg.text(left - 6, y + 4, cut(clean(lane), int(left / _FONT_WIDTH)), "soft", anchor="end")
        svg.path(f"M{_n(left)} {_n(y)}H{_n(right)}", "grid lane")
        for kind, (_, cls) in SPAN_KINDS.items():
            merged = _merge([(x(a), max(x(b), x(a) + 0.6)) for a, b in grouped[kind][lane]])
            svg.path("".join(f"M{_n(a)} {_n(y)}H{_n(b)}" for a, b in merged), f"{cls} lane")
    svg.y = first + len(lanes) * _ROW
    if illegal:
        svg.text(left - 6, svg.y + 4, "refused", "soft", anchor="end")
        svg.shapes("x", "illegal mark", [(x(at), svg.y) for at in illegal])
        svg.y += _ROW
    hours = 3600.0 if until > 5400 else 60.0
    for tick in _ticks(0, until / hours, max(2, width // 110)):
        svg.text(x(tick * hours), svg.y + 8, f"{tick:g} {'h' if hours == 3600 else 'min'}", "soft", anchor="middle")
    svg.y += 16
    return svg.close("What the slots did", f"{len(lanes)} slots over {format_duration(until)}.")


def _merge(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that lie within half a pixel of each other as one."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + 0.5:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


# ---------------------------------------------------------------------- bars
def bars(rows: Sequence[Bar], *, name: str, title: str, width: int = 640) -> str:
    """Horizontal bars with their standard errors; those below zero are of another colour and go to the left."""
    svg = _Svg(name, width)
    left = 12 + min(0.36 * width, max([len(row.label) for row in rows] or [0]) * 1.15 * _FONT_WIDTH)
    told = [f"{row.value:.3g}" + (f" ± {row.error:.2g}" if row.error else "") for row in rows]
    told = [f"{figures} · {row.note}" if row.note else figures for figures, row in zip(told, rows, strict=True)]
    right = width - 14 - min(0.46 * width, max(map(len, told), default=0) * _FONT_WIDTH)
    low = min([0.0, *(row.value - (row.error or 0.0) for row in rows)])
    high = max([0.0, *(row.value + (row.error or 0.0) for row in rows)]) or (0.0 if low else 1.0)

    def x(value: float) -> float:
        return left + (right - left) * (value - low) / (high - low)

    svg.y = 16.0
    for row, words in zip(rows, told, strict=True):
        svg.text(left - 8, svg.y + 4, cut(clean(row.label), int(left / _FONT_WIDTH)), "", anchor="end")
        a, b = sorted((x(0.0), x(row.value)))
        svg.path(
            f"M{_n(a)} {_n(svg.y - 6)}H{_n(max(b, a + 1))}v12H{_n(a)}z", f"full {'fail' if row.value < 0 else 'tip'}"
        )
        if row.error:
            near, far = x(row.value - row.error), x(row.value + row.error)
            y = _n(svg.y)
            svg.path(f"M{_n(near)} {y}H{_n(far)}M{_n(near)} {y}m0-4v8M{_n(far)} {y}m0-4v8", "edge mark")
        svg.text(max(x(max(row.value, 0.0) + (row.error or 0.0)), x(0.0)) + 6, svg.y + 4, words, "soft")
        svg.y += 22
    svg.path(f"M{_n(x(0.0))} 4V{_n(svg.y - 8)}", "edge thin")
    return svg.close(title, "; ".join(f"{row.label}: {words}" for row, words in zip(rows, told, strict=True)))


# ---------------------------------------------------------------------- parts of all
class _Svg:
    """A picture that grows downwards; ``y``: how far it has come."""

    def __init__(self, name: str, width: float) -> None:
        self.name, self.width, self.y = name, width, 0.0
        self._parts: list[str] = []
        self._role = "img"

    def path(self, d: str, classes: str) -> None:
        if d:
            self._parts.append(f'<path class="{classes}" d="{d}"/>')

    def text(self, x: float, y: float, words: str, classes: str, *, anchor: str = "start") -> None:
        attributes = f'x="{_n(x)}" y="{_n(y)}"' + (f' class="{classes}"' if classes else "")
        attributes += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(f"<text {attributes}>{escape(clean(words))}</text>")

    def shapes(self, shape: str, classes: str, points: Iterable[tuple[float, float]]) -> None:
        """Marks of one kind as one path; of those that cover each other one."""
        cells = {(round(x / 2), round(y / 2)): (x, y) for x, y in points}
        self.path("".join(f"M{_n(x)} {_n(y)}{_SHAPES[shape]}" for x, y in cells.values()), classes)

    def marks(self, kind: str, points: Iterable[tuple[float, float]]) -> None:
        _, shape, classes = _KINDS[kind]
        self.shapes(shape, classes, points)

    def keep(self, kind: str, point: Point, x: float, y: float, link: Link | None) -> None:
        """One mark with its words, which a pointer that rests on it shows."""
        _, shape, classes = _KINDS[kind]
        words = f"#{point.number}: {point.value:.6g}" + (f", {point.text}" if point.text else "")
        mark = (
            f'<path class="{classes}" d="M{_n(x)} {_n(y)}{_SHAPES[shape]}"><title>{escape(clean(words))}</title></path>'
        )
        if link:
            self._role = "group"  # a picture has nothing in it that could be followed
            mark = f'<a href="{escape(link(point.number))}" aria-label="{escape(clean(words))}">{mark}</a>'
        self._parts.append(mark)

    def legend(self, entries: Iterable[tuple[str, str, str]]) -> None:
        x, self.y = 8.0, self.y + 12
        for words, shape, classes in entries:
            length = 24 + len(words) * _FONT_WIDTH
            if x > 8 and x + length > self.width:
                x, self.y = 8.0, self.y + _ROW
            if shape in ("line", "lane"):
                self.path(f"M{_n(x)} {_n(self.y)}h14", classes)
            else:
                self.shapes(shape, classes, [(x + 7, self.y)])
            self.text(x + 20, self.y + 4, words, "")
            x += length + 12
        self.y += 12

    def frame(self, what: str, low: float, high: float, last: int, height: int) -> tuple[Scale, Scale, float, float]:
        """The axes, of values and of experiments: the places of both on them, and the upper and the lower edge.

        What is beyond the values from ``low`` to ``high`` is at the edge.
        """
        top, bottom, right = self.y + 28, self.y + height - 30, self.width - 14.0
        self.y = bottom + 38

        def x(number: float) -> float:
            return _LEFT + 8 + (right - _LEFT - 16) * number / last

        def y(value: float) -> float:
            return bottom - (bottom - top) * (min(high, max(low, value)) - low) / (high - low)

        ticks = _ticks(low, high, 6)
        step = ticks[1] - ticks[0] if len(ticks) > 1 else min(abs(high), sys.float_info.max) or 1.0
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        for tick in ticks:
            self.path(f"M{_n(_LEFT)} {_n(y(tick))}H{_n(right)}", "grid")
            shown = f"{tick:.{decimals}f}" if decimals <= 6 and abs(tick) < 1e6 else f"{tick:.3g}"
            self.text(_LEFT - 6, y(tick) + 4, shown, "soft", anchor="end")
        for tick in _ticks(0, last, max(2, int(self.width) // 110)):
            if tick == int(tick):
                self.text(x(tick), bottom + 16, f"{tick:,.0f}", "soft", anchor="middle")
        self.text(right, bottom + 31, "experiment", "soft", anchor="end")
        self.text(8, top - 12, what, "soft")
        return x, y, top, bottom

    def close(self, title: str, words: str) -> str:
        ids = f"{self.name}-t {self.name}-d"
        size = f'width="{_n(self.width)}" viewBox="0 0 {_n(self.width)} {_n(self.y)}"'
        head = f'<svg class="chart" role="{self._role}" {size} aria-labelledby="{ids}">'
        told = (
            f'<title id="{self.name}-t">{escape(title)}</title><desc id="{self.name}-d">{escape(clean(words))}</desc>'
        )
        return f"{head}{told}{''.join(self._parts)}</svg>"


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round figures from low to high, at most so many."""
    if not high > low or not math.isfinite(high - low):
        return [low]
    rough = (high - low) / most
    if rough < sys.float_info.min:  # there are no round figures between such numbers
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    # Of large numbers, between which there are no others, several may be the same one.
    return list(dict.fromkeys(n * step for n in range(first, math.floor(high / step + 1e-9) + 1)))


def _n(value: float) -> str:
    """A coordinate to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")
