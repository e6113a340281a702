"""From a question to a reply: what is waited for, what is given up, who is asked next, and who pays for it."""

from __future__ import annotations

import threading

import pytest

from autoresearchd.domain.errors import EnvironmentFailure, Interrupted
from autoresearchd.domain.model_settings import ModelSettings
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost
from autoresearchd.models.client import PASSING, ModelError, Trouble
from autoresearchd.policy.exchange import FIRST_PAUSE_S, LONGEST_ASKED_S, LONGEST_PAUSE_S, Exchange, Patience
from autoresearchd.policy.model_policy import ModelPolicy
from tests.fakes.models import MemoryAnswers, OpenPurse, PatientCancel, ScriptedClient, Step
from tests.fakes.policies import make_state

MESSAGES = ({"role": "user", "content": "an edit, please"},)
FINAL = sorted(set(Trouble) - PASSING - {Trouble.CONTEXT_TOO_LONG})


def failing(trouble: Trouble, **options: object) -> ModelError:
    return ModelError(trouble, "in the provider's words", **options)  # type: ignore[arg-type]


class Asking:
    """An exchange with models. bill: what each call has cost that brought no reply."""

    def __init__(self, *clients: ScriptedClient, ending: Cancel | None = None, **settings: int) -> None:
        answers = MemoryAnswers()
        self._items = answers.items
        policy = ModelPolicy(
            clients,
            ModelSettings(**{"retries": 3, **settings}),  # type: ignore[arg-type]
            name="local:m",
            answers=answers,
            purse=OpenPurse(),
            check=lambda state, files: None,
            ending=ending,
        )
        self.exchange = Exchange(policy, make_state("x = 1\n", seed=7))

    def ask(self, cancel: Cancel) -> str:
        return self.exchange.ask(lambda budget: MESSAGES, 0, 300.0, cancel).text

    @property
    def bill(self) -> list[tuple[str, Cost]]:
        return [(answer.model, answer.cost) for _, answer in self._items]


def client(*steps: Step, name: str = "first") -> ScriptedClient:
    return ScriptedClient(steps, name=name)


@pytest.mark.parametrize("trouble", sorted(PASSING))
def test_a_passing_trouble_is_waited_out_and_the_question_repeated(trouble: Trouble) -> None:
    cancel, first = PatientCancel(), client(failing(trouble), failing(trouble), "yes")
    assert Asking(first).ask(cancel) == "yes"
    assert len(first.questions) == 3
    assert len(cancel.waits) == 2


def test_waits_double_are_jittered_and_bounded() -> None:
    cancel = PatientCancel()
    with pytest.raises(EnvironmentFailure):
        Asking(client(*[failing(Trouble.OVERLOADED)] * 13), retries=12).ask(cancel)
    most = [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**i) for i in range(12)]
    assert all(0 <= wait <= bound for wait, bound in zip(cancel.waits, most, strict=True))
    assert len({round(wait, 6) for wait in cancel.waits}) == 12
    assert any(wait > 10 for wait in cancel.waits)


def test_a_provider_that_asks_for_an_hour_is_left_to_the_next_model() -> None:
    cancel, second = PatientCancel(), client("yes", name="second")
    asked = failing(Trouble.RATE_LIMITED, retry_after=LONGEST_ASKED_S + 1)
    assert Asking(client(asked), second).ask(cancel) == "yes"
    assert cancel.waits == []


@pytest.mark.parametrize("trouble", FINAL)
def test_what_no_wait_hints_goes_to_the_next_model_at_once(trouble: Trouble) -> None:
    cancel, first, second = PatientCancel(), client(failing(trouble)), client("yes", name="second")
    assert Asking(first, second).ask(cancel) == "yes"
    assert (len(first.questions), cancel.waits) == (1, [])


def test_a_question_that_is_too_long_is_shortened_for_the_same_model() -> None:
    first = client(failing(Trouble.UNAUTHORISED))
    second = client(failing(Trouble.CONTEXT_TOO_LONG), "shorter", name="second")
    assert Asking(first, second).ask(PatientCancel()) == "shorter"
    assert len(first.questions) == 1


def test_a_failed_call_that_cost_something_is_charged_to_its_model() -> None:
    cost = Cost(0.02, 1000, 50)
    broken, refused = (failing(t, cost=cost) for t in (Trouble.BROKEN_REPLY, Trouble.REFUSED))
    first = client(broken, failing(Trouble.OVERLOADED), refused)
    asking = Asking(first, client("yes", name="second"))
    asking.ask(PatientCancel())
    assert asking.bill == [("first", cost), ("first", cost)]


def test_a_stop_ends_a_wait_at_once_and_nobody_else_is_asked() -> None:
    cancel = PatientCancel(stop_after=2)
    first, second = client(*[failing(Trouble.OVERLOADED)] * 5), client("never", name="second")
    with pytest.raises(Interrupted):
        Asking(first, second, retries=5).ask(cancel)
    assert (len(first.questions), second.questions) == (2, [])


def test_a_session_that_is_to_end_does_not_wait_for_a_server_that_is_not_there() -> None:
    cancel, ending = PatientCancel(), PatientCancel(stop_after=2)
    first, second = client(*[failing(Trouble.UNREACHABLE)] * 6), client("never", name="second")
    with pytest.raises(Interrupted, match="first was not asked again"):
        (asking := Asking(first, second, retries=5, ending=ending)).ask(cancel)
    assert (len(first.questions), second.questions, asking.bill) == (2, [], [])
    assert len(ending.waits) == 2, "the wait is one that the request ends"
    assert cancel.waits == []


def test_an_answer_under_way_that_is_not_waited_for_is_charged_at_an_unknown_price() -> None:
    first = client(Interrupted("not waited for"))
    with pytest.raises(Interrupted):
        (asking := Asking(first)).ask(PatientCancel())
    assert asking.bill == [("first", Cost(usd=None, tokens_in=first.count_tokens(MESSAGES)))]


class Priced(ScriptedClient):
    """A model whose price is known, also of what brought no reply: a cent for each token that may have been written."""

    def price(self, cost: Cost) -> float:
        return cost.tokens_in / 1e6 + cost.tokens_out / 100


def test_a_reply_that_comes_too_late_is_charged_as_if_all_of_it_had_been_written() -> None:
    first = Priced([failing(Trouble.TIMEOUT), "yes"], name="first")
    asking = Asking(first, max_tokens=500)
    asking.ask(PatientCancel())
    sent = first.count_tokens(MESSAGES)
    assert asking.bill == [("first", Cost(usd=sent / 1e6 + 5.0, tokens_in=sent, tokens_out=500))]


# ---------------------------------------------------------------------- patience
def test_who_wants_the_end_at_once_has_it_whatever_the_grace() -> None:
    cancel = threading.Event()
    cancel.set()
    assert Patience(cancel, threading.Event(), grace=60.0).is_set()


def test_the_grace_counts_from_when_the_request_was_seen() -> None:
    ending, now = threading.Event(), [100.0]
    patience = Patience(threading.Event(), ending, grace=2.0, clock=lambda: now[0])
    assert not patience.is_set()
    now[0] = 500.0
    ending.set()
    assert not patience.is_set()
    now[0] = 501.9
    assert not patience.is_set()
    now[0] = 502.0
    assert patience.is_set()
