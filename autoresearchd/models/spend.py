"""What models cost and may cost: prices of calls, spend caps, and going on without a model once a cap is reached."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoresearchd.config.settings import Price
from autoresearchd.domain.errors import PolicyError, SpendCapReached
from autoresearchd.domain.ports import AnswerLog, Cancel, Policy, ResearchState
from autoresearchd.domain.proposal import Answer, Cost, Proposal

_PER = 1_000_000
_KINDS = re.compile("^(litellm:)?(local:)?(agent:)?")  # of policy, which users copy from their command line
_CENT_FRACTION = 1e-9  # sums of prices are binary fractions: ten times 0.10 must reach a cap of 1.00


def priced(cost: Cost, prices: Mapping[str, Price], *models: str) -> Cost:
    """The cost of one call; what is no amount of money in it counts as unknown.

    A price of the user's stands over what the provider says; input tokens out of a provider's cache are counted in
    full, so that a spend cap errs on the safe side. models: names of the model; the first that has a price counts.
    """
    usd = cost.usd if cost.usd is not None and math.isfinite(cost.usd) and cost.usd >= 0 else None
    tokens_in, tokens_out = max(0, cost.tokens_in), max(0, cost.tokens_out)
    price = _find(prices, models)
    if price is not None and tokens_in + tokens_out == 0 and (price.input or price.output):
        usd = usd or None  # not counted by the provider: unknown, which is not free
    elif price is not None:
        usd = (tokens_in * price.input + tokens_out * price.output) / _PER
    return replace(cost, usd=usd, tokens_in=tokens_in, tokens_out=tokens_out)


def total(costs: Sequence[Cost]) -> Cost:
    """The sum; its price is unknown where that of any part is."""
    known = [cost.usd for cost in costs if cost.usd is not None]
    return Cost(
        sum(known, 0.0) if len(known) == len(costs) else None,
        sum(cost.tokens_in for cost in costs),
        sum(cost.tokens_out for cost in costs),
        sum((cost.seconds for cost in costs), 0.0),
    )


def _find(prices: Mapping[str, Price], models: tuple[str, ...]) -> Price | None:
    """The price of the first name that has one: as written, then without ``--policy``'s kind and the provider."""
    table = {_KINDS.sub("", name): price for name, price in prices.items()}
    for name in (_KINDS.sub("", model) for model in models):
        while name:
            if name in table:
                return table[name]
            name = name.partition("/")[2]
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """The spend caps of a session in US dollars, None: none. One answer at most oversteps them.

    day_usd: what all sessions of the user together have cost since 00:00 UTC.
    """

    session_usd: Callable[[], float]
    day_usd: Callable[[], float]
    session_cap: float | None = None
    day_cap: float | None = None

    @property
    def capped(self) -> bool:
        return self.session_cap is not None or self.day_cap is not None

    def check(self) -> None:
        # The session's first: no waiting fixes it.
        if self.session_cap is not None and _reached(spent := self.session_usd(), self.session_cap):
            raise SpendCapReached(
                f"the session's cap of {_usd(self.session_cap)} is reached: {_usd(spent)} spent",
                whole_session=True,
                hint="`autoresearchd resume --max-cost USD` with a higher cap goes on",
            )
        if self.day_cap is not None and _reached(spent := self.day_usd(), self.day_cap):
            raise SpendCapReached(
                f"the cap of {_usd(self.day_cap)} a day is reached: your sessions together spent {_usd(spent)} since "
                "00:00 UTC",
                whole_session=False,
                hint="it goes on by itself when the day ends at 00:00 UTC, or at once with a higher spend.per_day in "
                "config.yaml and `autoresearchd resume`",
            )


class WatchedAnswers:
    """An answer log that warns, once for each model, when a cap cannot hold as nobody knows what an answer cost."""

    def __init__(self, answers: AnswerLog, caps: Caps, warn: Callable[[str], None]) -> None:
        self._answers, self._caps, self._warn = answers, caps, warn
        self._told: set[str] = set()

    def record(self, number: int, answer: Answer) -> None:
        self._answers.record(number, answer)
        if answer.cost.usd is not None or not self._caps.capped or answer.model in self._told:
            return
        self._told.add(answer.model)
        self._warn(
            f"nobody says what {answer.model} costs, so the spend cap cannot hold for it: add its price to config.yaml "
            f"(US dollars for a million tokens): `prices: {{{answer.model!r}: {{input: 3.0, output: 15.0}}}}`"
        )


class CapFallbackPolicy:
    """A policy that asks a model, until a spend cap is reached; then another goes on in its place, which costs nothing.

    Its ``name`` stays that with which the session was started. tell: says that the other takes over, or no longer.
    """

    def __init__(self, policy: Policy, instead: Policy, tell: Callable[[str], None]) -> None:
        self._policy, self._instead, self._tell = policy, instead, tell
        self.name, self.repairs = policy.name, policy.repairs
        self._spent = False

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal:
        try:
            proposal = self._policy.propose(state, cancel)
        except SpendCapReached as reached:
            if not self._spent:
                self._spent = True
                self._tell(f"{reached.what}; {self._instead.name} goes on without a model")
            if state.repair is not None:  # it is the model's own edit: nobody else knows what it was meant to do
                raise PolicyError(f"not repaired: {reached.what}", hint=reached.hint) from reached
            return self._instead.propose(state, cancel)
        if self._spent:
            self._spent = False
            self._tell(f"{self._policy.name} proposes again")
        return proposal


def _reached(spent: float, cap: float) -> bool:
    return spent >= cap - _CENT_FRACTION


def _usd(amount: float) -> str:
    return f"${amount:.2f}" if amount == 0 or amount >= 0.1 else f"${amount:.4f}"
