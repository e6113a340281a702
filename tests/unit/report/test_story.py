"""What a session tells, on made-up sessions in which the truth is known."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from autoresearchd.domain.labels import Label
from autoresearchd.evaluator.re_added import Back
from autoresearchd.report import story
from autoresearchd.report.story import Gain
from autoresearchd.store.story_reader import Edit, SlotRun

START = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)


def record(number: int, status: str = "discard", metric: float | None = None, **more: Any) -> dict[str, Any]:
    base = {"experiment": number, "segment": 0, "status": status, "label": "", "metric": metric, "confirmed": None}
    return base | {"commit": f"c{number}", "parent": "c0", "runs": [], "cost_usd": 0.0, "policy": "search"} | more


def edit(number: int, hypothesis: str = "", changes: dict[str, Any] | None = None, diff: str = "") -> Edit:
    return Edit(number, hypothesis, changes or {}, diff, 0.0)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_constants_that_matter_are_found_and_those_that_do_not_are_not(direction: str) -> None:
    rng, truth, sigma = random.Random(3), {"A": 0.10, "B": 0.03, "C": 0.0, "D": 0.0}, 0.01
    records, edits = [record(0, "keep", 1.0)], [edit(0)]
    for number in range(1, 400):
        names = rng.sample(sorted(truth), rng.choice((1, 2)))
        moves = sum(truth[name] * rng.choice((-1, 1)) for name in names)
        records.append(record(number, metric=1.0 + moves + rng.gauss(0, sigma)))
        edits.append(edit(number, changes={f"train.py:{name}": number for name in names}))
    records[9] |= {"metric": 1e9 if direction == "minimize" else -1e9}  # one broken program is not all there is to tell
    found = {c.name[-1]: c for c in story.importance(records, edits, direction, sigma=sigma, beliefs=[(0, 1.0, 0.0)])}
    assert [c.name[-1] for c in story.importance(records, edits, direction, sigma=sigma)][:2] == ["A", "B"]
    for name, moved in truth.items():
        assert abs(found[name].moved.value - moved) < max(3 * found[name].moved.error, 0.02), found[name]
    assert found["A"].moved.error < 0.02 and found["A"].tries > 50


def test_the_confirmed_gain_is_shared_between_structure_and_constants() -> None:
    records = [
        record(0, "keep", 1.0, confirmed=True),
        record(1, "keep", 0.9, confirmed=True, delta=0.03),
        record(2, "keep", 0.8, confirmed=True, delta=0.01),
        record(3, "keep", 0.5, confirmed=False, delta=0.4),  # it fell back: it brought nothing
        record(4, "keep", 0.4, delta=0.4),  # nobody knows yet
    ]
    test = {
        "experiment": 2,
        "against": 0,
        "after": 2,
        "moved": True,
        "outcome": "confirmed",
        "gain": 0.2,
        "error": 0.04,
    }
    edits = [edit(1, changes={"LR": 1}), edit(2, diff="+gate"), edit(3, changes={"LR": 2})]
    credit = story.credits(records, [test, {**test, "outcome": "fell", "moved": False}], "minimize")
    shares = story.shares(credit, edits)
    assert credit.keys() == {1, 2}
    assert (shares.tuning, shares.structure, shares.unknown) == (
        pytest.approx(Gain(0.15, 0.03)), pytest.approx(Gain(0.05, 0.01)), Gain(),
    )  # fmt: skip
    (step,) = story.held(records, [test])
    assert [keep["experiment"] for keep in step.keeps] == [1, 2]
    (worker,) = story.workers(records, edits, credit)
    assert worker.gain.error == pytest.approx(0.04)  # what the test had as a whole
    assert (worker.tried, worker.keeps, worker.confirmed) == (4, 4, 2) and worker.gain.value == pytest.approx(0.2)


def test_who_was_asked_and_passed_has_cost_what_it_has_and_brought_nothing() -> None:
    passed = {"asi": {"passed_by": "local:m"}, "cost_usd": 0.5, "runs": [{"duration_s": 3600.0}]}
    records = [record(0, "keep", 1.0), record(1, "keep", 0.9), record(2, **passed), record(3, policy="local:m")]
    edits = [edit(n)._replace(seconds=7200.0) for n in range(4)]
    found = {w.policy: w for w in story.workers(records, edits, {})}
    assert (found["search"].tried, found["search"].hours, found["search"].usd) == (2, 3.0, 0.0)
    assert (found["local:m"].tried, found["local:m"].hours, found["local:m"].usd) == (1, 4.0, 0.5)


def test_an_edit_is_measured_against_the_tip_as_believed_only_where_it_was_made_on_it() -> None:
    changes, sigma = {"train.py:LR": 1}, 0.001
    records = [
        record(0, "keep", 1.0),
        record(1, "keep", 0.5, confirmed=False),  # lucky
        record(2, metric=0.9, parent="c0"),  # a slot was slow: made on the baseline, while the tip was 1
        record(3, metric=0.9, parent="c0"),  # after 1 fell back
        record(4, label="aborted_early", delta=-0.2, metrics={"forecast_low": 1.0, "forecast_high": 1.329}),
    ]
    beliefs = [(0, 1.02, 0.01), (1, 0.95, 0.03), (1.5, 1.01, 0.01)]
    gains = story._gains(records, dict.fromkeys((2, 3, 4), changes), "minimize", beliefs)
    standing = [{**r, "confirmed": None} if r["experiment"] == 1 else r for r in records]
    assert story._gains(standing, {2: changes}, "minimize", beliefs) == {2: (pytest.approx(0.1), 0.0)}
    assert gains[3] == (pytest.approx(0.11), 0.01) and gains[4] == (-0.2, pytest.approx(0.1))
    assert story.importance(records, [edit(4, changes=changes)], "minimize", sigma=sigma)[0].moved.value < 0.2


def test_a_baseline_that_failed_at_first_does_not_make_the_next_one_an_improvement() -> None:
    """On the new machine it ran out of memory once; nobody proposed what was measured then."""
    records = [
        record(0, "keep", 1.0, confirmed=True, policy="baseline"),
        record(1, "crash", segment=1, policy="baseline"),
        record(2, "keep", 2.0, segment=1, confirmed=True, policy="baseline"),
        record(3, segment=1),
    ]
    assert story.baselines(records) == {0, 1, 2}
    assert story.held(records, []) == []
    assert [(worker.policy, worker.tried) for worker in story.workers(records, [], {})] == [("search", 1)]
    imported = [{**r, "policy": "imported"} for r in (record(0, "crash"), record(1, "keep", 1.0, confirmed=True))]
    assert story.baselines(imported) == {1} and story.held(imported, []) == []


def test_figures_of_two_segments_are_not_added_up() -> None:
    records = [record(0, "keep", 1.0), record(1), record(2, "keep", 50.0, segment=1), record(3, segment=1)]
    assert [r["experiment"] for r in story.comparable([*records, record(4, None, segment=2)])] == [2, 3]
    assert story.comparable([]) == []


def test_constants_of_two_files_with_the_same_name_keep_their_file() -> None:
    names = ["train.py:LR", "model.py:LR", "train.py:WIDTH", "DEPTH"]
    assert [story.short_names(names)[name] for name in names] == ["train.py:LR", "model.py:LR", "WIDTH", "DEPTH"]


def test_ideas_that_come_again_in_other_words_are_one_theme() -> None:
    words = [
        "Use a residual gate in the attention layers, since gradients vanish",
        "use a residual gate in attention layers since the gradients vanish!",
        "A residual gate in the attention layers: gradients vanish (try 3)",
        "Halve the batch for more steps in five minutes",
    ]
    records = [
        record(0, "keep", 1.0),
        *(record(n, metric=1.0) for n in range(1, 7)),
        record(7, metric=None, status=None),
    ]
    edits = [edit(n, text) for n, text in enumerate(words, 1)]
    edits += [edit(5, changes={"train.py:LR": 1}), edit(6, changes={"train.py:LR": 2}), edit(7, words[0])]
    assert [(theme.numbers, theme.words) for theme in story.themes(records, edits)] == [
        ((1, 2, 3), words[0]), ((5, 6), "set LR"),
    ]  # fmt: skip


def test_a_line_that_an_earlier_keep_removed_is_told_when_it_comes_back() -> None:
    records = [
        record(1, "keep", 1.0), record(2, "keep", 1.0, confirmed=False), record(3), record(4, "keep", 1.0), record(5),
    ]  # fmt: skip
    edits = [
        edit(1, diff="--- a/t.py\n+++ b/t.py\n-x = slow_norm(x)\n+x = fast_norm(x)\n"),
        edit(2, diff="-y = other(x, 1)\n"),  # it fell back: nobody said that this line is bad
        edit(3, diff="+y = other(x, 1)\n"),
        edit(4, diff="+    x = slow_norm(x)\n"),
        edit(5, diff="+    x = slow_norm(x)\n"),  # after 4 the line is there by decision
    ]
    found = [one for one in story.re_added(records, edits) if one.back.lines]
    assert found == [(4, "search", True, Back(1, {"x = slow_norm(x)": 1}))]
    records[3] |= {"policy": "local:m"}
    assert story.returned(story.re_added(records, edits)) == [
        ("local:m", 1, 1, 0), ("search", 3, 0, 0), ("all", 4, 1, 0),
    ]  # fmt: skip
    assert story.returned(story.re_added(records[:3], edits[:3])) == []


def test_what_failed_is_told_by_class_with_its_most_frequent_reason() -> None:
    records = [
        record(0, "keep", 1.0),
        *(record(n, "crash", label="oom") for n in (1, 2, 3)),
        record(4, label="no_gain"),
    ]
    reasons = {1: "tried to allocate 20.5 GB", 2: "tried to allocate 7 GB", 3: "out of memory\x1b[31m", 4: ""}
    first, second = story.failures(records, reasons)
    assert (first.label, first.numbers) == ("oom", (1, 2, 3)) and first.reasons[0] == ("tried to allocate … GB", 2)
    assert (second.label, second.reasons) == ("no_gain", ())


def test_runs_that_overlap_have_lanes_of_their_own_and_idle_time_is_not_busy() -> None:
    def run(number: int, start: int, end: int | None, label: Label = Label.NONE, attempt: int = 0) -> SlotRun:
        until = None if end is None else START + timedelta(seconds=end)
        return SlotRun(number, attempt, START + timedelta(seconds=start), until, label, "local", "cpu")

    runs = [run(0, 0, 100), run(1, 50, 100), run(2, 100, 150, Label.ABORTED_EARLY), run(2, 150, None, attempt=-1)]
    refused = [record(3, label="duplicate", finished_at=(START + timedelta(seconds=70)).isoformat())]
    slots = story.slots(runs, refused, START, START + timedelta(seconds=200))
    assert len({span.lane for span in slots.spans}) == 2
    assert {span.kind for span in slots.spans} == {"run", "aborted", "confirmation"}
    assert (slots.length, slots.refused, slots.busy) == (200.0, (70.0,), pytest.approx(250 / 400))


def test_a_stop_of_days_is_no_time_at_work() -> None:
    hour, local = timedelta(hours=1), ("local", "cpu")
    times = [(0, 2), (74, 76)]
    runs = [SlotRun(n, 0, START + a * hour, START + b * hour, Label.NONE, *local) for n, (a, b) in enumerate(times)]
    slots = story.slots(runs, [], START, START + 90 * hour)
    assert (slots.at_work, slots.busy) == (4 * 3600.0, 1.0)
    assert slots.length == 76 * 3600.0, "of the picture, which shows the stop"


def test_a_session_of_which_nothing_is_known_has_a_story_without_figures() -> None:
    assert story.importance([], [], "minimize") == [] and story.themes([], []) == [] and story.workers([], [], {}) == []
    assert story.slots([], [], START, START).busy is None
