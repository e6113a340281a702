"""Adapters come back as they were saved, scores are those of the answers, completions depend on their seed alone."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError
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
    loaded = LocalModel.load(folder, ModelOptions(value_head=True, rank=4, alpha=8))
    loaded.load_adapter_state(state(loaded, 1))
    return loaded


@pytest.fixture
def saved(model: LocalModel, tmp_path: Path) -> Path:
    model.save(tmp_path / "v1")
    return tmp_path / "v1"


def test_a_saved_adapter_scores_as_the_one_that_was_trained(folder: Path, model: LocalModel, saved: Path) -> None:
    again = LocalModel.load(folder, ModelOptions(adapter=saved, value_head=True))
    assert logprobs(again, *SAMPLES) == logprobs(model, *SAMPLES)
    states = model.adapter_state(), again.adapter_state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_an_adapter_of_peft_is_trained_on(folder: Path, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    config = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", "init_lora_weights": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(folder), peft.LoraConfig(**config))
    adapted.save_pretrained(tmp_path / "theirs")
    model, sample = LocalModel.load(folder, ModelOptions(adapter=tmp_path / "theirs")), SAMPLES[0]
    ids = torch.tensor([[*sample.prompt, *sample.completion]])
    with torch.no_grad():
        logits = adapted.eval()(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1]
    expected = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(sample.completion)[:, None])[:, 0]
    assert logprobs(model, sample)[0] == pytest.approx(expected.tolist(), abs=1e-5)
    assert logprobs(model, sample) != logprobs(LocalModel.load(folder), sample)


def test_a_saved_adapter_names_no_path_of_this_machine(saved: Path, folder: Path) -> None:
    config = json.loads((saved / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == folder.name
    assert config["inference_mode"] is True
    assert config["r"] == 4
    assert str(folder.parent) not in "".join(p.read_text() for p in saved.glob("*.json"))


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def spoil(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(path)
    next(iter(tensors.values())).flatten()[0] = float("nan")
    save_file(tensors, path)


def lose_a_tensor(path: Path) -> None:
    from safetensors.torch import load_file, save_file

    save_file(dict(list(load_file(path).items())[1:]), path)


CONFIG, WEIGHTS, HEAD = "adapter_config.json", "adapter_model.safetensors", "value_head.safetensors"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / CONFIG).unlink(), "adapter_config.json cannot be read"),
        (lambda folder: (folder / CONFIG).write_text("{"), "adapter_config.json cannot be read"),
        (lambda folder: (folder / CONFIG).write_text("[]"), "adapter_config.json cannot be read"),
        (lambda folder: change(folder / CONFIG, peft_type="VERA"), "no plain LoRA adapter"),
        (lambda folder: change(folder / CONFIG, r=8), "expected"),
        (lambda folder: change(folder / CONFIG, target_modules=["q_proj"]), "does not fit the model"),
        (lambda folder: (folder / WEIGHTS).unlink(), "adapter_model.safetensors cannot be read"),
        (lambda folder: cut(folder / WEIGHTS), "adapter_model.safetensors cannot be read"),
        (lambda folder: lose_a_tensor(folder / WEIGHTS), "does not fit the model: it lacks"),
        (lambda folder: spoil(folder / WEIGHTS), "NaN or infinite"),
        (lambda folder: cut(folder / HEAD), "value_head.safetensors cannot be read"),
    ],
)
def test_what_is_no_whole_adapter_is_told(
    folder: Path, saved: Path, damage: Callable[[Path], object], says: str
) -> None:
    damage(saved)
    with pytest.raises(UsageError, match=says) as caught:
        LocalModel.load(folder, ModelOptions(adapter=saved, value_head=True))
    assert caught.value.hint


def test_writing_that_is_cut_short_leaves_no_adapter(model: LocalModel, saved: Path) -> None:
    (saved / WEIGHTS).unlink()
    (saved / WEIGHTS).mkdir()  # it cannot be written
    with pytest.raises(EnvironmentFailure, match="cannot be written"):
        model.save(saved)
    assert not (saved / CONFIG).exists()


def test_a_state_is_taken_as_a_whole_or_not_at_all(model: LocalModel) -> None:
    before = model.adapter_state()
    for name, value in (("value_head.bias", torch.tensor([float("nan")])), ("value_head.bias", torch.zeros(2))):
        with pytest.raises(UsageError, match=r"value_head\.bias"):
            model.load_adapter_state(state(model, 2) | {name: value})
    with pytest.raises(UsageError, match="lacks"):
        model.load_adapter_state(dict(list(before.items())[1:]))
    after = model.adapter_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("package", ["transformers", "peft", "safetensors.torch"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    folder: Path, saved: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingCapability, match=package) as caught:
        LocalModel.load(folder, ModelOptions(adapter=saved))
    assert "autoresearchd[learn]" in caught.value.hint


# ---------------------------------------------------------------------- model
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
    found = model.statistics(SAMPLES, values=True)
    assert found.values is not None
    (found.logprobs.sum() + found.values.sum()).backward()
    own = model.trainable()
    assert len(own) == len(model.adapter_state())
    assert all(p.grad is not None and bool(p.grad.any()) and p.dtype is torch.float32 for p in own)
    others = [p for p in model._adapted.parameters() if not any(p is each for each in own)]
    assert others
    assert all(p.grad is None and not p.requires_grad for p in others)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_others_may_score_between_the_policys_score_and_its_gradient(folder: Path, checkpointing: bool) -> None:
    gradients = []
    for others in (False, True):
        model = LocalModel.load(folder, ModelOptions(checkpointing=checkpointing))
        model.load_adapter_state(state(model, 1))
        model.set_teacher(state(model, 2))
        found = model.statistics(SAMPLES)
        if others:
            assert not model.statistics(SAMPLES, who=Who.TEACHER).logprobs.requires_grad
            assert not model.statistics(SAMPLES, who=Who.BASE).logprobs.requires_grad
            model.generate([SAMPLES[0].prompt], max_tokens=3, temperature=1.0, seeds=[1])
        found.logprobs.sum().backward()
        gradients.append([p.grad for p in model.trainable()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def test_the_teacher_scores_with_its_own_weights_and_the_policy_keeps_its(model: LocalModel) -> None:
    own, other = model.adapter_state(), state(model, 2)
    before = logprobs(model, *SAMPLES)
    model.set_teacher(other)
    taught = logprobs(model, *SAMPLES, who=Who.TEACHER)
    assert logprobs(model, *SAMPLES) == before != taught
    assert logprobs(model, *SAMPLES, who=Who.BASE) not in (before, taught)
    model.load_adapter_state(other)
    assert logprobs(model, *SAMPLES) == taught
    model.load_adapter_state(own)
    model.set_teacher(own)
    assert logprobs(model, *SAMPLES, who=Who.TEACHER) == before


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


# ---------------------------------------------------------------------- writing
PROMPTS = ((2, 40, 41, 1, 4), (3, 90), (2, 77, 78, 79, 80, 81, 82, 1, 4), (3, 12, 4))
SEEDS = (11, 12, 13, 14)


@pytest.fixture(scope="module")
def writer(folder: Path) -> LocalModel:
    return LocalModel.load(folder, ModelOptions(generated=3))


def test_the_same_seed_writes_the_same_whatever_is_written_beside_it(writer: LocalModel) -> None:
    together = writer.generate(PROMPTS, max_tokens=20, temperature=0.9, seeds=SEEDS)
    turned = writer.generate(PROMPTS[::-1], max_tokens=20, temperature=0.9, seeds=SEEDS[::-1])
    alone = [
        writer.generate([prompt], max_tokens=20, temperature=0.9, seeds=[seed])[0]
        for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
    ]
    assert [each.ids for each in together] == [each.ids for each in turned[::-1]] == [each.ids for each in alone]
    others = writer.generate(PROMPTS, max_tokens=20, temperature=0.9, seeds=[1, 2, 3, 4])
    assert [each.ids for each in together] != [each.ids for each in others]


def test_the_same_seed_writes_what_the_client_that_answers_would(folder: Path, writer: LocalModel) -> None:
    question = Question(MESSAGES, max_tokens=30, temperature=0.8, seed=7)
    reply = TransformersClient(folder).ask(question, threading.Event())
    [written] = writer.generate([writer.encode(MESSAGES)], max_tokens=30, temperature=0.8, seeds=[7])
    assert (written.ids, written.text) == (reply.token_ids, reply.text)
    assert written.logprobs == pytest.approx(reply.logprobs, abs=1e-5)


def test_a_prompt_that_is_answered_several_times_is_answered_as_alone(folder: Path) -> None:
    model = LocalModel.load(folder, ModelOptions(generated=8))
    assert model.sharing is not None
    prompts, seeds = [PROMPTS[0], PROMPTS[2]] * 3 + [PROMPTS[1]], list(range(7))
    together = model.generate(prompts, max_tokens=20, temperature=0.9, seeds=seeds)
    apart = LocalModel.load(folder, ModelOptions(generated=8, share_prompts=False))
    alone = apart.generate(prompts, max_tokens=20, temperature=0.9, seeds=seeds)
    assert [each.ids for each in together] == [each.ids for each in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert len({each.ids for each in together}) == 7


def test_a_completion_ends_where_the_model_ends_it_or_where_it_is_cut_off(writer: LocalModel) -> None:
    seeds = list(range(20))
    written = writer.generate([PROMPTS[0]] * 20, max_tokens=150, temperature=1.5, seeds=seeds)
    assert len({each.ids[-1] in writer.ends for each in written}) == 2
    for each in written:
        assert len(each.ids) == len(each.logprobs)
        assert not set(each.ids[:-1]) & writer.ends
        assert each.ids[-1] in writer.ends or len(each.ids) == 150
        assert "<|" not in each.text


@pytest.mark.parametrize("prompt", [(), (40,) * tiny.CONTEXT])
def test_a_prompt_that_leaves_no_room_is_refused(writer: LocalModel, prompt: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="prompt 1 has"):
        writer.generate([PROMPTS[0], prompt], max_tokens=20, temperature=1.0, seeds=[1, 2])
