"""The progress chart: grey discards, green keeps, full ones where they are confirmed; the kept changes in words.

A thick line follows the confirmed program, a thin one the tip, which is only believed to be better. It is the chart of
karpathy/autoresearch's ``analysis.ipynb`` (title, labels of at most 45 characters rotated by 30 degrees, axis from the
best −15% to the baseline +15% of the range between them), made to stay readable with one experiment and with ten
thousand.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median_high
from typing import TYPE_CHECKING, Any, NamedTuple

from autoresearchd.domain.confirmation import ablates, improvement
from autoresearchd.domain.errors import UsageError, unwritable
from autoresearchd.report.plain_text import clean, cut, real

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

LABEL_LENGTH, _NAME_LENGTH = 45, 50
"""Of the words at a keep, and of the metric's name beside the axis."""
_CUTS = (LABEL_LENGTH, 37, 30, 24, 20)
"""Characters of the words at a keep: as many as there is room for."""
_MARGIN, _SIZE, _DPI = 0.15, (16.0, 9.0), 100
_GREEN, _GREY, _RED, _INK = "#2ca05a", "#b5b8bd", "#d64545", "#30343b"
_FONT = 8.8
_MANY_LABELS, _FEW_LABELS, _MANY_POINTS = 40, 28, 1500


@dataclass(frozen=True, slots=True)
class Point:
    """One experiment on the chart. confirmed: of a keep, as in the journal."""

    number: int
    value: float
    text: str = ""
    confirmed: bool | None = True


class Step(NamedTuple):
    """A line in steps has this value, with its standard error, from an experiment on; a confirmation is between two."""

    at: float
    value: float
    error: float = 0.0


Steps = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """What is to be drawn: points by kind, and the baseline of each segment as (first number, last number, value).

    confirmed, tips: the values of both programs in each segment. repeats: of experiments with several runs: number,
    lowest and highest value. gains: of confirmed programs over their baselines, by the place of their steps, as tests
    side by side have them: in the values is the drift of the machine, too.
    """

    metric: str
    minimize: bool
    total: int
    keeps: tuple[Point, ...]
    discards: tuple[Point, ...]
    crashes: tuple[int, ...]
    baselines: tuple[tuple[int, int, float], ...]
    aborted: tuple[int, ...] = ()
    confirmed: tuple[Steps, ...] = ()
    tips: tuple[Steps, ...] = ()
    repeats: tuple[tuple[int, float, float], ...] = ()
    gains: Mapping[float, float] = field(default_factory=dict)

    @property
    def tried(self) -> int:
        """Decided experiments, baselines not counted, as everywhere."""
        return self.total - len(self.baselines)

    @property
    def last(self) -> int:
        return max([p.number for p in (*self.keeps, *self.discards)] + [*self.crashes, *self.aborted], default=0)

    @property
    def kept(self) -> list[Point]:
        """Kept experiments beside the baselines."""
        first = {begin for begin, _, _ in self.baselines}
        return [point for point in self.keeps if point.number not in first]

    @property
    def better(self) -> list[Steps]:
        """In each segment, how much better the confirmed program is than the baseline, in %; nothing: of a 0."""
        return [
            tuple(
                Step(step.at, percent)
                for step in own
                if (percent := improvement(base, step.value, self.gains.get(step.at), minimize=self.minimize).percent)
                is not None
            )
            for (_, _, base), own in zip(self.baselines, self.confirmed, strict=True)
        ]

    @property
    def proven(self) -> int:
        """Kept experiments beside the baselines that are confirmed."""
        return sum(point.confirmed is True for point in self.kept)


