"""A session that ended at its limit tells the option that takes it further, and that option is taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Limits, Reached, limit_reached
from autoresearchd.domain.quantities import parse_duration

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
