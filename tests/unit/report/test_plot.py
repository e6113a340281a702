"""The progress chart: what a person sees of a night's work."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.report.plot import LABEL_LENGTH, _figure, axis_limits, chart_of, draw


def record(number: int, status: str, metric: float | None, description: str = "", segment: int = 0) -> dict[str, Any]:
    return {
        "experiment": number,
        "status": status,
        "metric": metric,
        "description": description,
        "segment": segment,
    }


NIGHT = [
    record(0, "keep", 1.0, "baseline"),
    record(1, "keep", 0.9, "halve the batch"),
    record(2, "discard", 5.0, "a wild one"),
    record(3, "crash", None, "out of memory"),
    record(4, "checks_failed", 0.1, "a cheat"),
    record(5, "discard", 0.95, "no gain"),
    record(6, "keep", 0.8, "more\x1b[31m steps $x_{ " + "and words " * 20),
]


def test_the_baseline_is_no_kept_improvement() -> None:
    assert chart_of(NIGHT, metric="loss", direction="minimize").improvements == 2


def test_a_wild_discard_does_not_flatten_the_picture() -> None:
    low, high = axis_limits(chart_of(NIGHT, metric="loss", direction="minimize"))
    assert (low, high) == pytest.approx((0.8 - 0.15 * 0.2, 1.0 + 0.15 * 0.2))


def test_a_cheated_value_is_drawn_as_a_failure_and_not_as_a_result() -> None:
    chart = chart_of(NIGHT, metric="loss", direction="minimize")
    assert chart.crashes == (3, 4)
    assert 0.1 not in [point.value for point in (*chart.keeps, *chart.discards)]


def test_words_of_kept_changes_are_short_and_cannot_steer_anything() -> None:
    last = chart_of(NIGHT, metric="loss", direction="minimize").keeps[-1]
    assert len(last.text) <= LABEL_LENGTH
    assert last.text.startswith("more steps $x_{ and words")
    assert last.text.isprintable()


def test_a_new_segment_has_its_own_baseline() -> None:
    records = [*NIGHT, record(7, "keep", 0.7, "baseline", segment=1), record(8, "keep", 0.6, "x", segment=1)]
    chart = chart_of(records, metric="loss", direction="minimize")
    assert [(begin, value) for begin, _, value in chart.baselines] == [(0, 1.0), (7, 0.7)]
    assert chart.improvements == 3


def test_an_open_experiment_is_not_counted() -> None:
    assert chart_of([*NIGHT, {"experiment": 7, "status": None}], metric="m", direction="minimize").total == 7


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_chart_of_any_length_and_direction_is_drawn(tmp_path: Path, direction: str, count: int) -> None:
    target = tmp_path / "progress.png"
    draw(NIGHT[:count], target, metric="loss", direction=direction)
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("count", [10, 500])
def test_the_legend_hides_no_point_and_crosses_no_words(direction: str, count: int) -> None:
    chance, value = random.Random(count), 1.0
    records = [record(0, "keep", value, "baseline")]
    for number in range(1, count):
        status = chance.choice(["keep", "discard", "discard", "crash"])
        step = chance.random() * (-0.01 if direction == "minimize" else 0.01)
        value += step if status == "keep" else 0.0
        records.append(record(number, status, None if status == "crash" else value - step * 30, "halve the batch size"))
    figure = _figure(chart_of(records, metric="loss", direction=direction))
    axes = figure.axes[0]
    legend = axes.get_legend()
    assert legend is not None
    box, inside = legend.get_window_extent(), axes.get_window_extent()
    assert not box.overlaps(inside)
    assert not box.overlaps(axes.xaxis.label.get_window_extent())
    assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y0 >= figure.bbox.y0
    assert not any(box.overlaps(text.get_window_extent()) for text in axes.texts)


@pytest.mark.parametrize("metric", ["loss", "a_metric_whose_name_tells_all_of_how_it_is_measured_" * 4])
@pytest.mark.parametrize("scale", [1.0, 6e6, 1e-4])
def test_the_name_of_the_metric_is_cut_neither_by_the_edge_nor_by_the_figures(metric: str, scale: float) -> None:
    records = [record(0, "keep", 1.23457 * scale, "baseline"), record(1, "keep", 1.13457 * scale, "x")]
    figure = _figure(chart_of(records, metric=metric, direction="minimize"))
    axes = figure.axes[0]
    name = axes.yaxis.label.get_window_extent()
    assert figure.bbox.x0 <= name.x0 and figure.bbox.y0 <= name.y0 and name.y1 <= figure.bbox.y1
    assert not any(name.overlaps(label.get_window_extent()) for label in axes.get_yticklabels())


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_words_of_a_keep_at_the_very_end_have_room_within_the_figure(direction: str) -> None:
    """The latest best is what a reader looks for: its words were cut at twenty characters, or by the edge."""
    step, words = (-0.1 if direction == "minimize" else 0.1), "replace two layers of 64 by three of 48 units"
    records = [record(0, "keep", 1.0, "baseline"), *(record(n, "discard", 1.0, words) for n in range(1, 12))]
    records.append(record(12, "keep", 1.0 + step, words))
    figure = _figure(chart_of(records, metric="loss", direction=direction))
    shown = [text for text in figure.axes[0].texts if text.get_text() == words]
    assert len(words) == LABEL_LENGTH and len(shown) == 1, [text.get_text() for text in figure.axes[0].texts]
    assert all(box.x1 <= figure.bbox.x1 for box in (text.get_window_extent() for text in shown))


def test_ten_thousand_experiments_are_drawn(tmp_path: Path) -> None:
    chance = random.Random(3)
    records, best = [record(0, "keep", 2.0, "baseline")], 2.0
    for number in range(1, 10_000):
        kept = chance.random() < 0.01
        best -= 0.001 if kept else 0.0
        records.append(record(number, "keep" if kept else "discard", best + (0 if kept else chance.random()), "change"))
    target = tmp_path / "progress.svg"
    draw(records, target, metric="loss", direction="minimize")
    assert "Autoresearch Progress: 9,999 Experiments" in target.read_text("utf-8")


@pytest.mark.parametrize("values", [[0.0, 0.0], [1e-9, 0.9e-9], [-3.0, -4.0], [1e12, 0.9e12]])
def test_values_of_any_size_have_limits_around_them(values: list[float]) -> None:
    records = [record(i, "keep", value, "x") for i, value in enumerate(values)]
    low, high = axis_limits(chart_of(records, metric="loss", direction="minimize"))
    assert low < min(values) <= max(values) < high


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        draw([], tmp_path / "progress.png", metric="loss", direction="minimize")


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chart is a"):
        draw(NIGHT, tmp_path / "progress.txt", metric="loss", direction="minimize")
