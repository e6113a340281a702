"""What a call cost: the user's table over the provider's word, and never a guess."""

from __future__ import annotations

import math

import pytest

from autoresearchd.domain.model_settings import Price
from autoresearchd.domain.proposal import Cost
from autoresearchd.models.spend import priced, total

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
