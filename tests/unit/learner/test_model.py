"""The model that is trained scores as the model that answered, and only what shall learn does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.learnable import Sample, Who
from autoresearchd.learner.training.load_model import ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.models.client import Question
from autoresearchd.models.transformers_client import TransformersClient
from tests.unit.learner import tiny
from tests.unit.learner.tiny import MESSAGES, SAMPLES, logprobs, state

pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def model(folder: Path) -> LocalModel:
    """With an adapter that is not the fresh one: it changes what the base says."""
    loaded = LocalModel.load(folder, ModelOptions(value_head=True))
    loaded.load_adapter_state(state(loaded, 1))
    return loaded


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_are_those_that_were_recorded_when_the_model_answered(folder: Path, temperature: float) -> None:
    question = Question(MESSAGES, max_tokens=40, temperature=temperature, seed=3)
    reply = TransformersClient(folder).ask(question, threading.Event())
    model = LocalModel.load(folder)
    assert reply.token_ids is not None
    assert reply.logprobs is not None
    prompt = model.encode(MESSAGES)
    assert len(prompt) == reply.cost.tokens_in
    [scored] = logprobs(model, Sample(prompt, reply.token_ids, temperature=temperature))
    assert scored == pytest.approx(list(reply.logprobs), abs=1e-4)
    assert model.hashes == (reply.model_hash, reply.tokenizer_hash, reply.template_hash)


def test_what_is_scored_beside_it_changes_no_score(model: LocalModel) -> None:
    together = logprobs(model, *SAMPLES)
    alone = [logprobs(model, sample)[0] for sample in SAMPLES]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_only_the_adapter_and_the_value_head_learn(model: LocalModel) -> None:
    base = {name: p.detach().clone() for name, p in model._base.named_parameters() if "lora_" not in name}
    found = model.statistics(SAMPLES, values=True)
    assert found.values is not None
    (found.tokens.logprobs.sum() + found.values.sum()).backward()
    assert len(model.trainable()) == len(model.adapter_state())
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.trainable())
    assert all(p.dtype is torch.float32 for p in model.trainable())
    others = [p for p in model._adapted.parameters() if not any(p is each for each in model.trainable())]
    assert others
    assert all(p.grad is None and not p.requires_grad for p in others)
    torch.optim.AdamW(model.trainable(), lr=0.1).step()
    for name, p in model._base.named_parameters():
        if "lora_" not in name:
            assert torch.equal(p, base[name])


def test_a_gradient_is_that_of_a_difference_quotient(model: LocalModel) -> None:
    parameter = model.trainable()[0]
    model.statistics(SAMPLES).tokens.logprobs.sum().backward()
    assert parameter.grad is not None
    gradient, step = float(parameter.grad.flatten()[0]), 2e-3
    totals = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter.flatten()[0] += sign * step
            totals.append(float(model.statistics(SAMPLES).tokens.logprobs.sum()))
            parameter.flatten()[0] -= sign * step
    assert gradient == pytest.approx((totals[0] - totals[1]) / (2 * step), rel=0.05, abs=1e-3)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_others_may_score_between_the_policys_score_and_its_gradient(folder: Path, checkpointing: bool) -> None:
    gradients = []
    for others in (False, True):
        model = LocalModel.load(folder, ModelOptions(checkpointing=checkpointing))
        model.load_adapter_state(state(model, 1))
        model.set_teacher(state(model, 2))
        found = model.statistics(SAMPLES)
        if others:
            assert not model.statistics(SAMPLES, who=Who.TEACHER).tokens.logprobs.requires_grad
            assert not model.statistics(SAMPLES, who=Who.BASE).tokens.logprobs.requires_grad
            model.generate([SAMPLES[0].prompt], max_tokens=3, temperature=1.0, seeds=[1])
        found.tokens.logprobs.sum().backward()
        gradients.append([p.grad for p in model.trainable()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_the_teacher_scores_with_its_own_weights_and_the_policy_keeps_its(model: LocalModel) -> None:
    own, other = model.adapter_state(), state(model, 2)
    before = logprobs(model, *SAMPLES)
    assert logprobs(model, *SAMPLES, who=Who.TEACHER) == logprobs(model, *SAMPLES, who=Who.BASE)
    model.set_teacher(other)
    taught = logprobs(model, *SAMPLES, who=Who.TEACHER)
    assert logprobs(model, *SAMPLES) == before != taught
    assert logprobs(model, *SAMPLES, who=Who.BASE) not in (before, taught)
    model.load_adapter_state(other)
    assert logprobs(model, *SAMPLES) == taught
    model.load_adapter_state(own)
    model.set_teacher(own)
    assert logprobs(model, *SAMPLES, who=Who.TEACHER) == before
    model.set_teacher(None)
    assert logprobs(model, *SAMPLES, who=Who.TEACHER) == logprobs(model, *SAMPLES, who=Who.BASE)


def test_the_value_head_knows_nothing_at_first_and_sees_the_prompt_only(folder: Path) -> None:
    model = LocalModel.load(folder, ModelOptions(value_head=True))
    first = model.statistics(SAMPLES, values=True).values
    assert first is not None
    assert first.tolist() == [0.0, 0.0, 0.0]
    assert first.dtype is torch.float32
    model.load_adapter_state(state(model, 1))
    others = [Sample(each.prompt, (each.completion[0] + 1,)) for each in SAMPLES]
    one, other = model.statistics(SAMPLES, values=True).values, model.statistics(others, values=True).values
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert len(set(one.tolist())) == 3


def test_a_completion_ends_with_the_token_that_ends_a_turn_in_the_chat_template(folder: Path) -> None:
    model = LocalModel.load(folder)
    assert model.ends == {tiny.STOP, tiny.END}
    ids = model.tokens("lr = 0.2")
    assert ids[-1] == tiny.END, "the template ends turns with another token than the tokenizer's own"
    assert len(ids) == 9


def test_more_than_the_context_holds_is_refused_and_not_cut(model: LocalModel) -> None:
    assert model.context == tiny.CONTEXT
    with pytest.raises(UsageError, match="context length of the model is 256"):
        model.statistics([Sample((40,) * 250, (41,) * 10)])
