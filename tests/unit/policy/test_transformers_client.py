"""A model in this process: a tiny random one, made here, so that nothing is downloaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from autoresearchd.domain.errors import Interrupted
from autoresearchd.domain.proposal import Cost
from autoresearchd.models import transformers_client
from autoresearchd.models.client import ModelClient, ModelError, Question, Trouble, perform
from autoresearchd.models.transformers_client import TransformersClient
from tests.contract.client_contract import QUESTION, ClientContract
from tests.unit.learner import tiny

pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
pytestmark = pytest.mark.slow

NEVER = threading.Event()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose own settings would bend the distribution."""
    from transformers import GenerationConfig

    place = tiny.write_model(tmp_path_factory.mktemp("model"), context=1024)
    own = GenerationConfig.from_pretrained(place)
    own.update(repetition_penalty=1.7, do_sample=True, top_k=3)
    own.save_pretrained(place)
    return place


class TestTransformersClient(ClientContract):
    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def client(self) -> Iterator[ModelClient]:
        yield TransformersClient(self.folder)


def test_the_log_probabilities_are_those_of_the_distribution_that_was_drawn_from(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reply = TransformersClient(folder).ask(replace(QUESTION, max_tokens=24, temperature=0.7), NEVER)
    assert reply.token_ids is not None
    assert reply.logprobs is not None
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(list(QUESTION.messages), add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *reply.token_ids]])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits / 0.7, dim=-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    assert reply.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert reply.sampling["logprobs_of"] == "sampling distribution"
    assert max(reply.token_ids) > 8, "top-k of the model's own settings was not applied"


def test_the_same_seed_draws_the_same_reply_and_leaves_the_random_numbers_of_others_alone(folder: Path) -> None:
    import torch

    client = TransformersClient(folder)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, again = client.ask(QUESTION, NEVER), client.ask(QUESTION, NEVER)
    other = client.ask(replace(QUESTION, seed=18), NEVER)
    assert first.token_ids == again.token_ids != other.token_ids
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_prompt_that_does_not_fit_is_not_cut_in_silence(folder: Path) -> None:
    messages = ({"role": "user", "content": "x" * 2000},)
    with pytest.raises(ModelError) as caught:
        TransformersClient(folder).ask(Question(messages), NEVER)
    assert caught.value.trouble is Trouble.CONTEXT_TOO_LONG


def test_a_stop_request_ends_a_long_reply_between_two_tokens(folder: Path) -> None:
    client, cancel = TransformersClient(folder), threading.Event()
    client.ask(replace(QUESTION, max_tokens=1), NEVER)
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(Interrupted):
        while True:  # a reply of a tiny model is short: it is asked until the request comes
            client.ask(replace(QUESTION, max_tokens=900), cancel)
    assert client.ask(replace(QUESTION, max_tokens=2), NEVER).cost.tokens_out == 2


def test_a_stop_while_the_weights_load_waits_for_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, over = threading.Event(), threading.Event()

    def load(*_: object) -> NoReturn:
        loading.set()
        over.wait()
        raise Interrupted("nobody waits for it any more")

    monkeypatch.setattr(transformers_client, "load_base", load)
    client = TransformersClient(folder)
    try:
        with pytest.raises(Interrupted):
            client.ask(QUESTION, loading)
        sent = perform(lambda: client.count_tokens(QUESTION.messages), NEVER, 10.0)  # what the stop writes down
    finally:
        over.set()
    assert sent > 0


def test_a_question_that_got_no_reply_costs_no_money(folder: Path) -> None:
    assert TransformersClient(folder).price(Cost(None, tokens_in=100, tokens_out=10)) == 0.0


def test_a_reply_that_takes_too_long_is_a_time_out(folder: Path) -> None:
    client = TransformersClient(folder)
    client.ask(replace(QUESTION, max_tokens=1), NEVER)
    with pytest.raises(ModelError) as caught:
        client.ask(replace(QUESTION, max_tokens=900, timeout=0.01), NEVER)
    assert caught.value.trouble is Trouble.TIMEOUT


def test_a_damaged_model_is_told_with_its_place(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        TransformersClient(tmp_path).ask(QUESTION, NEVER)
    assert caught.value.trouble is Trouble.NOT_FOUND
    assert str(tmp_path) in caught.value.what
