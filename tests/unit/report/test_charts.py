"""The charts of the page and the report: readable without sight, colour, script, and with ten thousand experiments."""

from __future__ import annotations

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autoresearchd.report.charts import (
    MOST_LINES,
    STYLE,
    Bar,
    Line,
    Span,
    bars,
    line_of,
    side_by_side,
    staircase,
    timeline,
)
from autoresearchd.report.plot import Chart, Point, Step, chart_of, draw

HOSTILE = '</title><script>alert(1)</script>"\x1b[31m & <img src=x onerror=alert(1)>'


def parsed(svg: str) -> ElementTree.Element:
    """The picture as XML, which holds nothing that runs or that a strict policy for content refuses."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        assert element.tag in {"svg", "title", "desc", "path", "text", "a"}, element.tag
        assert not [name for name in element.attrib if name.startswith("on") or name == "style"]
    for words in {w for element in root.iter() for w in element.get("class", "").split()} - {"chart"}:
        assert f".{words}" in STYLE, f"the class {words} has no colour"
    return root


def told(root: ElementTree.Element) -> str:
    return next(element.text or "" for element in root if element.tag == "desc")


def chart(count: int) -> Chart:
    rng, best = random.Random(1), 1.0
    keeps, beliefs = [Point(0, best)], []
    for number in range(1, count):
        if number % 40 == 0:
            best -= 0.001
            keeps.append(Point(number, best, HOSTILE, (True, None, False)[number // 40 % 3]))
        beliefs.append(Step(number, best, 0.002))
    values = [Point(n, best + abs(rng.gauss(0, 0.01))) for n in range(1, count) if n % 40]
    failed, aborted = tuple(range(7, count, 100)), tuple(range(3, count, 50))
    confirmed = (Step(0, 1.0), Step(count / 2, best))
    drawn = tuple(keeps), tuple(values), failed, ((0, count - 1, 1.0),), aborted
    return Chart(f"loss{HOSTILE}", True, count, *drawn, (confirmed,), (tuple(beliefs),), ((0, 0.9, 1.1),))


@pytest.mark.parametrize("width", [380, 960])
def test_ten_thousand_experiments_are_a_picture_that_stays_small_and_within_its_frame(width: int) -> None:
    svg = staircase(chart(10_000), name="progress", sigma=0.01, width=width, link=lambda n: f"/x?a=1&n={n}")
    root = parsed(svg)
    assert len(svg) < 250_000
    assert "9,999 experiments beside the baseline, 249 kept, 83 confirmed" in told(root)
    assert root.get("role") == "group", "what can be followed is not within a picture"
    assert root.get("aria-labelledby") == "progress-t progress-d"
    assert sum(element.tag == "a" for element in root) == 250  # each keep leads to its page
    for path in root.iter("path"):
        for x in re.findall(r"[MH](-?[\d.]+)", path.get("d", "")):
            assert 0 <= float(x) <= width


@pytest.mark.parametrize("width", [400, 1120])
def test_sessions_stand_on_one_axis_by_what_each_gained_over_its_own_baseline(width: int) -> None:
    up = Chart(
        "acc",
        False,
        5,
        (),
        (),
        (),
        ((0, 3, 50.0), (4, 9, 60.0)),
        (),
        ((Step(0, 50.0), Step(2.5, 55.0)), (Step(4, 63),)),
    )
    lower = line_of(HOSTILE, chart(10_000))
    higher = line_of("up", up)
    assert higher == Line("up", (Step(0, 0.0), Step(2.5, 10.0), Step(4, 5.0)), 0), "a segment has a baseline of its own"
    nothing = Chart("x", True, 1, (Point(0, 0.0),), (), (), ((0, 0, 0.0),), (), ((Step(0, 0.0),),))
    assert lower is not None and line_of("zero", nothing) is None
    wild = Chart("x", True, 1, (), (), (), ((0, 0, 1e-310),), (), ((Step(0, 1e-310), Step(1, -1.0)),))
    assert line_of("wild", wild) == Line("wild", (Step(0, 0.0),), 0), "an imported log could take the page down"
    flat = Line("flat", (Step(0, 0.0),), 0)
    svg = side_by_side([lower, higher, flat][:MOST_LINES], name="together", width=width)
    root = parsed(svg)
    assert "up: +5% after 0 experiments; flat: +0% after" in told(root) and len(svg) < 30_000
    for path in root.iter("path"):
        assert all(0 <= float(x) <= width for x in re.findall(r"[MH](-?[\d.]+)", path.get("d", "")))
    parsed(side_by_side([flat, flat], name="together"))


def test_an_experiment_that_was_ended_early_at_last_is_on_the_chart() -> None:
    records = [
        {"experiment": 0, "status": "keep", "metric": 1.0, "confirmed": True},
        {"experiment": 1, "status": "discard", "label": "aborted_early", "metric": None},
    ]
    assert chart_of(records, metric="loss", direction="minimize").last == 1
    assert "1 ended early" in told(parsed(staircase(chart_of(records, metric="m", direction="minimize"), name="p")))


@pytest.mark.parametrize(
    "values", [(1e16, 1e16 + 2), (1e-323, 5e-324), (5e-324, 0.0), (1e308, 1e308), (1.7e308, -1.7e308), (0.0, 0.0)]
)
def test_numbers_that_have_none_between_them_do_not_take_the_page_down(
    values: tuple[float, float], tmp_path: Path
) -> None:
    records = [
        {"experiment": n, "status": "keep", "metric": value, "confirmed": True} for n, value in enumerate(values)
    ]
    for direction in ("minimize", "maximize"):
        found = chart_of(records, metric="m", direction=direction)
        parsed(staircase(found, name="p"))
        line = line_of("wild", found)
        parsed(side_by_side([line, line], name="s")) if line else None
        if max(values) < 1e300:  # beyond that Matplotlib gives up
            draw(records, tmp_path / "p.png", metric="m", direction=direction)


def test_the_noise_of_now_is_drawn_around_the_last_segment_alone() -> None:
    records = [
        {"experiment": n, "segment": n // 2, "status": "keep", "metric": 1.0 + n, "confirmed": True} for n in range(4)
    ]
    svg = staircase(chart_of(records, metric="m", direction="minimize"), name="p", sigma=0.1)
    assert [p.get("class") for p in parsed(svg).iter("path")].count("ok thick band") == 1


def test_runs_of_a_repeated_experiment_are_told_and_those_of_another_program_are_not() -> None:
    runs = [{"metric": value, "label": "", "of": of} for value, of in ((1.0, None), (1.2, None), (3.0, 7))]
    record = {"experiment": 8, "status": "discard", "label": "no_gain", "metric": 1.1, "runs": runs}
    assert chart_of([record], metric="m", direction="minimize").repeats == ((8, 1.0, 1.2),)


def test_the_slots_show_what_ran_what_was_cut_short_and_what_was_refused() -> None:
    spans = [
        Span(HOSTILE, i * 40.0, i * 40.0 + 30, ("run", "aborted", "failed", "confirmation")[i % 4]) for i in range(5000)
    ]
    svg = timeline(spans, [10.0, 70.0], name="slots", until=200_000)
    assert len(svg) < 60_000 and "Refused before it ran (2)" in svg
    assert {"tip lane", "abort lane", "fail lane", "ok lane"} <= {p.get("class") for p in parsed(svg).iter("path")}
    parsed(timeline([], [], name="nothing", until=0.0))


@pytest.mark.parametrize("rows", [[], [Bar(HOSTILE, 0.0)], [Bar("a", 2.0, 0.5, "9 tries"), Bar("b", -1.0, 0.2)]])
def test_bars_of_any_sign_are_drawn_with_their_figures(rows: list[Bar]) -> None:
    root = parsed(bars(rows, name="b", title="Importance"))
    assert all(f"{row.value:.3g}" in told(root) for row in rows)
