"""Limits, durations and numbers of things, as people write and read them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Limits, Reached, limit_reached
from autoresearchd.domain.quantities import counted, parse_duration

COUNTS = st.integers(0, 10**6)
AMOUNTS = st.floats(0.001, 10**6)


def reached(experiments: int | None = None, seconds: float | None = None, usd: float | None = None) -> Reached | None:
    return limit_reached(Limits(experiments, seconds, usd), experiments=3, seconds=7.0, usd=1.5)


def test_each_limit_is_said_in_its_own_words() -> None:
    assert reached() is None
    assert reached(4, 8.0, 2.0) is None
    assert reached(experiments=2) == ("3 experiments done, more than the 2 asked for", "--max-experiments 6")
    assert reached(experiments=3) == ("3 experiments done, as asked", "--max-experiments 6")
    alone = limit_reached(Limits(max_experiments=1), experiments=1, seconds=7.0, usd=1.5)
    assert alone == ("1 experiment done, as asked", "--max-experiments 2")
    assert reached(seconds=7.0) == ("the time limit of 7s is reached", "--max-time 14s")
    assert reached(usd=1.5) == ("the spend limit of 1.5 USD is reached", "--max-cost 3.00")
    cents = limit_reached(Limits(max_usd=0.002), experiments=0, seconds=0.0, usd=0.0021)
    assert cents is not None and cents.more == "--max-cost 0.01"


@given(limit=AMOUNTS, spent=AMOUNTS)
def test_the_time_that_is_offered_lets_it_go_on(limit: float, spent: float) -> None:
    found = limit_reached(Limits(max_seconds=limit), experiments=0, seconds=spent, usd=0.0)
    assert (found is not None) == (spent >= limit)
    if found is not None:
        assert parse_duration(found.more.removeprefix("--max-time ")) > spent


@given(limit=COUNTS, done=COUNTS)
def test_the_number_that_is_offered_lets_it_go_on(limit: int, done: int) -> None:
    found = limit_reached(Limits(max_experiments=limit), experiments=done, seconds=0.0, usd=0.0)
    assert (found is not None) == (done >= limit)
    if found is not None:
        assert int(found.more.removeprefix("--max-experiments ")) > done


@pytest.mark.parametrize("text", ["1" * 28 + "x", "1" * 5000 + "x", "1" * 5000 + " " * 5000 + "x", "1m" * 3000 + "x"])
def test_what_is_no_duration_is_refused_at_once_however_long_it_is(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)
    assert time.monotonic() - began < 5, "it took longer than anybody waits"


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1h30m", 5400), ("1h 30 m", 5400), (" 0.5H ", 1800)])
def test_what_people_write_is_a_duration(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "1.52.5", "0", "-5m", "5 minutes", "1e3", "3 600", "1 000s", "1h30", "2h 5"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "meant"), [("3 600", "mean 3600?"), ("1 000s", "mean 1000s?"), ("1h30", "'1h30'$")])
def test_a_number_with_spaces_is_named_as_it_was_meant(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=meant):
        parse_duration(text)


@pytest.mark.parametrize("text", ["300000h", "9" * 400 + "d", 1e12])
def test_a_duration_that_is_too_long_is_not_called_none(text: str | float) -> None:
    with pytest.raises(ValueError, match="less than 30 years"):
        parse_duration(text)


@pytest.mark.parametrize(("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (12345, "12,345 rows")])
def test_a_number_of_things_is_said_as_people_say_it(number: int, words: str) -> None:
    assert counted(number, "row") == words
    assert counted(number, "entry", "entries").endswith("entry" if number == 1 else "entries")
