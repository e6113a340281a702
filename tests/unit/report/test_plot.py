"""The progress chart: what a person sees of a night's work."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.report.plot import LABEL_LENGTH, chart_of, draw


def record(number: int, status: str, metric: float | None, description: str = "", segment: int = 0) -> dict[str, Any]:
    facts = {"experiment": number, "status": status, "metric": metric, "segment": segment}
    return {**facts, "description": description}


NIGHT = [
    record(0, "keep", 1.0, "baseline"),
    record(1, "keep", 0.9, "halve the batch"),
    record(2, "discard", 5.0, "a wild one"),
    record(3, "crash", None, "out of memory"),
    record(4, "checks_failed", 0.1, "a cheat"),
    record(5, "discard", 0.95, "no gain"),
    record(6, "keep", 0.8, "more\x1b[31m steps $x_{ " + "and words " * 20),
]


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


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("count", [1, 7])
def test_a_chart_of_any_length_and_direction_is_drawn(tmp_path: Path, direction: str, count: int) -> None:
    target = tmp_path / "progress.png"
    draw(NIGHT[:count], target, metric="loss", direction=direction)
    assert target.read_bytes().startswith(b"\x89PNG")


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


@pytest.mark.parametrize(
    ("records", "name", "words"), [([], "a.png", "nothing to draw"), (NIGHT, "a.txt", "chart is a")]
)
def test_what_cannot_be_drawn_is_said(tmp_path: Path, records: list[dict[str, Any]], name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        draw(records, tmp_path / name, metric="loss", direction="minimize")
