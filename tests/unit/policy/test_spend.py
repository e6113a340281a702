"""Spend caps: they stop within one answer, say how to go on, and never fail in silence."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest

from autoresearchd.domain.errors import PolicyError, SpendCapReached
from autoresearchd.domain.model_settings import Price
from autoresearchd.domain.ports import Cancel, ResearchState
from autoresearchd.domain.proposal import Answer, Cost, Generation, Proposal, Repair
from autoresearchd.models.spend import CapFallbackPolicy, Caps, WatchedAnswers, priced, total
from tests.fakes.models import MemoryAnswers
from tests.fakes.policies import ScriptedPolicy, Step, make_state

SPENT = SpendCapReached("the cap of $1.00 a day is reached", whole_session=False, hint="wait")


def caps(
    session: float = 0.0, day: float = 0.0, *, session_cap: float | None = None, day_cap: float | None = None
) -> Caps:
    return Caps(session_usd=lambda: session, day_usd=lambda: day, session_cap=session_cap, day_cap=day_cap)


def reached(purse: Caps) -> SpendCapReached:
    with pytest.raises(SpendCapReached) as caught:
        purse.check()
    return caught.value


def test_without_or_below_a_cap_everything_may_be_spent() -> None:
    caps(1e9, 1e9).check()
    caps(0.99, 4.99, session_cap=1.0, day_cap=5.0).check()
    assert not caps().capped


def test_a_sessions_cap_says_how_to_raise_it() -> None:
    error = reached(caps(2.5, session_cap=2.5))
    assert error.whole_session
    assert "$2.50 is reached: $2.50 spent" in error.what
    assert "resume --max-cost" in error.hint


def test_a_days_cap_says_when_the_day_is_over_and_where_it_is_set() -> None:
    error = reached(caps(0.1, 20.004, session_cap=1.0, day_cap=20.0))
    assert not error.whole_session
    assert "$20.00 a day" in error.what
    assert "00:00 UTC" in error.hint
    assert "spend.per_day in config.yaml" in error.hint


def test_ten_times_ten_cents_reach_a_cap_of_a_dollar() -> None:
    assert sum([0.1] * 10) < 1.0
    assert reached(caps(sum([0.1] * 10), session_cap=1.0)).whole_session


# ---------------------------------------------------------------------- prices that nobody knows
def answer(usd: float | None, model: str = "some/model") -> Answer:
    return Answer(model, Cost(usd), Generation())


def test_a_cap_that_cannot_hold_is_told_once_for_each_model_with_the_way_to_hint_it() -> None:
    log, told = MemoryAnswers(), list[str]()
    watched = WatchedAnswers(log, caps(day_cap=5.0), told.append)
    for given in (answer(0.1), answer(None), answer(None), answer(None, "other/model")):
        watched.record(3, given)
    assert len(told) == 2
    assert "prices: {'some/model': {input: 3.0, output: 15.0}}" in told[0]
    assert "cannot hold" in told[1]
    assert [number for number, _ in log.items] == [3, 3, 3, 3]


# ---------------------------------------------------------------------- going on without a model
def model_policy(steps: Iterable[Step], name: str = "litellm:m") -> ScriptedPolicy:
    return ScriptedPolicy(steps, name=name, repairs=2)


def frugal(model: ScriptedPolicy, search: ScriptedPolicy, told: list[str]) -> CapFallbackPolicy:
    return CapFallbackPolicy(model, search, told.append)


def propose(policy: CapFallbackPolicy, state: ResearchState | None = None) -> Proposal:
    cancel: Cancel = threading.Event()
    return policy.propose(state or make_state("LR = 0.1\n"), cancel)


def test_once_it_is_spent_the_search_goes_on_under_its_own_name_and_that_is_told_once() -> None:
    told: list[str] = []
    model = model_policy([SPENT, SPENT, "LR = 0.5\n"], name="litellm:m")
    policy = frugal(model, ScriptedPolicy(["LR = 0.3\n", "LR = 0.4\n"], name="search"), told)
    assert [propose(policy).policy for _ in range(3)] == ["search", "search", "litellm:m"]
    assert policy.name == "litellm:m"
    assert told == [
        "the cap of $1.00 a day is reached; search goes on without a model",
        "litellm:m proposes again",
    ]


def test_the_models_own_failed_edit_is_not_fixed_by_a_search() -> None:
    told: list[str] = []
    state = replace(
        make_state("LR = 0.1\n"), repair=Repair(1, {"train.py": "LR = 0.2 +\n"}, "error", "SyntaxError: invalid syntax")
    )
    search = ScriptedPolicy(["LR = 0.3\n"], name="search")
    with pytest.raises(PolicyError, match="not repaired: the cap"):
        propose(frugal(model_policy([SPENT]), search, told), state)
    assert search.used == 0


# ---------------------------------------------------------------------- prices
TABLE = {"anthropic/claude-x": Price(input=3.0, output=15.0)}
CALL = Cost(usd=9.99, tokens_in=1_000_000, tokens_out=200_000, seconds=2.0)


@pytest.mark.parametrize(
    ("told", "table", "model", "usd"),
    [
        (CALL, TABLE, "anthropic/claude-x", 6.0),
        (CALL, TABLE, "openai/gpt-x", 9.99),
        (CALL, {"azure/claude-x": Price(1.0, 0.0)}, "anthropic/claude-x", 9.99),
        (Cost(usd=None, tokens_in=5), {}, "mine", None),
        (Cost(usd=None), TABLE, "anthropic/claude-x", None),
        (Cost(usd=0.5), TABLE, "anthropic/claude-x", 0.5),
        (Cost(usd=None), {"mine": Price(0, 0)}, "mine", 0.0),
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
    assert priced(CALL, {written: Price(1.0, 0.0)}, *asked).usd == 1.0


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    known, unknown = Cost(0.25, 10, 1, 0.5), Cost(None, 5, 2, 0.25)
    assert total([known, known]) == Cost(0.5, 20, 2, 1.0)
    assert total([known, unknown, known]) == Cost(None, 25, 4, 1.25)
    assert total([]) == Cost()
