"""Spend caps: they stop within one answer, say how to go on, and never fail in silence."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

import pytest

from autoresearchd.config.settings import Price
from autoresearchd.domain.errors import PolicyError, SpendCapReached
from autoresearchd.domain.proposal import Answer, Cost, Generation, Repair
from autoresearchd.models.spend import CapFallbackPolicy, Caps, WatchedAnswers, priced, total
from tests.fakes.models import MemoryAnswers
from tests.fakes.policies import ScriptedPolicy, Step, make_state

SPENT = SpendCapReached("the cap of $1.00 a day is reached", whole_session=False, hint="wait")


def caps(
    session: float = 0.0, day: float = 0.0, *, session_cap: float | None = None, day_cap: float | None = None
) -> Caps:
    return Caps(session_usd=lambda: session, day_usd=lambda: day, session_cap=session_cap, day_cap=day_cap)


def test_without_or_below_a_cap_everything_may_be_spent() -> None:
    caps(1e9, 1e9).check()
    caps(0.99, 4.99, session_cap=1.0, day_cap=5.0).check()
    assert not caps().capped


@pytest.mark.parametrize(
    ("purse", "whole", "words"),
    [
        (caps(2.5, session_cap=2.5), True, "$2.50 is reached: $2.50 spent|resume --max-cost"),
        (caps(sum([0.1] * 10), session_cap=1.0), True, "$1.00 is reached"),
        (caps(0, 20.004, session_cap=1.0, day_cap=20.0), False, "$20.00 a day|00:00 UTC|spend.per_day in config.yaml"),
    ],
)
def test_a_cap_that_is_reached_says_how_to_go_on(purse: Caps, whole: bool, words: str) -> None:
    with pytest.raises(SpendCapReached) as caught:
        purse.check()
    assert caught.value.whole_session is whole
    assert all(each in str(caught.value) for each in words.split("|"))


# ---------------------------------------------------------------------- prices that nobody knows
def test_a_cap_that_cannot_hold_is_told_once_for_each_model_with_the_way_to_hint_it() -> None:
    log, told = MemoryAnswers(), list[str]()
    watched = WatchedAnswers(log, caps(day_cap=5.0), told.append)
    for model, usd in (("some/model", 0.1), ("some/model", None), ("some/model", None), ("other/model", None)):
        watched.record(3, Answer(model, Cost(usd), Generation()))
    assert len(told) == 2
    assert "prices: {'some/model': {input: 3.0, output: 15.0}}" in told[0] and "cannot hold" in told[1]
    assert [number for number, _ in log.items] == [3, 3, 3, 3]


# ---------------------------------------------------------------------- going on without a model
def frugal(steps: Iterable[Step], search: ScriptedPolicy, told: list[str]) -> CapFallbackPolicy:
    return CapFallbackPolicy(ScriptedPolicy(steps, name="litellm:m", repairs=2), search, told.append)


def test_once_it_is_spent_the_search_goes_on_under_its_own_name_and_that_is_told_once() -> None:
    told: list[str] = []
    policy = frugal([SPENT, SPENT, "LR = 0.5\n"], ScriptedPolicy(["LR = 0.3\n", "LR = 0.4\n"], name="search"), told)
    proposals = [policy.propose(make_state("LR = 0.1\n"), threading.Event()) for _ in range(3)]
    assert [proposal.policy for proposal in proposals] == ["search", "search", "litellm:m"]
    assert policy.name == "litellm:m"
    assert told == ["the cap of $1.00 a day is reached; search goes on without a model", "litellm:m proposes again"]


def test_the_models_own_failed_edit_is_not_fixed_by_a_search() -> None:
    repair = Repair(1, {"train.py": "LR = 0.2 +\n"}, "error", "SyntaxError: invalid syntax")
    search = ScriptedPolicy(["LR = 0.3\n"], name="search")
    with pytest.raises(PolicyError, match="not repaired: the cap"):
        frugal([SPENT], search, []).propose(make_state("LR = 0.1\n", repair=repair), threading.Event())
    assert search.used == 0


# ---------------------------------------------------------------------- prices
TABLE = {"anthropic/claude-x": Price(input=3.0, output=15.0)}
CALL = Cost(usd=9.99, tokens_in=1_000_000, tokens_out=200_000, seconds=2.0)


@pytest.mark.parametrize(
    ("told", "table", "model", "usd"),
    [
        (CALL, TABLE, "anthropic/claude-x", 6.0),
        (CALL, TABLE, "openai/gpt-x", 9.99),
        (CALL, {"azure/claude-x": Price(input=1.0, output=0.0)}, "anthropic/claude-x", 9.99),
        (Cost(usd=None, tokens_in=5), {}, "mine", None),
        (Cost(usd=None), TABLE, "anthropic/claude-x", None),
        (Cost(usd=0.5), TABLE, "anthropic/claude-x", 0.5),
        (Cost(usd=None), {"mine": Price(input=0, output=0)}, "mine", 0.0),
        (Cost(usd=-1.0, tokens_in=-5), {}, "m", None),
        (Cost(usd=math.nan), {}, "m", None),
        (Cost(usd=math.inf), {}, "m", None),
    ],
)
def test_the_users_price_stands_over_the_providers_and_what_nobody_knows_is_not_free(
    told: Cost, table: dict[str, Price], model: str, usd: float | None
) -> None:
    found = priced(told, table, model)
    assert found.usd == usd
    assert min(found.tokens_in, found.tokens_out) >= 0


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("litellm:anthropic/claude-x", ("anthropic/claude-x",)),
        ("claude-x", ("anthropic/claude-x",)),
        ("claude-x-0201", ("anthropic/claude-x", "claude-x-0201")),
        ("llama3:8b", ("ollama/llama3:8b",)),
        ("claude-x", ("openrouter/anthropic/claude-x",)),
    ],
)
def test_a_price_is_found_under_the_name_that_the_user_knows(written: str, asked: tuple[str, ...]) -> None:
    assert priced(CALL, {written: Price(input=1.0, output=0.0)}, *asked).usd == 1.0


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    known, unknown = Cost(0.25, 10, 1, 0.5), Cost(None, 5, 2, 0.25)
    assert total([known, known]) == Cost(0.5, 20, 2, 1.0)
    assert total([known, unknown, known]) == Cost(None, 25, 4, 1.25)
    assert total([]) == Cost()
