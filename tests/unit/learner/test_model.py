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


def test_a_fresh_adapter_leaves_the_model_as_it_is(folder: Path) -> None:
    model = LocalModel.load(folder)
    assert logprobs(model, *SAMPLES) == logprobs(model, *SAMPLES, who=Who.BASE)


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


def test_each_sample_has_its_temperature_entropy_and_likeliest_tokens(model: LocalModel) -> None:
    with torch.no_grad():
        found = model.statistics(SAMPLES, top=4)
        again = model.statistics(SAMPLES, at=found.tokens.top_indices)
    assert found.tokens.top_logprobs is not None
    assert found.tokens.entropy.shape == found.batch.mask.shape
    torch.testing.assert_close(again.tokens.top_logprobs, found.tokens.top_logprobs)
    hot = Sample(SAMPLES[1].prompt, SAMPLES[1].completion, temperature=2.0)
    assert logprobs(model, hot) != logprobs(model, SAMPLES[1])


def test_what_is_scored_beside_it_changes_no_score(model: LocalModel) -> None:
    together = logprobs(model, *SAMPLES)
    alone = [logprobs(model, sample)[0] for sample in SAMPLES]
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_stored_log_probabilities_stand_where_their_tokens_do(model: LocalModel) -> None:
    with torch.no_grad():
        found = model.statistics(SAMPLES)
    assert found.batch.behaviour[0][found.batch.mask[0]].tolist() == [-1.0, -2.0, -3.0]
    assert float(found.batch.behaviour[1].abs().sum()) == 0.0


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


def test_checkpointing_changes_memory_not_gradients(folder: Path) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = LocalModel.load(folder, ModelOptions(checkpointing=checkpointing))
        model.load_adapter_state(state(model, 1))
        model.statistics(SAMPLES).tokens.logprobs.sum().backward()
        gradients.append([p.grad for p in model.trainable()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("who", [Who.BASE, Who.TEACHER])
def test_the_policy_is_itself_again_after_a_failure_of_another(model: LocalModel, who: Who) -> None:
    model.set_teacher(state(model, 2))
    before = logprobs(model, *SAMPLES)
    with pytest.raises((IndexError, RuntimeError)), torch.no_grad():
        model.statistics(SAMPLES, who=who, at=torch.zeros((1, 1, 1), dtype=torch.long))
    assert logprobs(model, *SAMPLES) == before
    assert all(parameter.requires_grad for parameter in model.trainable())


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


def test_values_without_a_value_head_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="value head"):
        LocalModel.load(folder).statistics(SAMPLES, values=True)


def test_bfloat16_learns_in_float32(folder: Path) -> None:
    model = LocalModel.load(folder, ModelOptions(dtype="bfloat16", value_head=True))
    found = model.statistics(SAMPLES, values=True)
    assert found.values is not None
    (found.tokens.logprobs.sum() + found.values.sum()).backward()
    assert found.tokens.logprobs.dtype is torch.float32
    assert {p.dtype for p in model.trainable()} == {torch.float32}


def test_a_model_that_scales_its_logits_is_scored_as_it_speaks(tmp_path: Path) -> None:
    model = LocalModel.load(tiny.write_scaled_model(tmp_path), ModelOptions(value_head=True))
    assert model._head is None
    [written] = model.generate([SAMPLES[0].prompt], max_tokens=12, temperature=0.8, seeds=[4])
    [scored] = logprobs(model, Sample(SAMPLES[0].prompt, written.ids, temperature=0.8))
    assert scored == pytest.approx(list(written.logprobs), abs=1e-4)
    found = model.statistics(SAMPLES, values=True)
    assert found.values is not None
    assert found.values.shape == (3,)


def test_a_completion_ends_with_the_token_that_ends_a_turn_in_the_chat_template(folder: Path) -> None:
    model = LocalModel.load(folder)
    assert model.ends == {tiny.STOP, tiny.END}
    ids = model.tokens("lr = 0.2")
    assert ids[-1] == tiny.END, "the template ends turns with another token than the tokenizer's own"
    assert len(ids) == 9


def test_what_looks_like_the_end_of_a_turn_in_a_text_is_text(folder: Path) -> None:
    ids = LocalModel.load(folder).tokens("a<|end|>b")
    assert ids.count(tiny.END) == 1
    assert len(ids) == len("a<|end|>b") + 1


def test_more_than_the_context_holds_is_refused_and_not_cut(model: LocalModel) -> None:
    assert model.context == tiny.CONTEXT
    with pytest.raises(UsageError, match="context length of the model is 256"):
        model.statistics([Sample((40,) * 250, (41,) * 10)])


def test_nobody_elses_random_numbers_are_touched(folder: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other = LocalModel.load(folder), LocalModel.load(folder)
    one.set_teacher(one.adapter_state())
    one.generate([SAMPLES[0].prompt], max_tokens=4, temperature=1.0, seeds=[1])
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second = one.adapter_state(), other.adapter_state()
    assert all(torch.equal(first[name], second[name]) for name in first)
    third = LocalModel.load(folder, ModelOptions(seed=1)).adapter_state()
    assert any(not torch.equal(first[name], third[name]) for name in first)
