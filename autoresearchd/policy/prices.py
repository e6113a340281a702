"""What a call of a model cost: by the user's own prices, else as the provider says, else unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from autoresearchd.domain.proposal import Cost
from autoresearchd.domain.settings import Price

_PER = 1_000_000
_KINDS = ("litellm:", "local:", "agent:")


def priced(cost: Cost, prices: Mapping[str, Price], *models: str) -> Cost:
    """The cost of one call.

    A price of the user's stands over what the provider says; input tokens out of a provider's cache are counted in
    full, so that a spend cap errs on the safe side. What nobody has a price for stays unknown, which is not zero.

    Args:
        cost: as the client gives it; what is no amount of money in it counts as unknown.
        prices: the user's table, by model.
        models: the names of the model, as the user and as the provider write it; the first that has a price counts.
    """
    counted = replace(cost, usd=_money(cost.usd), tokens_in=max(0, cost.tokens_in), tokens_out=max(0, cost.tokens_out))
    price = _find(prices, models)
    if price is None:
        return counted
    tokens = counted.tokens_in + counted.tokens_out
    if tokens == 0 and (price.input or price.output):
        return replace(counted, usd=counted.usd or None)  # not counted by the provider: unknown, which is not free
    return replace(counted, usd=(counted.tokens_in * price.input + counted.tokens_out * price.output) / _PER)


def total(costs: Iterable[Cost]) -> Cost:
    """The sum; its price is unknown where that of any part is."""
    usd: float | None = 0.0
    tokens_in = tokens_out = 0
    seconds = 0.0
    for cost in costs:
        usd = None if usd is None or cost.usd is None else usd + cost.usd
        tokens_in, tokens_out = tokens_in + cost.tokens_in, tokens_out + cost.tokens_out
        seconds += cost.seconds
    return Cost(usd, tokens_in, tokens_out, seconds)


def _find(prices: Mapping[str, Price], models: tuple[str, ...]) -> Price | None:
    """The price of the first name that has one: as written, then without ``--policy``'s kind and the provider."""
    table = {_bare(name): price for name, price in prices.items()}
    return next((table[name] for model in models for name in _names(model) if name in table), None)


def _names(model: str) -> Iterator[str]:
    name = _bare(model)
    yield name
    while "/" in name:
        name = name.partition("/")[2]
        yield name


def _bare(name: str) -> str:
    """A model's name without the kind of policy, which users copy from their command line."""
    for kind in _KINDS:
        name = name.removeprefix(kind)
    return name


def _money(usd: float | None) -> float | None:
    return usd if usd is not None and math.isfinite(usd) and usd >= 0 else None
