"""From a question to a reply: what is waited for, what is given up, who is asked next, and who pays for it."""

from __future__ import annotations

import threading
from dataclasses import replace
from random import Random

import pytest

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.ports import Cancel, Purse
from autoresearchd.domain.proposal import Cost
from autoresearchd.models.client import PASSING, ModelError, Question, Trouble
from autoresearchd.policy.exchange import FIRST_PAUSE_S, LONGEST_ASKED_S, LONGEST_PAUSE_S, Asker, Patience, Unanswered
from tests.fakes.models import OpenPurse, PatientCancel, ScriptedClient, Step

QUESTION = Question(({"role": "user", "content": "an edit, please"},))
FINAL = sorted(set(Trouble) - PASSING - {Trouble.CONTEXT_TOO_LONG})


def failing(trouble: Trouble, **options: object) -> ModelError:
    return ModelError(trouble, "in the provider's words", **options)  # type: ignore[arg-type]


class Bill:
    """Takes down what failed calls cost."""

    def __init__(self) -> None:
        self.charged: list[tuple[str, Cost | None]] = []

    def __call__(self, model: str, error: ModelError) -> None:
        self.charged.append((model, error.cost))


def asker(
    *clients: ScriptedClient,
    retries: int = 3,
    purse: Purse | None = None,
    bill: Bill | None = None,
    seed: int = 7,
    ending: Cancel | None = None,
) -> Asker:
    return Asker(
        clients,
        retries=retries,
        purse=purse or OpenPurse(),
        charge=bill or Bill(),
        random=Random(seed),
        ending=ending,
    )


def client(*steps: Step, name: str = "first") -> ScriptedClient:
    return ScriptedClient(steps, name=name)


@pytest.mark.parametrize("trouble", sorted(PASSING))
def test_a_passing_trouble_is_waited_out_and_the_question_repeated(trouble: Trouble) -> None:
    cancel, first = PatientCancel(), client(failing(trouble), failing(trouble), "yes")
    assert asker(first).ask(QUESTION, cancel).text == "yes"
    assert len(first.questions) == 3
    assert len(cancel.waits) == 2


def test_waits_double_are_jittered_and_bounded() -> None:
    cancel = PatientCancel()
    with pytest.raises(Unanswered):
        asker(client(*[failing(Trouble.OVERLOADED)] * 13), retries=12).ask(QUESTION, cancel)
    most = [min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**i) for i in range(12)]
    assert all(0 <= wait <= bound for wait, bound in zip(cancel.waits, most, strict=True))
    assert len({round(wait, 6) for wait in cancel.waits}) == 12
    assert any(wait > 10 for wait in cancel.waits)


def test_a_provider_that_asks_for_an_hour_is_left_to_the_next_model() -> None:
    cancel, second = PatientCancel(), client("yes", name="second")
    asked = failing(Trouble.RATE_LIMITED, retry_after=LONGEST_ASKED_S + 1)
    assert asker(client(asked), second).ask(QUESTION, cancel).text == "yes"
    assert cancel.waits == []


@pytest.mark.parametrize("trouble", FINAL)
def test_what_no_wait_hints_goes_to_the_next_model_at_once(trouble: Trouble) -> None:
    cancel, first, second = PatientCancel(), client(failing(trouble)), client("yes", name="second")
    assert asker(first, second).ask(QUESTION, cancel).text == "yes"
    assert (len(first.questions), cancel.waits) == (1, [])


def test_a_context_that_is_too_long_comes_back_to_be_shortened_for_the_same_model() -> None:
    first = client(failing(Trouble.UNAUTHORISED))
    second = client(failing(Trouble.CONTEXT_TOO_LONG), "shorter", name="second")
    model = asker(first, second)
    with pytest.raises(ModelError) as caught:
        model.ask(QUESTION, PatientCancel())
    assert caught.value.trouble is Trouble.CONTEXT_TOO_LONG
    assert model.client is second
    assert model.ask(QUESTION, PatientCancel()).text == "shorter"
    assert len(first.questions) == 1


def test_a_failed_call_that_cost_something_is_charged_to_its_model() -> None:
    bill, cost = Bill(), Cost(0.02, 1000, 50)
    broken, refused = (failing(t, cost=cost) for t in (Trouble.BROKEN_REPLY, Trouble.REFUSED))
    first = client(broken, failing(Trouble.OVERLOADED), refused)
    asker(first, client("yes", name="second"), bill=bill).ask(QUESTION, PatientCancel())
    assert bill.charged == [("first", cost), ("first", cost)]


def test_a_stop_ends_a_wait_at_once_and_nobody_else_is_asked() -> None:
    cancel = PatientCancel(stop_after=2)
    first, second = client(*[failing(Trouble.OVERLOADED)] * 5), client("never", name="second")
    with pytest.raises(Interrupted):
        asker(first, second, retries=5).ask(QUESTION, cancel)
    assert (len(first.questions), second.questions) == (2, [])


def test_a_session_that_is_to_end_does_not_wait_for_a_server_that_is_not_there() -> None:
    cancel, ending, bill = PatientCancel(), PatientCancel(stop_after=2), Bill()
    first, second = client(*[failing(Trouble.UNREACHABLE)] * 6), client("never", name="second")
    with pytest.raises(Interrupted, match="first was not asked again"):
        asker(first, second, retries=5, ending=ending, bill=bill).ask(QUESTION, cancel)
    assert (len(first.questions), second.questions, bill.charged) == (2, [], [])
    assert len(ending.waits) == 2, "the wait is one that the request ends"
    assert cancel.waits == []


def test_an_answer_under_way_that_is_not_waited_for_is_charged_at_an_unknown_price() -> None:
    bill, first = Bill(), client(Interrupted("not waited for"))
    with pytest.raises(Interrupted):
        asker(first, bill=bill).ask(QUESTION, PatientCancel())
    [(model, cost)] = bill.charged
    assert model == "first"
    assert cost == Cost(usd=None, tokens_in=first.count_tokens(QUESTION.messages))


class Priced(ScriptedClient):
    """A model whose price is known, also of what brought no reply: a cent for each token that may have been written."""

    def price(self, cost: Cost) -> float:
        return cost.tokens_in / 1e6 + cost.tokens_out / 100


def test_a_reply_that_comes_too_late_is_charged_as_if_all_of_it_had_been_written() -> None:
    bill, first = Bill(), Priced([failing(Trouble.TIMEOUT), "yes"], name="first")
    question = replace(QUESTION, max_tokens=500)
    asker(first, bill=bill).ask(question, PatientCancel())
    [(_, cost)] = bill.charged
    sent = first.count_tokens(QUESTION.messages)
    assert cost == Cost(usd=sent / 1e6 + 5.0, tokens_in=sent, tokens_out=500)


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