def chart_of(
    records: Iterable[Record],
    *,
    metric: str,
    direction: str,
    confirmations: Iterable[Record] = (),
    beliefs: Iterable[tuple[float, float, float]] = (),
) -> Chart:
    """Sort records shaped like ``experiments --json`` into what the chart shows.

    confirmations: as ``show --json`` has them; beliefs: of the tip, as ``Reader.beliefs`` gives them.
    """
    keeps: list[Point] = []
    discards: list[Point] = []
    crashes: list[int] = []
    aborted: list[int] = []
    repeats: list[tuple[int, float, float]] = []
    baselines: list[tuple[int, int, float]] = []
    segment, total = None, 0
    for record in records:
        number, value, status = int(record["experiment"]), real(record.get("metric")), record.get("status")
        if status is None:
            continue
        total += 1
        if status in ("keep", "discard") and len(values := _own_values(record)) > 1:
            repeats.append((number, min(values), max(values)))
        if status == "keep" and value is not None:
            words = clean(record.get("description") or "", LABEL_LENGTH)
            keeps.append(Point(number, value, words, record.get("confirmed")))
            if not baselines or record.get("segment", 0) != segment:
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
    minimize, steps = direction == "minimize", [Step(*belief) for belief in beliefs]
    tests = list(confirmations)
    proven = [
        {**test, "value": test.get("value") if (mean := _mean_of(test, tests)) is None else mean}
        for test in tests
        if test.get("moved") and test.get("outcome") == "confirmed"
    ]
    confirmed, tips, gains = list[Steps](), list[Steps](), dict[float, float]()
    for begin, end, _ in baselines:
        kept = [point for point in keeps if begin <= point.number <= end]
        its = [test for test in proven if begin <= int(test["experiment"]) <= end]
        confirmed.append(_follow_confirmed(kept, its, minimize))
        gains.update(_gains(begin, its))
        tips.append(tuple(step for step in steps if begin <= step.at < end + 1) or _follow_keeps(kept))
    drawn = tuple(keeps), tuple(discards), tuple(crashes), tuple(baselines), tuple(aborted)
    return Chart(metric, minimize, total, *drawn, tuple(confirmed), tuple(tips), tuple(repeats), gains)


def _own_values(record: Record) -> list[float]:
    """Of the good runs of its own program that it was decided on."""
    own = (run for run in record.get("runs") or () if run.get("of") is None and not run.get("label"))
    return [value for run in own if (value := real(run.get("metric"))) is not None]


def _mean_of(moved: Record, confirmations: Sequence[Record]) -> float | None:
    """Of a program over its runs in confirmations of its segment, as `status` has it: the last one ended at luck."""
    number, segment = moved["experiment"], moved.get("segment")
    usual = (test for test in confirmations if test.get("budget") is None and test.get("segment") == segment)
    tips = ((None if ablates(str(test.get("why"))) else test["experiment"], test) for test in usual)
    own = [
        r for tip, test in tips for r in test.get("runs") or () if number == (tip if r.get("of") is None else r["of"])
    ]
    values = [value for run in own if not run.get("label") and (value := real(run.get("metric"))) is not None]
    return fmean(values) if values else None


def _follow_confirmed(keeps: Sequence[Point], proven: Sequence[Record], minimize: bool) -> Steps:
    """The confirmed program over a segment. keeps: of it, the baseline first; proven: confirmations that moved it.

    It has the mean of its runs in confirmations; without any, as in older sessions, what it was kept with.
    """
    alone = [
        point for point in keeps[1:]
        if point.confirmed and not any(int(t["against"]) < point.number <= int(t["experiment"]) for t in proven)
    ]  # fmt: skip
    better = min if minimize else max
    bests = accumulate((point.value for point in alone), better, initial=keeps[0].value)
    steps = [Step(point.number, best) for point, best in zip((keeps[0], *alone), bests, strict=True)]
    means = ((int(test["after"]) + 0.5, real(test.get("value"))) for test in proven)
    proven_steps = (Step(at, mean) for at, mean in means if mean is not None)
    return tuple(sorted([*steps, *proven_steps], key=lambda step: step.at))  # of several at one place the last counts


def _gains(baseline: int, proven: Sequence[Record]) -> Iterator[tuple[float, float]]:
    """Of each confirmed program the gain over the baseline, where it is known of all tests that led to it."""
    gains = {baseline: 0.0}
    for test in proven:
        if (before := gains.get(int(test["against"]))) is not None and (gain := real(test.get("gain"))) is not None:
            gains[int(test["experiment"])] = before + gain
            yield int(test["after"]) + 0.5, before + gain


def _follow_keeps(keeps: Sequence[Point]) -> Steps:
    """The tip where nothing was believed of it, as in an imported log; nothing where each keep was tested at once."""
    if all(point.confirmed for point in keeps):
        return ()
    return tuple(Step(point.number, point.value) for point in keeps if point.confirmed is not False)


