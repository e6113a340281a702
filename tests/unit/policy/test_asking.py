"""From a question to a reply: what is waited for, what is given up, who is asked next, and who pays for it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.models.client import PASSING, ModelError, Trouble
from autoresearchd.policy.exchange import FIRST_PAUSE_S, LONGEST_ASKED_S, LONGEST_PAUSE_S, Exchange, Patience
from tests.fakes.models import PatientCancel, ScriptedClient, Step
from tests.fakes.policies import make_state
from tests.unit.policy.model_bench import Bench

MESSAGES = ({"role": "user", "content": "an edit, please"},)
FINAL = sorted(set(Trouble) - PASSING - {Trouble.CONTEXT_TOO_LONG})


def failing(trouble: Trouble, **options: Any) -> ModelError:
    return ModelError(trouble, "in the provider's words", **options)


class Asking(Bench):
    """An exchange with a model, and with a second one where there is a fallback."""

    def __init__(self, *steps: Step, fallback: Step = "", ending: Cancel | None = None, **settings: Any) -> None:
        told = ModelSettings(**{"retries": 3, **settings})
        super().__init__(*steps, fallback=[fallback] if fallback else [], settings=told, ending=ending)

    def ask(self, **options: Any) -> str:
        self.cancel = PatientCancel(**options)
        exchange = Exchange(self.policy, make_state("x = 1\n", seed=7))
        return exchange.ask(lambda budget: MESSAGES, 0, 300.0, self.cancel).text

    @property
    def asked(self) -> tuple[int, int]:
        """How often each was asked."""
        return len(self.client.questions), len(self.second.questions)

    @property
    def bill(self) -> list[tuple[str, Cost]]:
        """What each call has cost that brought no reply."""
        return [(answer.model, answer.cost) for answer in self.answers.answers]


@pytest.mark.parametrize("trouble", sorted(PASSING))
def test_a_passing_trouble_is_waited_out_and_the_question_repeated(trouble: Trouble) -> None:
    asking = Asking(failing(trouble), failing(trouble), "yes")
    assert asking.ask() == "yes"
    assert (asking.asked, len(asking.cancel.waits)) == ((3, 0), 2)


def test_waits_double_are_jittered_and_bounded() -> None:
    asking = Asking(*[failing(Trouble.OVERLOADED)] * 13, retries=12)
    with pytest.raises(EnvironmentFailure):
        asking.ask()
    waits, most = asking.cancel.waits, [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**i) for i in range(12)]
    assert all(0 <= wait <= bound for wait, bound in zip(waits, most, strict=True))
    assert len({round(wait, 6) for wait in waits}) == 12
    assert any(wait > 10 for wait in waits)


@pytest.mark.parametrize(
    "error",
    [failing(Trouble.RATE_LIMITED, retry_after=LONGEST_ASKED_S + 1), *map(failing, FINAL)],
    ids=lambda error: error.trouble,
)
def test_what_no_wait_helps_goes_to_the_next_model_at_once(error: ModelError) -> None:
    asking = Asking(error, fallback="yes")
    assert asking.ask() == "yes"
    assert (asking.asked, asking.cancel.waits) == ((1, 1), [])


def test_a_failed_call_that_cost_something_is_charged_to_its_model() -> None:
    cost = Cost(0.02, 1000, 50)
    broken, refused = (failing(t, cost=cost) for t in (Trouble.BROKEN_REPLY, Trouble.REFUSED))
    asking = Asking(broken, failing(Trouble.OVERLOADED), refused, fallback="yes")
    asking.ask()
    assert asking.bill == [("m/one", cost), ("m/one", cost)]


def test_a_stop_ends_a_wait_at_once_and_nobody_else_is_asked() -> None:
    asking = Asking(*[failing(Trouble.OVERLOADED)] * 5, fallback="never", retries=5)
    with pytest.raises(Interrupted):
        asking.ask(stop_after=2)
    assert asking.asked == (2, 0)


def test_a_session_that_is_to_end_does_not_wait_for_a_server_that_is_not_there() -> None:
    ending = PatientCancel(stop_after=2)
    asking = Asking(*[failing(Trouble.UNREACHABLE)] * 6, fallback="never", retries=5, ending=ending)
    with pytest.raises(Interrupted, match="m/one was not asked again"):
        asking.ask()
    assert (asking.asked, asking.bill) == ((2, 0), [])
    assert (len(ending.waits), asking.cancel.waits) == (2, []), "the wait is one that the request ends"


def test_an_answer_under_way_that_is_not_waited_for_is_charged_at_an_unknown_price() -> None:
    asking = Asking(Interrupted("not waited for"))
    with pytest.raises(Interrupted):
        asking.ask()
    assert asking.bill == [("m/one", Cost(usd=None, tokens_in=asking.client.count_tokens(MESSAGES)))]


class Priced(ScriptedClient):
    """A model whose price is known, also of what brought no reply: a cent for each token that may have been written."""

    def price(self, cost: Cost) -> float:
        return cost.tokens_in / 1e6 + cost.tokens_out / 100


def test_a_reply_that_comes_too_late_is_charged_as_if_all_of_it_had_been_written() -> None:
    asking, first = Asking(max_tokens=500), Priced([failing(Trouble.TIMEOUT), "yes"], name="first")
    asking.policy.clients = [first]
    asking.ask()
    sent = first.count_tokens(MESSAGES)
    assert asking.bill == [("first", Cost(usd=sent / 1e6 + 5.0, tokens_in=sent, tokens_out=500))]


# ---------------------------------------------------------------------- patience
def test_the_grace_counts_from_when_the_request_was_seen_and_a_stop_at_once_takes_none() -> None:
    cancel, ending, now = threading.Event(), threading.Event(), [100.0]
    patience = Patience(cancel, ending, grace=2.0, clock=lambda: now[0])
    assert not patience.is_set()
    now[0] = 500.0
    ending.set()
    assert not patience.is_set()
    now[0] = 501.9
    assert not patience.is_set()
    now[0] = 502.0
    assert patience.is_set()
    cancel.set()
    assert Patience(cancel, threading.Event(), grace=60.0).is_set()
