"""The progress chart: grey discards, green keeps, the running best as a step line, the kept changes in words.

It is the chart of karpathy/autoresearch's ``analysis.ipynb`` (title, labels of at most 45 characters rotated by 30
degrees, axis from the best −15% to the baseline +15% of the range between them), made to stay readable with one
experiment and with ten thousand, for both directions of the metric. matplotlib is imported when a chart is drawn, with
its file-only canvas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoresearchd.domain.errors import UsageError
from autoresearchd.report.plain_text import clean, cut, real

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

LABEL_LENGTH = 45
_MARGIN = 0.15
_NAME_LENGTH = 50
"""Of the metric's name, beside the axis."""
_CUTS = (LABEL_LENGTH, 37, 30, 24, 20)
"""Characters of the words at a keep: as many as there is room for."""
_LEFT, _RIGHT = 0.065, 0.985
_EDGE, _MOST_MORE = 10.0, 0.1
"""Pixels that stay free on the left; by which share of the figure the axis is moved at most."""
_SIZE = (16.0, 9.0)
_DPI = 100
_GREEN, _GREY, _RED, _INK = "#2ca05a", "#b5b8bd", "#d64545", "#30343b"
_FONT = 8.8
_MANY_LABELS, _FEW_LABELS, _MANY_POINTS = 40, 28, 1500


@dataclass(frozen=True, slots=True)
class Point:
    """One experiment on the chart."""

    number: int
    value: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """What is to be drawn: points by kind, and the baseline of each segment as (first number, last number, value)."""

    metric: str
    minimize: bool
    total: int
    keeps: tuple[Point, ...]
    discards: tuple[Point, ...]
    crashes: tuple[int, ...]
    baselines: tuple[tuple[int, int, float], ...]
    aborted: tuple[int, ...] = ()

    @property
    def tried(self) -> int:
        """Decided experiments, baselines not counted, as everywhere."""
        return self.total - len(self.baselines)

    @property
    def improvements(self) -> int:
        """Kept experiments beside the baselines."""
        first = {begin for begin, _, _ in self.baselines}
        return sum(1 for point in self.keeps if point.number not in first)


def chart_of(records: Iterable[Record], *, metric: str, direction: str) -> Chart:
    """Sort records shaped like ``experiments --json`` into what the chart shows."""
    keeps: list[Point] = []
    discards: list[Point] = []
    crashes: list[int] = []
    aborted: list[int] = []
    baselines: list[tuple[int, int, float]] = []
    segment: Any = object()
    total = 0
    for record in records:
        number, value, status = int(record["experiment"]), real(record.get("metric")), record.get("status")
        if status is None:
            continue
        total += 1
        if status == "keep" and value is not None:
            keeps.append(Point(number, value, _label(record)))
            if record.get("segment", 0) != segment:
                segment = record.get("segment", 0)
                baselines.append((number, number, value))
        elif status == "discard" and value is not None:
            discards.append(Point(number, value))
        elif record.get("label") == "aborted_early":
            aborted.append(number)
        elif status in ("crash", "checks_failed"):
            crashes.append(number)
        if baselines:
            baselines[-1] = (baselines[-1][0], number, baselines[-1][2])
    return Chart(
        metric,
        direction == "minimize",
        total,
        tuple(keeps),
        tuple(discards),
        tuple(crashes),
        tuple(baselines),
        tuple(aborted),
    )


