"""The progress chart: what a person sees of a night's work."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.domain.errors import UsageError
from autoresearchd.report.charts import line_of
from autoresearchd.report.plot import LABEL_LENGTH, Step, chart_of, draw


def record(
    number: int, status: str, metric: float | None, description: str = "", segment: int = 0, **more: Any
) -> dict[str, Any]:
    facts = {"experiment": number, "status": status, "metric": metric, "segment": segment, "confirmed": None}
    return {**facts, "description": description, **more}


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


TESTED = [
    record(0, "keep", 1.0, "baseline", confirmed=True),
    record(1, "keep", 0.9, "a", confirmed=True),
    record(2, "keep", 0.85, "b", confirmed=True),
    record(3, "discard", 1.2),
    record(4, "keep", 0.6, "c", confirmed=False),
    record(5, "keep", 0.75, "d"),
]
TESTS: list[dict[str, Any]] = [
    {"experiment": 2, "against": 0, "after": 3, "outcome": "confirmed", "moved": True, "value": 0.87},
    {"experiment": 4, "against": 2, "after": 4, "outcome": "fell", "moved": True, "value": 0.9},
    {"experiment": 5, "against": 0, "after": 5, "outcome": "confirmed", "moved": False, "value": 0.1},
]
BELIEFS = [
    (0.0, 1.0, 0.01), (1.0, 0.92, 0.02), (2.0, 0.88, 0.02), (3.0, 0.88, 0.02), (3.5, 0.87, 0.01), (4.0, 0.7, 0.2),
    (4.5, 0.87, 0.02), (5.0, 0.8, 0.03),
]  # fmt: skip


def test_the_lines_tell_what_is_confirmed_from_what_is_believed(tmp_path: Path) -> None:
    """The thick line has means of confirmations, never a lucky value; the thin one what the journal believed."""
    facts: dict[str, Any] = {"metric": "loss", "direction": "minimize", "confirmations": TESTS, "beliefs": BELIEFS}
    chart = chart_of(TESTED, **facts)
    assert chart.confirmed == ((Step(0, 1.0), Step(3.5, 0.87)),)
    assert chart.tips == (tuple(BELIEFS),)
    assert (len(chart.kept), chart.proven) == (4, 2)
    target = tmp_path / "progress.svg"
    draw(TESTED, target, **facts)
    drawn = target.read_text("utf-8")
    for words in ("4 Kept, 2 Confirmed", "Confirmed 0.87 (13.00% better)", "Tip, believed 0.8 ± 0.03",
                  "Kept and confirmed (2)", "Kept, not confirmed yet (1)", "Kept, fell back (1)"):  # fmt: skip
        assert words in drawn


def test_on_a_machine_that_gets_slower_the_gain_is_that_of_runs_side_by_side(tmp_path: Path) -> None:
    """As `status` tells it: beside a program at 1.1 the baseline, which was at 1.0 once, is at 1.3 by now."""
    records = [TESTED[0], TESTED[1], {**TESTED[2], "confirmed": True}]
    tests = [
        {"experiment": n, "against": n - 1, "after": n, "outcome": "confirmed", "moved": True, "value": v, "gain": g}
        for n, v, g in ((1, 1.05, 0.05), (2, 1.1, 0.15))
    ]
    target = tmp_path / "progress.svg"
    chart = draw(records, target, metric="loss", direction="minimize", confirmations=tests)
    assert chart.confirmed[0][-1] == Step(2.5, 1.1)
    line = line_of("slow", chart)
    assert line and line.steps[-1].value == pytest.approx(100 * 0.2 / 1.3)
    assert "Confirmed 1.1 (15.38% better)" in target.read_text("utf-8")


def test_a_mean_of_nothing_is_a_mean_and_another_segments_runs_are_none_of_it() -> None:
    run = {"of": None, "metric": 0.0, "label": ""}
    test = {
        "experiment": 1,
        "against": 0,
        "after": 1,
        "outcome": "confirmed",
        "moved": True,
        "value": 0.5,
        "runs": [run],
    }
    later = {
        **test,
        "experiment": 4,
        "against": 1,
        "segment": 1,
        "moved": False,
        "runs": [{**run, "of": 1, "metric": 9.0}],
    }
    chart = chart_of(TESTED[:2], metric="loss", direction="minimize", confirmations=[{**test, "segment": 0}, later])
    assert chart.confirmed[0][-1] == Step(1.5, 0.0)


def test_a_keep_confirmed_in_the_middle_of_a_chain_moves_the_thick_line_alone() -> None:
    """`confirm 1` with the tip at 2: the branch has 1, and what was kept on it stays open."""
    records = [TESTED[0], TESTED[1], {**TESTED[2], "confirmed": None}, TESTED[3]]
    test = {"experiment": 1, "against": 0, "after": 2, "outcome": "confirmed", "moved": True, "value": 0.91}
    beliefs = [*BELIEFS[:3], (2.5, 0.88, 0.02), (3.0, 0.87, 0.02)]
    chart = chart_of(records, metric="loss", direction="minimize", confirmations=[test], beliefs=beliefs)
    assert chart.confirmed == ((Step(0, 1.0), Step(2.5, 0.91)),)
    assert chart.tips == (tuple(beliefs),)


def test_the_confirmed_program_has_the_mean_of_all_its_runs_in_confirmations() -> None:
    """As `status` has it: the test that confirmed it ended at a lucky run."""
    runs = [{"of": of, "metric": metric, "label": ""} for of, metric in ((None, 0.8), (0, 1.0), (None, 0.84))]
    first = {
        "experiment": 1,
        "against": 0,
        "after": 1,
        "outcome": "confirmed",
        "moved": True,
        "value": 0.82,
        "runs": runs,
    }
    later = {"experiment": 2, "against": 1, "after": 3, "outcome": "fell", "moved": True, "value": 0.9}
    later["runs"] = [{"of": None, "metric": 0.9, "label": ""}, {"of": 1, "metric": 0.88, "label": ""}]
    ablation = {**first, "why": "ablation 1a2b", "moved": False, "runs": [{"of": None, "metric": 0.1, "label": ""}]}
    tests = [first, later, ablation]  # in which another program ran in its place
    chart = chart_of(TESTED[:4], metric="loss", direction="minimize", confirmations=tests)
    assert next(step for step in chart.confirmed[0] if step.at == 1.5).value == pytest.approx(0.84)


def test_in_an_imported_log_the_tip_has_the_value_that_it_was_kept_with() -> None:
    chart = chart_of(TESTED, metric="loss", direction="minimize", confirmations=TESTS)
    assert chart.tips == ((Step(0, 1.0), Step(1, 0.9), Step(2, 0.85), Step(5, 0.75)),)


def test_of_two_tests_without_an_experiment_between_the_later_has_the_last_word() -> None:
    """By their values the older and worse one came last."""
    keeps = [{**NIGHT[0]}, *({**NIGHT[0], "experiment": n, "status": "keep", "metric": 0.9} for n in (1, 2))]
    one = {**TESTS[0], "against": 0, "experiment": 1, "after": 2, "value": 0.9}
    tests = [one, {**one, "against": 1, "experiment": 2, "value": 0.88}]
    chart = chart_of(keeps, metric="loss", direction="minimize", confirmations=tests)
    assert [step.value for step in chart.confirmed[0]][-2:] == [0.9, 0.88]


def test_keeps_of_a_session_before_confirmations_are_drawn_as_they_were() -> None:
    records = [{**one, "confirmed": one["status"] == "keep" or None} for one in NIGHT]
    chart = chart_of(records, metric="loss", direction="minimize")
    assert (chart.confirmed, chart.tips) == (((Step(0, 1.0), Step(1, 0.9), Step(6, 0.8)),), ((),))
    assert chart.proven == 2


def test_words_of_kept_changes_are_short_and_cannot_steer_anything() -> None:
    last = chart_of(NIGHT, metric="loss", direction="minimize").keeps[-1]
    assert len(last.text) <= LABEL_LENGTH
    assert last.text.startswith("more steps $x_{ and words")
    assert last.text.isprintable()


def test_a_new_segment_has_its_own_baseline() -> None:
    records = [*NIGHT, record(7, "keep", 0.7, "baseline", segment=1), record(8, "keep", 0.6, "x", segment=1)]
    chart = chart_of(records, metric="loss", direction="minimize")
    assert [(begin, value) for begin, _, value in chart.baselines] == [(0, 1.0), (7, 0.7)]
    assert len(chart.kept) == 3


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
