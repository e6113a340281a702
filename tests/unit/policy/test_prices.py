"""What a call cost: the user's table over the provider's word, and never a guess."""

from __future__ import annotations

import math

import pytest

from autoresearchd.domain.proposal import Cost
from autoresearchd.domain.settings import Price
from autoresearchd.policy.spend import priced, total

TABLE = {"anthropic/claude-x": Price(input=3.0, output=15.0)}
CALL = Cost(usd=9.99, tokens_in=1_000_000, tokens_out=200_000, seconds=2.0)


def test_the_users_price_stands_over_what_the_provider_says() -> None:
    assert priced(CALL, TABLE, "anthropic/claude-x") == Cost(6.0, 1_000_000, 200_000, 2.0)


def test_without_a_price_the_providers_word_counts() -> None:
    assert priced(CALL, TABLE, "openai/gpt-x") == CALL
    assert priced(CALL, {}, "anthropic/claude-x") == CALL


def test_what_nobody_has_a_price_for_stays_unknown_and_is_not_free() -> None:
    assert priced(Cost(usd=None, tokens_in=5), {}, "mine").usd is None


@pytest.mark.parametrize("usd", [-1.0, math.nan, math.inf])
def test_a_provider_that_names_no_amount_of_money_has_named_no_price(usd: float) -> None:
    assert priced(Cost(usd=usd, tokens_in=-5, tokens_out=-1), {}, "m") == Cost(None, 0, 0)


def test_tokens_that_were_not_counted_are_not_priced_at_nothing() -> None:
    assert priced(Cost(usd=None), TABLE, "anthropic/claude-x").usd is None
    assert priced(Cost(usd=0.5), TABLE, "anthropic/claude-x").usd == 0.5


def test_a_model_of_ones_own_can_be_declared_free() -> None:
    assert priced(Cost(usd=None), {"mine": Price(0, 0)}, "mine").usd == 0.0


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


def test_a_price_for_one_providers_model_is_not_anothers() -> None:
    assert priced(CALL, {"azure/claude-x": Price(1.0, 0.0)}, "anthropic/claude-x") == CALL


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    known, unknown = Cost(0.25, 10, 1, 0.5), Cost(None, 5, 2, 0.25)
    assert total([known, known]) == Cost(0.5, 20, 2, 1.0)
    assert total([known, unknown, known]) == Cost(None, 25, 4, 1.25)
    assert total([]) == Cost()