def axis_limits(chart: Chart) -> tuple[float, float]:
    """Limits of the value axis that show the range of progress and ignore outliers: 15% beyond best and baseline.

    Discards that measured better than the best are near misses, not outliers: shown up to one such range beyond.
    """
    worst_start = [value for _, _, value in chart.baselines]
    kept = [point.value for point in chart.keeps]
    values = worst_start + kept or [point.value for point in chart.discards]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if low == high:  # nothing gained yet: the middle of what was tried, so that the picture is not a line in the dark
        spread = sorted(abs(point.value - low) for point in chart.discards)
        reach = spread[len(spread) // 2] * 2 if spread else 0.0
        reach = min(reach, abs(low)) if low else reach
        reach = reach or abs(low) * 0.01 or 1.0
        return low - reach, high + reach
    reach = high - low
    near = [point.value for point in chart.discards if low - reach <= point.value <= high + reach]
    if chart.minimize:
        low = min([low, *near])
    else:
        high = max([high, *near])
    return low - _MARGIN * reach, high + _MARGIN * reach


def draw(records: Iterable[Record], target: Path, *, metric: str, direction: str) -> Chart:
    """Draw the chart into ``target`` (.png, .svg or .pdf) and return what it shows.

    Raises UsageError when there is nothing to draw.
    """
    chart = chart_of(records, metric=metric, direction=direction)
    if not chart.keeps and not chart.discards and not chart.crashes:
        raise UsageError(
            "there is nothing to draw yet: no experiment is decided",
            hint="wait for the baseline; see `autoresearchd status`",
        )
    if target.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"{target.name}: a chart is a .png, .svg or .pdf file", hint="for example: -o progress.png")
    figure = _figure(chart)
    try:
        figure.savefig(target, dpi=_DPI)
    except OSError as error:
        raise UsageError(
            f"cannot write {target}: {error.strerror}", hint="name a file in a folder that exists"
        ) from error
    return chart


def _figure(chart: Chart) -> Figure:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text from a model is never set as mathematics: a stray dollar sign would raise.
    with rc_context({"font.size": 11, "text.parse_math": False, "axes.unicode_minus": False}):
        figure = Figure(figsize=_SIZE, dpi=_DPI, layout=None)
        FigureCanvasAgg(figure)
        axes = figure.add_axes((_LEFT, 0.115, _RIGHT - _LEFT, 0.815))
        _set_axes(chart, axes)
        _make_room(figure, axes)
        _draw_points(chart, axes)
        _draw_best(chart, axes)
        _draw_labels(chart, figure, axes)
        # Below the chart: inside, it would hide points and cross the words of the keeps.
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.075), ncols=6, frameon=False, fontsize=10, columnspacing=2.4
        )
        figure.canvas.draw()
    return figure


def _make_room(figure: Figure, axes: Axes) -> None:
    """Move the value axis to the right where its figures and its name take more room than they usually do."""
    figure.draw_without_rendering()
    missing = _EDGE - axes.yaxis.label.get_window_extent().x0
    if missing > 0:
        left = _LEFT + min(_MOST_MORE, missing / figure.bbox.width)
        axes.set_position((left, axes.get_position().y0, _RIGHT - left, axes.get_position().height))


