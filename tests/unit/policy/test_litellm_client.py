"""A provider's model is asked through litellm: its exceptions, its prices and its noise stay on its side."""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
from dataclasses import replace
from typing import Any

import pytest

from autoresearchd.config.settings import Price
from autoresearchd.domain.errors import MissingCapability
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import litellm_client
from autoresearchd.models.client import ModelClient, ModelError, Trouble, estimate_tokens
from autoresearchd.models.litellm_client import LitellmClient
from tests.contract.client_contract import QUESTION, HttpClientContract
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer, provider_at

NEVER = threading.Event()
KEY = "sk-not-a-key-0123456789abcdef"


def test_without_the_package_the_user_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(litellm_client.importlib, "import_module", missing)
    litellm_client._library.cache_clear()
    with pytest.raises(MissingCapability, match=r"pip install 'autoresearchd\[llm\]'"):
        LitellmClient("openai/gpt-4o").ask(QUESTION, NEVER)


def test_who_could_not_be_reached_is_not_paid_for() -> None:
    """litellm names a connection that did not come about in time a Timeout, as if the model had been asked."""

    class Timeout(Exception):
        pass

    assert litellm_client._trouble_of(Timeout(), {"Timeout", "ConnectTimeout"}) is Trouble.UNREACHABLE
    assert litellm_client._trouble_of(Timeout(), {"Timeout", "ReadTimeout"}) is Trouble.TIMEOUT


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm is there, and no key or address of the user's is in its way."""
    if importlib.util.find_spec("litellm") is None:  # imported as the client does it, or it fetches a list of prices
        pytest.skip("pip install 'autoresearchd[llm]'")
    for name in list(os.environ):
        if name.endswith(("_API_KEY", "_API_BASE", "_BASE_URL")):
            monkeypatch.delenv(name)


@pytest.mark.usefixtures("installed")
@pytest.mark.slow
class TestLitellmClient(HttpClientContract):
    @pytest.fixture(autouse=True)
    def patched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch

    def make_client(self, url: str, model: str = "openai/scripted-model", **options: Any) -> ModelClient:
        return provider_at(url, self.patch, model, **options)

    def test_at_an_address_of_ones_own_a_name_tells_no_price_but_the_users(self) -> None:
        prices = {"scripted-model": Price(input=2.0, output=8.0)}
        for model, usd in (("openai/gpt-4o", None), ("openai/scripted-model", (10 * 2.0 + 2 * 8.0) / 1e6)):
            with ScriptedServer([turns.says("one two")]) as scripted:
                cost = self.make_client(scripted.url, model, prices=prices).ask(QUESTION, NEVER).cost
            assert cost.usd == (None if usd is None else pytest.approx(usd))
            assert cost.tokens_in > 0

    @pytest.mark.parametrize("name", ["openai/gpt-4o", "openai/nobody-knows-this-model", "ollama/llama3"])
    def test_a_model_without_a_price_in_the_list_costs_something_unknown_and_not_nothing(self, name: str) -> None:
        client, litellm = LitellmClient(name), litellm_client._library()
        response = litellm.mock_completion(name, [{"role": "user", "content": "x"}], mock_response="y " * 50)
        usd = client._cost(QUESTION, response, response.model_dump(), 1.0).usd
        unanswered = client.price(Cost(usd=None, tokens_in=1000, tokens_out=1000))
        if name == "openai/gpt-4o":
            assert 0 < usd < 0.1 and unanswered > 0
        else:
            assert (usd, unanswered) == (None, None)

    def test_a_key_out_of_a_file_goes_to_its_provider_and_stands_over_the_environments(self) -> None:
        with ScriptedServer([turns.unauthorised()]) as scripted:
            both = {"openai": KEY, "anthropic": "another"}
            with pytest.raises(ModelError) as caught:
                self.make_client(scripted.url, "openai/gpt-4o", keys=both).ask(QUESTION, NEVER)
            assert caught.value.trouble is Trouble.UNAUTHORISED
            assert KEY not in str(caught.value) and "uthorization" not in str(caught.value)
            assert caught.value.__cause__ is None, "requests and their headers hang on it"
            LitellmClient("openai/gpt-4o", keys={"anthropic": KEY}).ask(QUESTION, NEVER)
            own, other = (str(request.headers) for request in scripted.requests)
        assert KEY in own
        assert KEY not in other

    def test_claude_is_asked_to_cache_a_conversation_that_goes_on(self) -> None:
        again = ({"role": "assistant", "content": "ls"}, {"role": "user", "content": "train.py"})
        with ScriptedServer() as scripted:
            client = self.make_client(scripted.url, "anthropic/claude-sonnet-4-5")
            for messages in (QUESTION.messages, (*QUESTION.messages, *again)):
                with pytest.raises(ModelError):  # it is no server of Anthropic's, which is not needed for this
                    client.ask(replace(QUESTION, messages=messages), NEVER)
            first, second = (str(request.payload) for request in scripted.requests)
        assert "cache_control" not in first and second.count("cache_control") == 2

    def test_litellm_prints_nothing(self, capfd: pytest.CaptureFixture[str]) -> None:
        with ScriptedServer([turns.server_error()]) as scripted:
            client = self.make_client(scripted.url)
            with pytest.raises(ModelError):
                client.ask(QUESTION, NEVER)
            client.ask(QUESTION, NEVER)
        assert capfd.readouterr() == ("", "")

    def test_who_serves_a_model_and_refuses_the_schema_is_asked_for_text(self) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
        asked = replace(QUESTION, schema=schema, temperature=None, seed=None)
        with ScriptedServer(after=turns.says("yes"), refuses=["response_format"]) as scripted:
            client = self.make_client(scripted.url, "openai/gpt-4o")
            assert client.takes_schema()
            reply = client.ask(asked, NEVER)
            assert not client.takes_schema()
            client.ask(asked, NEVER)
            sent = ["response_format" in question for question in scripted.questions]
        assert reply.text == "yes" and "structured" not in reply.sampling
        assert sent[-2:] == [False, False]

    def test_tokens_are_counted_without_a_download(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("counting tokens opened a connection")

        monkeypatch.setattr(socket.socket, "connect", refuse)
        monkeypatch.setattr(socket, "create_connection", refuse)
        messages = [{"role": "user", "content": "def train(lr: float = 3e-4) -> None:\n    ...\n" * 20}]
        for name in ("openai/gpt-4o", "openai/gpt-3.5-turbo", "openai/o3"):
            assert 200 < LitellmClient(name).count_tokens(messages) != estimate_tokens(messages)
        for name in ("anthropic/claude-sonnet-4-5", "together_ai/meta-llama/Llama-3-8b-chat-hf", "nobody/knows-this"):
            assert LitellmClient(name).count_tokens(messages) == estimate_tokens(messages)
