"""A promoted version answers at an endpoint that can load it; at one that cannot, the plain model goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.models.openai_client import OpenAIClient
from tests.contract.client_contract import QUESTION
from tests.fakes import model_turns as turns
from tests.fakes.model_server import ScriptedServer
from tests.fakes.model_turns import Turn
from tests.fakes.models import Chosen

pytest.importorskip("httpx", reason="pip install 'autoresearchd[local]'")

NEVER = threading.Event()
FIRST, SECOND = (ServedAdapter(name, Path(f"/repo/.git/autoresearchd/adapters/{name}")) for name in ("v1-0a", "v2-0b"))


def orders(scripted: ScriptedServer) -> list[object]:
    return [r.payload for r in scripted.requests if r.path == "/v1/load_lora_adapter"]


def models(scripted: ScriptedServer) -> list[object]:
    return [asked["model"] for asked in scripted.questions]


def test_what_is_promoted_in_the_middle_answers_after_the_next_look() -> None:
    chosen = Chosen(None)
    with ScriptedServer(lora=turns.loads()) as scripted:
        client = OpenAIClient(scripted.url, adapters=chosen)
        answered = [client.ask(QUESTION, NEVER).adapter]
        for version in (FIRST, FIRST, SECOND, None):
            chosen.version = version
            answered.append(client.ask(QUESTION, NEVER).adapter)
            client.renew()
            answered.append(client.ask(QUESTION, NEVER).adapter)
        assert len(orders(scripted)) == 2, "what the server has is not loaded again"
    assert answered == ["", "", "v1-0a", "v1-0a", "v1-0a", "v1-0a", "v2-0b", "v2-0b", ""]
    assert len(chosen.asked) == 5


def test_a_server_that_was_started_again_is_told_again() -> None:
    with ScriptedServer(lora=turns.loads()) as scripted:
        client = OpenAIClient(scripted.url, "scripted-model", adapters=Chosen(FIRST))
        client.ask(QUESTION, NEVER)
        scripted.loaded.clear()
        assert client.ask(QUESTION, NEVER).adapter == "v1-0a"
        assert len(orders(scripted)) == 2


@pytest.mark.parametrize(
    ("lora", "words"),
    [
        (None, "404"),
        (turns.loads_not("/repo"), "No adapter found"),
        (turns.server_error(), "500"),
        (Turn(status=403, raw=b"\x1b[2J not here"), "not here"),
        (turns.drop(), "broke off"),
    ],
)
def test_where_it_cannot_be_loaded_the_plain_model_goes_on_and_the_user_is_told_once(
    lora: Turn | None, words: str
) -> None:
    told: list[str] = []
    with ScriptedServer(lora=lora) as scripted:
        client = OpenAIClient(scripted.url, "scripted-model", adapters=Chosen(FIRST), warn=told.append)
        replies = []
        for _ in range(3):
            client.renew()
            replies.append(client.ask(QUESTION, NEVER))
        assert len(orders(scripted)) == 3, "it may be able to by now"
        assert models(scripted) == ["scripted-model"] * 3
    assert [reply.adapter for reply in replies] == ["", "", ""]
    assert len(told) == 1
    assert words in told[0]
    assert "v1-0a" in told[0]
    assert told[0].isprintable()


def test_the_model_behind_the_endpoint_is_known_by_its_folder_where_that_is_here(tmp_path: Path) -> None:
    from autoresearchd.models.model_files import model_hash, tokenizer_hash

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    chosen = Chosen(None)
    roots = (str(tmp_path), str(tmp_path / "elsewhere"), "Qwen/Qwen3-4B", "")
    for root in roots:
        with ScriptedServer(root=root) as scripted:
            OpenAIClient(scripted.url, adapters=chosen).ask(QUESTION, NEVER)
    here = BaseModel(str(tmp_path), model_hash(tmp_path), tokenizer_hash(tmp_path))
    assert chosen.asked == [here, *(BaseModel(root or "scripted-model") for root in roots[1:])]


def test_answers_of_a_server_that_tells_no_hash_have_that_of_the_folder_that_is_known_here() -> None:
    """Without it no answer of a model that is served by the name of a hub could be learned from."""
    named = BaseModel("scripted-model", "m" * 64, "t" * 64, "c" * 64)
    for adapters, hashes in ((Chosen(None, bases={named.name: named}), ("m" * 64, "t" * 64, "c" * 64)),
                             (Chosen(None), (None, None, None))):  # fmt: skip
        with ScriptedServer() as scripted:
            reply = OpenAIClient(scripted.url, "scripted-model", adapters=adapters).ask(QUESTION, NEVER)
        assert (reply.model_hash, reply.tokenizer_hash, reply.template_hash) == hashes