def _set_axes(chart: Chart, axes: Axes) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    low, high = axis_limits(chart)
    last = _last_number(chart)
    # Room on the right for the words of the last keep; for all of them where it is one of the latest experiments.
    late = bool(chart.keeps) and chart.keeps[-1].number > 0.9 * last
    axes.set_xlim(-max(0.25, 0.012 * last), last + max(0.9, (0.22 if late else 0.1) * last))
    axes.set_ylim(low, high)
    counts = f"{chart.tried:,} Experiment{'' if chart.tried == 1 else 's'}"
    kept = f"{chart.improvements:,} Kept Improvement{'' if chart.improvements == 1 else 's'}"
    axes.set_title(f"Autoresearch Progress: {counts}, {kept}", fontsize=15, color=_INK, pad=12)
    axes.set_xlabel("Experiment", color=_INK)
    axes.set_ylabel(
        f"{clean(chart.metric, _NAME_LENGTH)} ({'lower' if chart.minimize else 'higher'} is better)", color=_INK
    )
    axes.grid(visible=True, color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.ticklabel_format(axis="y", useOffset=False, style="plain" if 1e-4 < max(abs(low), abs(high)) < 1e7 else "sci")
    few = last <= 12
    axes.xaxis.set_major_locator(FixedLocator(range(last + 1)) if few else MaxNLocator(nbins=10, integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _draw_points(chart: Chart, axes: Axes) -> None:
    low, high = axis_limits(chart)
    many = chart.total > _MANY_POINTS
    inside = [point for point in chart.discards if low <= point.value <= high]
    beyond = [point for point in chart.discards if not low <= point.value <= high]
    if inside:
        axes.scatter(
            [p.number for p in inside], [p.value for p in inside], s=9 if many else 20, color=_GREY,
            alpha=0.45 if many else 0.8, linewidths=0, label=f"Discarded ({len(chart.discards):,})", zorder=2,
        )  # fmt: skip
    if beyond:
        edge = high if chart.minimize else low
        axes.scatter(
            [p.number for p in beyond], [edge if (p.value > high) == chart.minimize else p.value for p in beyond],
            marker="^" if chart.minimize else "v", s=22, facecolors="none", edgecolors=_GREY, linewidths=0.8,
            alpha=0.35 if many else 0.8, label=f"Discarded, off the chart ({len(beyond):,})", zorder=2, clip_on=True,
        )  # fmt: skip
    if chart.crashes:
        axes.scatter(
            chart.crashes, [0.012] * len(chart.crashes), transform=axes.get_xaxis_transform(), marker="x",
            s=12 if many else 22, color=_RED, alpha=0.35 if many else 0.9, linewidths=1.1,
            label=f"Crashed or failed a check ({len(chart.crashes):,})", zorder=3,
        )  # fmt: skip
    if chart.aborted:
        axes.scatter(
            chart.aborted, [0.03] * len(chart.aborted), transform=axes.get_xaxis_transform(), marker="|",
            s=12 if many else 28, color=_GREY, alpha=0.35 if many else 0.9, linewidths=1.1,
            label=f"Ended early ({len(chart.aborted):,})", zorder=2,
        )  # fmt: skip
    if chart.keeps:
        axes.scatter(
            [p.number for p in chart.keeps], [p.value for p in chart.keeps], s=26 if many else 52, color=_GREEN,
            edgecolors="white", linewidths=0.9, label=f"Kept ({chart.improvements:,})", zorder=5,
        )  # fmt: skip


def _draw_best(chart: Chart, axes: Axes) -> None:
    last = _last_number(chart)
    for index, (begin, end, value) in enumerate(chart.baselines):
        stop = max(end, last) if index == len(chart.baselines) - 1 else end
        kept = [p for p in chart.keeps if begin <= p.number <= end]
        xs, ys, best = [], [], value
        for point in kept:
            best = min(best, point.value) if chart.minimize else max(best, point.value)
            xs.append(point.number)
            ys.append(best)
        first = index == 0
        axes.step(
            [*xs, stop], [*ys, ys[-1]], where="post", color=_GREEN, linewidth=1.8, alpha=0.75, zorder=4,
            label=_best_words(ys[-1], value) if first else "",
        )  # fmt: skip
        axes.hlines(
            value, begin, stop if not first or len(chart.baselines) > 1 else axes.get_xlim()[1], colors=_INK,
            linestyles=(0, (5, 4)), linewidth=1.0, alpha=0.55, zorder=1, label=f"Baseline {value:.6g}" if first else "",
        )  # fmt: skip


def _best_words(best: float, baseline: float) -> str:
    change = f" ({100 * (best - baseline) / abs(baseline):+.2f}%)" if baseline and best != baseline else ""
    return f"Running best {best:.6g}{change}"


def _draw_labels(chart: Chart, figure: Figure, axes: Axes) -> None:
    """Words at the kept changes: the largest steps first, each where it crosses neither another label nor the frame."""
    placed: list[_Strip] = []
    frame = axes.get_window_extent()
    room = _MANY_LABELS if chart.total <= _MANY_POINTS else _FEW_LABELS  # more words than that hide the points
    for point in _by_gain(chart):
        if len(placed) >= room:
            break
        x, y = axes.transData.transform((point.number, point.value))
        for text in dict.fromkeys(cut(point.text, most) for most in _CUTS):
            strip = _place(text, float(x), float(y), chart, figure, placed, (frame.x0, frame.y0, frame.x1, frame.y1))
            if strip is None:
                continue
            placed.append(strip)
            axes.annotate(
                text, (point.number, point.value), xytext=(strip.dx, strip.dy), textcoords="offset pixels",
                rotation=strip.angle, rotation_mode="anchor", ha=strip.side, va="center", fontsize=_FONT,
                color="#1d6b3c", zorder=6, annotation_clip=False,
            )  # fmt: skip
            break


@dataclass(frozen=True, slots=True)
class _Strip:
    """The strip of paper that a rotated label takes: from (x, y) in pixels, along ``angle`` degrees."""

    x: float
    y: float
    length: float
    height: float
    angle: float
    side: str
    dx: float
    dy: float

    def corners(self) -> tuple[tuple[float, float], ...]:
        c, s = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
        sign = 1.0 if self.side == "left" else -1.0
        half = self.height / 2
        return tuple(
            (self.x + sign * along * c - across * s, self.y + sign * along * s + across * c)
            for along in (0.0, self.length)
            for across in (-half, half)
        )


def _place(
    text: str, x: float, y: float, chart: Chart, figure: Figure, placed: Sequence[_Strip],
    frame: tuple[float, float, float, float],
) -> _Strip | None:  # fmt: skip
    """The first place around the point that is free: on the side that the running best has left, then on the other."""
    length, height = _text_size(text, figure)
    angle, up = (30.0, 1.0) if chart.minimize else (-30.0, -1.0)
    for side, sign in (("left", 1.0), ("right", -1.0)):
        dx, dy = sign * 5.0, sign * up * 6.0
        strip = _Strip(x + dx, y + dy, length, height, angle, side, dx, dy)
        inside = all(
            frame[0] + 2 <= cx <= frame[2] + 16 and frame[1] + 16 <= cy <= frame[3] for cx, cy in strip.corners()
        )
        if inside and not any(_overlap(strip, other) for other in placed):
            return strip
    return None


def _overlap(one: _Strip, other: _Strip) -> bool:
    """Whether two strips of the same angle touch (all labels of a chart are parallel)."""
    c, s = math.cos(math.radians(one.angle)), math.sin(math.radians(one.angle))

    def span(strip: _Strip) -> tuple[float, float, float]:
        along, across = strip.x * c + strip.y * s, strip.y * c - strip.x * s
        end = along + (strip.length if strip.side == "left" else -strip.length)
        return min(along, end), max(along, end), across

    (a0, a1, a), (b0, b1, b) = span(one), span(other)
    return abs(a - b) < (one.height + other.height) / 2 and a0 < b1 + 6 and b0 < a1 + 6


def _text_size(text: str, figure: Figure) -> tuple[float, float]:
    from matplotlib.textpath import TextPath

    points_to_pixels = figure.dpi / 72
    box = TextPath((0, 0), text, size=_FONT).get_extents()
    return box.width * points_to_pixels + 6, _FONT * points_to_pixels * 1.25


def _by_gain(chart: Chart) -> list[Point]:
    """Kept points with words: the latest best first, then by the size of the step that they made."""
    gains: list[tuple[float, Point]] = []
    previous: float | None = None
    starts = {begin for begin, _, _ in chart.baselines}
    for point in chart.keeps:
        gain = math.inf if point.number in starts or previous is None else abs(previous - point.value)
        gains.append((gain, point))
        previous = point.value
    if gains:
        gains[-1] = (math.inf, gains[-1][1])
    return [point for _, point in sorted(gains, key=lambda pair: -pair[0]) if point.text]


def _label(record: Record) -> str:
    return clean(record.get("description") or "", LABEL_LENGTH)


def _last_number(chart: Chart) -> int:
    numbers = [p.number for p in (*chart.keeps, *chart.discards)] + list(chart.crashes)
    return max(numbers, default=0)
