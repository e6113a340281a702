"""What every client of a model must do, as tests: subclass one of these in a test module and say how it is made.

``ClientContract`` is for all; ``HttpClientContract`` goes on with the faults of a provider, for those that speak HTTP.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest

from autoresearchd.domain.errors import Interrupted
from autoresearchd.models.client import ModelClient, ModelError, Question, Reply, Trouble
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.fakes.model_turns import Turn

QUESTION = Question(
    messages=(
        {"role": "system", "content": "You improve a program."},
        {"role": "user", "content": "What would you change in train.py?"},
    ),
    max_tokens=64,
    temperature=0.7,
    seed=17,
    timeout=60.0,
)
PATIENCE_S = 100.0

FAULTS: Mapping[str, tuple[Turn, Trouble]] = {
    "429": (turns.rate_limited(7.0), Trouble.RATE_LIMITED),
    "429 without a word on when": (turns.rate_limited(None), Trouble.RATE_LIMITED),
    "an account without money": (turns.out_of_money(), Trouble.UNAUTHORISED),
    "500": (turns.server_error(), Trouble.OVERLOADED),
    "503": (turns.overloaded(), Trouble.OVERLOADED),
    "401": (turns.unauthorised(), Trouble.UNAUTHORISED),
    "a model that is not there": (turns.no_model(), Trouble.NOT_FOUND),
    "a prompt that does not fit": (turns.context_too_long(), Trouble.CONTEXT_TOO_LONG),
    "a bad request": (turns.bad_request(), Trouble.BAD_REQUEST),
    "a connection cut in the body": (turns.cut(), Trouble.BROKEN_REPLY),
    "a connection cut before the answer": (turns.drop(), Trouble.BROKEN_REPLY),
    "a refusal": (turns.refusal(), Trouble.REFUSED),
    "no JSON": (turns.invalid_json(), Trouble.BROKEN_REPLY),
    "no choices": (turns.no_choices(), Trouble.BROKEN_REPLY),
    "two megabytes": (turns.too_large(), Trouble.BROKEN_REPLY),
}
"""Each fault of a provider, and what it is to the caller."""


class ClientContract:
    """The suite for any client."""

    def client(self) -> AbstractContextManager[ModelClient]:
        raise NotImplementedError

    def test_a_reply_says_who_gave_it_and_what_it_cost_and_can_be_stored(self) -> None:
        with self.client() as client:
            assert client.name
            reply = client.ask(QUESTION, threading.Event())
        assert isinstance(reply, Reply) and reply.model and reply.finish
        assert reply.cost.seconds > 0 and reply.cost.tokens_in > 0
        assert reply.cost.usd is None or (math.isfinite(reply.cost.usd) and reply.cost.usd >= 0)
        json.dumps([reply.text, reply.token_ids, reply.logprobs, dict(reply.sampling)], allow_nan=False).encode()
        if reply.token_ids is not None and reply.logprobs is not None:
            assert len(reply.token_ids) == len(reply.logprobs)
            assert all(math.isfinite(value) and value <= 1e-6 for value in reply.logprobs)
            assert reply.sampling.get("logprobs_of"), "log-probabilities of which distribution?"

    def test_nothing_is_asked_once_a_stop_was_requested(self) -> None:
        cancel = threading.Event()
        cancel.set()
        with self.client() as client, pytest.raises(Interrupted):
            client.ask(QUESTION, cancel)

    def test_longer_messages_count_for_more_tokens(self) -> None:
        with self.client() as client:
            short = client.count_tokens([{"role": "user", "content": "lr = 3e-4"}])
            long = client.count_tokens([{"role": "user", "content": "lr = 3e-4\n" * 50}])
        assert 0 < short < long


class HttpClientContract(ClientContract):
    """The suite for clients that speak to an OpenAI-compatible server."""

    def make_client(self, url: str) -> ModelClient:
        """A client of the server at ``url``, which knows the model ``scripted-model``."""
        raise NotImplementedError

    @contextmanager
    def client(self) -> Iterator[ModelClient]:
        with ScriptedServer(after=turns.says("Raise the learning rate.")) as scripted:
            yield self.make_client(scripted.url)

    def ask(self, turn: Turn) -> Reply:
        with ScriptedServer([turn]) as scripted:
            return self.make_client(scripted.url).ask(QUESTION, threading.Event())

    def warm(self, url: str) -> ModelClient:
        """A client that has done what takes long at a first question and at no other."""
        client = self.make_client(url)
        client.count_tokens(QUESTION.messages)
        return client

    def fails(self, turn: Turn) -> ModelError:
        """The error with which a question ends that meets this, also where it is asked with fewer fields."""
        with ScriptedServer(after=turn) as scripted:
            client = self.warm(scripted.url)
            with pytest.raises(ModelError) as caught:
                client.ask(QUESTION, threading.Event())
        return caught.value

    def test_the_question_arrives_as_it_was_asked(self) -> None:
        with ScriptedServer() as scripted:
            self.make_client(scripted.url).ask(QUESTION, threading.Event())
            [asked] = scripted.questions
        assert asked["messages"] == [dict(message) for message in QUESTION.messages]
        assert (asked["max_tokens"], asked["temperature"], asked.get("stream", False)) == (64, 0.7, False)

    def test_the_reply_arrives_as_it_was_given(self) -> None:
        text = "Use AdamW.\n\n```python\nlr = 3e-4\n```\n"
        reply = self.ask(turns.says(text, "length"))
        assert (reply.text, reply.finish) == (text, "length")
        assert (reply.cost.tokens_in, reply.cost.tokens_out) == (10, 7)

    def test_each_fault_of_a_provider_is_told_for_what_it_is(self) -> None:
        found = {name: self.fails(turn) for name, (turn, _) in FAULTS.items()}
        assert {name: error.trouble for name, error in found.items()} == {n: t for n, (_, t) in FAULTS.items()}
        assert all(error.what.isprintable() and 0 < len(error.what) < 1000 for error in found.values())
        assert found["429"].retry_after == 7.0
        assert found["429 without a word on when"].retry_after is None
        assert found["two megabytes"].cost.tokens_in > 0, "what is paid and useless still has its cost"

    def test_one_question_is_one_attempt(self) -> None:
        for turn in (turns.server_error(), turns.rate_limited(0.0), turns.drop()):
            with ScriptedServer([turn] * 5) as scripted:
                with suppress(ModelError):
                    self.make_client(scripted.url).ask(QUESTION, threading.Event())
                assert scripted.left == 4, "retries are the caller's, who counts and charges them"

    def test_an_empty_answer_is_a_reply_and_half_characters_do_not_end_the_client(self) -> None:
        assert self.ask(turns.empty()).text == ""
        assert "done" in self.ask(turns.escapes()).text.encode().decode()

    def test_a_server_that_hangs_costs_the_time_that_was_allowed_and_no_more(self) -> None:
        with ScriptedServer(after=turns.hang()) as scripted:
            client = self.warm(scripted.url)
            with pytest.raises(ModelError) as caught:
                client.ask(Question(QUESTION.messages, timeout=0.3), threading.Event())
            assert caught.value.trouble is Trouble.TIMEOUT
            assert scripted.hung_up.wait(PATIENCE_S)

    def test_a_stop_ends_the_waiting_for_a_reply(self) -> None:
        cancel = threading.Event()
        with ScriptedServer(after=turns.hang()) as scripted:
            client = self.warm(scripted.url)
            threading.Thread(target=lambda: scripted.asked.wait(PATIENCE_S) and cancel.set()).start()
            with pytest.raises(Interrupted):
                client.ask(QUESTION, cancel)
            assert scripted.hung_up.wait(PATIENCE_S)

    def test_a_server_that_is_not_there_cannot_be_reached(self) -> None:
        with ScriptedServer() as scripted:
            client = self.make_client(scripted.url)
        with pytest.raises(ModelError) as caught:
            client.ask(QUESTION, threading.Event())
        assert caught.value.trouble is Trouble.UNREACHABLE
