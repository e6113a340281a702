"""The foreground display: lines without a terminal, a live picture with one, and never a reason to fail."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from autoresearchd.cli.display import LiveDisplay, Picture, PlainDisplay, draw, foreground_sink
from autoresearchd.domain.events import Event, EventKind

AT = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)
HOSTILE = "a [red]b[/red] \x1b[31mc\x1b]0;owned\x07 [link=http://evil]d"


def event(kind: EventKind, message: str = "", experiment: int | None = None, **data: Any) -> Event:
    return Event(kind, AT, message, experiment, data)


def decided(number: int, status: str, value: float | None, description: str = "", **data: Any) -> Event:
    return event(
        EventKind.DECIDED,
        f"{status}: {value}",
        number,
        status=status,
        label="",
        value=value,
        description=description,
        **data,
    )


NIGHT = [
    (0.0, event(EventKind.SESSION_STARTED, "begins", tag="mar8", task="autoresearch", metric="val_bpb",
                direction="minimize", policy="search", tier="bubblewrap", source="self-reported", branch="b")),
    (1.0, event(EventKind.OPENED, "baseline", 0, parent="x")),
    (2.0, event(EventKind.RUN_STARTED, "run", 0, run=1, runs=3, seed=1, budget_s=300.0, wall_s=660.0)),
    (400.0, event(EventKind.RUN_FINISHED, "run", 0, label="", value=1.0)),
    (401.0, decided(0, "keep", 1.0, "baseline", best=1.0, baseline=1.0, sigma=0.001, experiments=0, keeps=0,
                    max_experiments=8)),
    (402.0, event(EventKind.OPENED, "next", 1)),
    (403.0, event(EventKind.PROPOSED, "p", 1, description=HOSTILE)),
    (404.0, event(EventKind.COMMITTED, "c", 1, commit="abc")),
    (405.0, event(EventKind.RUN_STARTED, "run", 1, run=0, runs=1, seed=1, budget_s=300.0)),
    (800.0, event(EventKind.RUN_FINISHED, "run", 1)),
    (802.0, decided(1, "keep", 0.98, HOSTILE, best=0.98, baseline=1.0, sigma=0.001, experiments=1, keeps=1,
                    max_experiments=8)),
    (802.0, event(EventKind.OPENED, "next", 2)),
    (803.0, event(EventKind.RUN_STARTED, "run", 2, run=0, runs=1, budget_s=300.0)),
]  # fmt: skip


def picture_at(now: float) -> Picture:
    picture = Picture()
    for at, happened in NIGHT:
        if at <= now:
            picture.apply(happened, at)
    return picture


def shown(picture: Picture, now: float, columns: int = 100) -> str:
    stream = io.StringIO()
    Console(file=stream, width=columns, force_terminal=False).print(draw(picture, now, columns))
    return stream.getvalue()


def test_the_picture_shows_what_runs_how_long_and_how_good_it_is() -> None:
    text = shown(picture_at(903.0), 903.0)
    for words in (
        "autoresearch · mar8 · policy search · bubblewrap", "#2  running", "3m 20s left of 5m 00s",
        "val_bpb 0.980000  2.00% better, 20.0σ", "self-reported", "to end after 8", "about", "keep", "0.980000",
    ):  # fmt: skip
        assert words in text


def test_before_the_baseline_there_is_a_picture_too() -> None:
    text = shown(picture_at(100.0), 100.0)
    assert "baseline  running  run 2 of 3" in text
    assert "measuring the baseline" in text


def test_the_time_to_go_follows_from_the_pace_so_far() -> None:
    assert picture_at(802.0).eta(802.0) == pytest.approx(7 * 400.0)
    assert picture_at(401.0).eta(401.0) is None


def test_beyond_its_budget_a_run_is_said_to_be_finishing() -> None:
    assert "budget spent, finishing" in shown(picture_at(803.0), 1200.0)


def test_a_description_cannot_style_the_picture_or_steer_the_terminal() -> None:
    text = shown(picture_at(802.0), 802.0, 140)
    assert "a [red]b[/red] c [link=http://evil]d" in text
    assert "\x1b" not in text


def test_a_narrow_terminal_is_no_problem() -> None:
    assert max(len(line) for line in shown(picture_at(903.0), 903.0, 60).splitlines()) <= 60


def night_of_long_labels() -> Picture:
    """Experiments with all that a row can hold."""
    picture = picture_at(401.0)
    for number in range(97, 108):
        happened = decided(
            number, "checks_failed", 1234.5678, "WINDOW 'SSSSSL' → 'SL' and much more of it " * 3, delta=-0.123456
        )
        picture.apply(event(happened.kind, "", number, **{**happened.data, "label": "metric_tampering"}), 402.0)
    return picture


def test_in_eighty_columns_numbers_and_labels_stay_whole_and_only_descriptions_are_cut() -> None:
    lines = shown(night_of_long_labels(), 500.0, 80).splitlines()
    head = next(i for i, line in enumerate(lines) if "status" in line and "description" in line)
    assert lines[head].split() == ["#", "status", "label", "metric", "delta", "description"]
    rows = [line for line in lines[head + 1 :] if line]
    assert len(rows) == 10
    for number, row in enumerate(rows, 98):
        assert row.split()[:5] == [str(number), "checks_failed", "metric_tampering", "1234.568", "-0.123456"]
        assert row.endswith("…")
        assert len(row) <= 80


def test_what_does_not_fit_beside_the_best_stands_below_it_in_line() -> None:
    assert "  self-reported" in shown(picture_at(802.0), 802.0, 100)
    assert "\n         self-reported\n" in shown(picture_at(802.0), 802.0, 76)


def test_before_anything_is_known_nothing_is_said_of_a_baseline() -> None:
    assert "baseline" not in shown(picture_at(0.0), 0.5)


def test_the_best_is_the_value_it_was_kept_with_however_often_it_runs_again() -> None:
    picture = picture_at(802.0)
    picture.apply(decided(2, "discard", 1.1, best=0.975, baseline=1.0, experiments=2, keeps=1), 900.0)
    assert "val_bpb 0.980000" in shown(picture, 900.0)
    picture.apply(decided(3, "keep", 0.97, best=0.974, baseline=1.0, experiments=3, keeps=2), 950.0)
    assert "val_bpb 0.970000" in shown(picture, 950.0)


def test_the_best_is_the_one_before_where_it_lost_its_place() -> None:
    picture = picture_at(802.0)
    picture.apply(decided(2, "discard", 1.1, best=0.995, baseline=1.0, experiments=2, keeps=0, fallen=[1]), 900.0)
    assert "val_bpb 0.995000" in shown(picture, 900.0)


def test_a_baseline_that_ran_again_is_no_gain_over_itself() -> None:
    picture = picture_at(401.0)
    picture.apply(decided(1, "discard", 1.1, best=0.99, baseline=1.0, experiments=1, keeps=0), 500.0)
    assert "no better yet" in shown(picture, 500.0)


def test_the_set_up_is_shown_with_how_long_it_takes() -> None:
    picture = picture_at(0.0)
    picture.apply(event(EventKind.SETUP, "set-up: python prepare.py"), 5.0)
    picture.apply(event(EventKind.WARNING, "the disk is small"), 20.0)
    text = shown(picture, 39.0)
    assert "now    set-up: python prepare.py (34s)" in text
    assert "measuring the baseline" not in text
    picture.apply(event(EventKind.OPENED, "baseline", 0), 70.0)
    assert "set-up" not in shown(picture, 71.0)
    assert "measuring the baseline" in shown(picture, 71.0)


def test_a_long_set_up_command_leaves_room_for_how_long_it_takes() -> None:
    picture = picture_at(0.0)
    picture.apply(event(EventKind.SETUP, "set-up: python prepare.py " + "--shards 10 " * 20), 5.0)
    line = next(line for line in shown(picture, 39.0, 80).splitlines() if "now" in line)
    assert line.endswith("… (34s)")
    assert len(line) <= 80


def test_while_a_learner_is_waited_for_that_is_what_is_shown_and_neither_a_set_up_nor_an_experiment() -> None:
    picture = picture_at(802.0)
    picture.apply(event(EventKind.SETUP, "set-up: python prepare.py"), 803.0)
    picture.apply(event(EventKind.WAITING, "experiments wait: a learner, process 7, is at work"), 804.0)
    picture.apply(event(EventKind.HOUSEKEEPING, "packed git in 1s"), 805.0)
    (now,) = [line for line in shown(picture, 838.0).splitlines() if line.startswith("  now")]
    assert now == "  now    experiments wait: a learner, process 7, is at work (34s)"
    assert "set-up" not in shown(picture, 838.0)
    picture.apply(event(EventKind.OPENED, "next", 2), 840.0)
    assert "#2  proposing" in shown(picture, 841.0)
    assert "a learner" not in shown(picture, 841.0)


def test_when_it_has_ended_nothing_is_said_to_happen_now() -> None:
    picture = picture_at(903.0)
    picture.apply(event(EventKind.SESSION_STOPPED, "stopped: 2 experiments done, as asked", state="stopped"), 904.0)
    text = shown(picture, 904.0)
    assert "now" not in text
    assert "stopped: 2 experiments done, as asked" in text


@pytest.mark.parametrize(("state", "raised"), [("crashed", None), ("stopped", True)])
def test_why_a_session_ended_by_an_error_is_left_to_the_command_to_say_once(state: str, raised: bool | None) -> None:
    ended = event(EventKind.SESSION_STOPPED, f"{state}: the baseline gave no loss", state=state, raised=raised)
    stream = io.StringIO()
    PlainDisplay(stream).emit(ended)
    assert stream.getvalue().split(None, 1)[1] == f"{state}\n"
    picture = picture_at(100.0)
    picture.apply(ended, 101.0)
    assert "gave no loss" not in shown(picture, 101.0)


STOOD = {"metric": {"best": 0.91, "baseline": 1.0, "sigma": 0.01}, "session": {"experiments": 7, "keeps": 2}}


def test_a_session_that_is_gone_on_with_shows_at_once_how_it_stands() -> None:
    stream = io.StringIO()
    with LiveDisplay(Console(file=stream, width=100), known=lambda tag: STOOD if tag == "mar8" else {}) as display:
        display.emit(event(EventKind.SESSION_RESUMED, "again", tag="mar8", metric="val_bpb", direction="minimize"))
    text = stream.getvalue()
    assert "val_bpb 0.910000  9.00% better, 9.0σ" in text
    assert "tried  7, 2 kept" in text
    assert "baseline is measured" not in text


@given(
    st.dictionaries(st.sampled_from(["metric", "session"]), st.one_of(st.none(), st.just(STOOD["metric"]), st.text()))
)
def test_a_journal_that_says_little_is_no_problem(status: dict[str, Any]) -> None:
    picture = Picture()
    picture.know(status)
    shown(picture, 0.0)


numbers = st.one_of(st.integers(), st.floats(), st.just(10**400))
NAMES = [
    "run",
    "runs",
    "budget_s",
    "status",
    "label",
    "value",
    "delta",
    "best",
    "baseline",
    "sigma",
    "task",
    "experiments",
    "keeps",
    "max_experiments",
    "description",
    "hypothesis",
    "direction",
]
anything = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=20), st.lists(st.integers(), max_size=2))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(EventKind)),
            st.text(max_size=20),
            st.one_of(st.none(), st.integers(0, 20)),
            st.dictionaries(
                st.sampled_from(
                    [*NAMES]
                ),
                anything,
            ),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_no_event_can_break_the_picture(drawn: list[tuple[EventKind, str, int | None, dict[str, Any]]]) -> None:
    picture = Picture()
    for second, (kind, message, number, data) in enumerate(drawn):
        picture.apply(Event(kind, AT, message, number, data), float(second))
        shown(picture, second + 0.5)


def test_without_a_terminal_each_event_is_a_plain_line() -> None:
    stream = io.StringIO()
    with foreground_sink(stream=stream) as sink:
        assert isinstance(sink, PlainDisplay)
        for _, happened in NIGHT[:3]:
            sink.emit(happened)
        sink.emit(event(EventKind.WARNING, HOSTILE))
    lines = [line.split("  ", 1)[1] for line in stream.getvalue().splitlines()]
    assert lines == ["begins", "#0    run", "warning: a [red]b[/red] c [link=http://evil]d"]


def test_a_reader_that_went_away_does_not_end_the_research() -> None:
    stream = io.StringIO()
    stream.close()
    PlainDisplay(stream).emit(event(EventKind.WARNING, "nobody reads this"))


def test_the_live_display_draws_and_leaves_the_last_picture() -> None:
    stream = io.StringIO()
    with LiveDisplay(Console(file=stream, width=100, force_terminal=True)) as display:
        for _, happened in NIGHT:
            display.emit(happened)
        display.emit(event(EventKind.FAULT, "the disk is full"))
    text = stream.getvalue()
    assert "fault: the disk is full" in text
    assert "running" in text