def axis_limits(chart: Chart) -> tuple[float, float]:
    """Limits of the value axis that show the range of progress and ignore outliers: 15% beyond best and baseline.

    Discards that measured better than the best are near misses, not outliers: shown up to one such range beyond.
    """
    kept = [value for _, _, value in chart.baselines] + [point.value for point in chart.keeps]
    kept += [step.value for line in (*chart.confirmed, *chart.tips) for step in line]
    values = kept or [point.value for point in chart.discards]
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    if low == high:  # nothing gained yet: the middle of what was tried, so that the picture is not a line in the dark
        reach = 2 * median_high([abs(point.value - low) for point in chart.discards] or [0.0])
        reach = (min(reach, abs(low)) if low else reach) or abs(low) * 0.01 or 1.0
        return low - reach, high + reach
    reach = high - low
    near = [point.value for point in chart.discards if low - reach <= point.value <= high + reach]
    low, high = (min([low, *near]), high) if chart.minimize else (low, max([high, *near]))
    return low - _MARGIN * reach, high + _MARGIN * reach


def draw(records: Iterable[Record], target: Path, **facts: Any) -> Chart:
    """Draw the chart into a .png, .svg or .pdf file; what it shows. facts: see ``chart_of``."""
    chart = chart_of(records, **facts)
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
        raise unwritable(target, error) from error
    return chart


def _figure(chart: Chart) -> Figure:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    # Text from a model is never set as mathematics: a stray dollar sign would raise.
    with rc_context({"font.size": 11, "text.parse_math": False, "axes.unicode_minus": False}):
        figure = Figure(figsize=_SIZE, dpi=_DPI, layout=ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.2))
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        _set_axes(chart, axes)
        _draw_points(chart, axes)
        _draw_best(chart, axes)
        # Below the chart: inside, it would hide points and cross the words of the keeps.
        figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=10, columnspacing=2.4)
        for _ in range(2):  # the ticks that need room are known after the first
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
        _draw_labels(chart, figure, axes)
    return figure


def _set_axes(chart: Chart, axes: Axes) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    low, high = axis_limits(chart)
    last = chart.last
    # Room on the right for the words of the last keep; for all of them where it is one of the latest experiments.
    late = bool(chart.keeps) and chart.keeps[-1].number > 0.9 * last
    axes.set_xlim(-max(0.25, 0.012 * last), last + max(0.9, (0.22 if late else 0.1) * last))
    axes.set_ylim(low, high)
    counts = f"{chart.tried:,} Experiment{'' if chart.tried == 1 else 's'}"
    kept = f"{len(chart.kept):,} Kept, {chart.proven:,} Confirmed"
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

    def dots(points: Sequence[Point], words: str, count: int, size: float, alpha: float, **style: Any) -> None:
        if points:
            xs, ys = [p.number for p in points], [p.value for p in points]
            size, alpha = (size / 2, alpha if alpha == 1 else alpha / 2) if many else (size, alpha)
            axes.scatter(xs, ys, s=size, alpha=alpha, label=f"{words} ({count:,})", **style)

    dots(inside, "Discarded", len(chart.discards), 20, 0.8, color=_GREY, linewidths=0, zorder=2)
    edge, mark = (high, "^") if chart.minimize else (low, "v")
    held = [replace(p, value=edge) if (p.value > high) == chart.minimize else p for p in beyond]
    hollow = {"facecolors": "none", "edgecolors": _GREY, "linewidths": 0.8, "zorder": 2, "clip_on": True}
    dots(held, "Discarded, off the chart", len(beyond), 22, 0.8, marker=mark, **hollow)
    for numbers, height, mark, colour, words in (
        (chart.crashes, 0.012, "x", _RED, "Crashed or failed a check"),
        (chart.aborted, 0.03, "|", _GREY, "Ended early"),
    ):
        style = {"marker": mark, "color": colour, "linewidths": 1.1, "zorder": 3}
        low_down = [Point(number, height) for number in numbers]
        dots(low_down, words, len(numbers), 24, 0.9, transform=axes.get_xaxis_transform(), **style)
    full = {"color": _GREEN, "edgecolors": "white", "linewidths": 0.9}
    for state, words, style in (
        (True, "Kept and confirmed", full),
        (None, "Kept, not confirmed yet", {"facecolors": "white", "edgecolors": _GREEN, "linewidths": 1.3}),
        (False, "Kept, fell back", {"facecolors": "white", "edgecolors": _GREY, "linewidths": 1.3}),
    ):
        count = sum(point.confirmed is state for point in chart.kept)
        dots([p for p in chart.keeps if p.confirmed is state], words, count, 52, 1.0, zorder=5, **style)


def _draw_best(chart: Chart, axes: Axes) -> None:
    last = chart.last
    for index, (begin, end, value) in enumerate(chart.baselines):
        latest = index == len(chart.baselines) - 1
        stop = float(max(end, last) if latest else end)
        best, tip, better = chart.confirmed[index][-1], chart.tips[index], chart.better[index][-1:]
        percent = better[0].value if better and best.at != begin else None
        change = "" if percent is None else f" ({abs(percent):.2f}% {'better' if percent >= 0 else 'worse'})"
        for line, words, width in (
            (chart.confirmed[index], f"Confirmed {best.value:.6g}{change}", 2.6),
            (tip, f"Tip, believed {tip[-1].value:.6g} ± {tip[-1].error:.2g}" if tip else "", 1.0),
        ):
            if line:
                xs, ys, stop = (
                    [step.at for step in line],
                    [step.value for step in line],
                    max(stop, math.ceil(line[-1].at)),
                )
                axes.step(
                    [*xs, stop], [*ys, ys[-1]], where="post", color=_GREEN, linewidth=width, alpha=0.8, zorder=4,
                    label=words if latest else "",
                )  # fmt: skip
        if tip:
            low, high = ([step.value + sign * step.error for step in tip] for sign in (-1.0, 1.0))
            axes.fill_between(
                [*(step.at for step in tip), stop], [*low, low[-1]], [*high, high[-1]], step="post", color=_GREEN,
                alpha=0.12, linewidth=0, zorder=1,
            )  # fmt: skip
        axes.hlines(
            value, begin, stop if len(chart.baselines) > 1 else axes.get_xlim()[1], colors=_INK,
            linestyles=(0, (5, 4)), linewidth=1.0, alpha=0.55, zorder=1,
            label=f"Baseline {value:.6g}" if latest else "",
        )  # fmt: skip


def _draw_labels(chart: Chart, figure: Figure, axes: Axes) -> None:
    """Words at the kept changes: the largest steps first, each where it crosses neither another label nor the frame.

    On the side that the tip has left, else on the other; cut to what there is room for.
    """
    from matplotlib.textpath import TextPath

    frame, scale = axes.get_window_extent(), figure.dpi / 72
    up, height = (1.0 if chart.minimize else -1.0), _FONT * scale * 1.25
    cosine, sine = math.cos(math.radians(30.0)), up * math.sin(math.radians(30.0))
    taken: list[tuple[float, float, float]] = []  # from, to along the slope of the words, and where across it

    def fits(x: float, y: float, length: float) -> bool:
        along, across = x * cosine + y * sine, y * cosine - x * sine
        ends = (x, y), (x + length * cosine, y + length * sine)
        low, high = min(along, along + length), max(along, along + length)
        inside = all(frame.x0 + 2 <= cx <= frame.x1 + 16 and frame.y0 + 16 <= cy <= frame.y1 for cx, cy in ends)
        if not inside or any(abs(across - c) < height and low < b + 6 and a < high + 6 for a, b, c in taken):
            return False
        taken.append((low, high, across))
        return True

    def draw_words(point: Point) -> None:
        x, y = axes.transData.transform((point.number, point.value))
        for text in dict.fromkeys(cut(point.text, most) for most in _CUTS):
            length = TextPath((0, 0), text, size=_FONT).get_extents().width * scale + 6
            for side, sign in (("left", 1.0), ("right", -1.0)):
                dx, dy = sign * 5.0, sign * up * 6.0
                if fits(float(x) + dx, float(y) + dy, sign * length):
                    axes.annotate(
                        text, (point.number, point.value), xytext=(dx, dy), textcoords="offset pixels",
                        rotation=up * 30.0, rotation_mode="anchor", ha=side, va="center", fontsize=_FONT,
                        color="#1d6b3c" if point.confirmed else "#7a7f87", zorder=6, annotation_clip=False,
                    )  # fmt: skip
                    return

    for point in _by_gain(chart):
        if len(taken) < (_MANY_LABELS if chart.total <= _MANY_POINTS else _FEW_LABELS):  # more words hide the points
            draw_words(point)


def _by_gain(chart: Chart) -> list[Point]:
    """Kept points with words: the latest best first, then by the size of the step that they made."""
    first = {begin for begin, _, _ in chart.baselines} | {point.number for point in chart.keeps[-1:]}
    gains = [
        (math.inf if point.number in first else abs(before.value - point.value), point)
        for before, point in zip((*chart.keeps[:1], *chart.keeps), chart.keeps, strict=False)
    ]
    return [point for _, point in sorted(gains, key=lambda pair: -pair[0]) if point.text]
