"""Adapters come back as they were saved, and what is no whole adapter of this model is refused with its reason."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autoresearchd.domain.errors import EnvironmentFailure, MissingCapability, UsageError
from autoresearchd.learner.training.load_model import LoraOptions, ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from tests.unit.learner import tiny
from tests.unit.learner.tiny import SAMPLES, logprobs, state

pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def trained(folder: Path) -> LocalModel:
    model = LocalModel.load(folder, ModelOptions(value_head=True, lora=LoraOptions(rank=4, alpha=8)))
    model.load_adapter_state(state(model, 1))
    return model


@pytest.fixture
def saved(trained: LocalModel, tmp_path: Path) -> Path:
    trained.save(tmp_path / "v1")
    return tmp_path / "v1"


def test_a_saved_adapter_scores_as_the_one_that_was_trained(folder: Path, trained: LocalModel, saved: Path) -> None:
    again = LocalModel.load(folder, ModelOptions(adapter=saved, value_head=True))
    assert logprobs(again, *SAMPLES) == logprobs(trained, *SAMPLES)
    one, other = (each.statistics(SAMPLES, values=True).values for each in (trained, again))
    assert one is not None
    assert other is not None
    assert torch.equal(one, other)
    states = trained.adapter_state(), again.adapter_state()
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_an_adapter_of_peft_is_trained_on(folder: Path, tmp_path: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        adapted = peft.get_peft_model(
            AutoModelForCausalLM.from_pretrained(folder),
            peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False),
        )
    adapted.save_pretrained(tmp_path / "theirs")
    model = LocalModel.load(folder, ModelOptions(adapter=tmp_path / "theirs"))
    assert logprobs(model, SAMPLES[0]) != logprobs(LocalModel.load(folder), SAMPLES[0])
    sample = SAMPLES[0]
    ids = torch.tensor([[*sample.prompt, *sample.completion]])
    with torch.no_grad():
        logits = adapted.eval()(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1]
    expected = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(sample.completion)[:, None])[:, 0]
    assert logprobs(model, sample)[0] == pytest.approx(expected.tolist(), abs=1e-5)


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


CONFIG, WEIGHTS, BASE, HEAD = (
    "adapter_config.json",
    "adapter_model.safetensors",
    "base_model.json",
    "value_head.safetensors",
)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / CONFIG).unlink(), "adapter_config.json cannot be read"),
        (lambda folder: (folder / CONFIG).write_text("{"), "adapter_config.json cannot be read"),
        (lambda folder: (folder / CONFIG).write_text("[]"), "holds no JSON object"),
        (lambda folder: (folder / CONFIG).write_text("{" + " " * 2_000_000 + "}"), "more than 1,000,000 bytes"),
        (lambda folder: change(folder / CONFIG, peft_type="VERA"), "no plain LoRA adapter"),
        (lambda folder: change(folder / CONFIG, bias="all"), "no plain LoRA adapter"),
        (lambda folder: change(folder / CONFIG, megatron_config={"a": 1}), "it sets megatron_config"),
        (lambda folder: change(folder / CONFIG, r="16"), "is no rank"),
        (lambda folder: change(folder / CONFIG, r=8), "expected"),
        (lambda folder: change(folder / CONFIG, target_modules=["q_proj"]), "does not fit the model"),
        (lambda folder: (folder / WEIGHTS).unlink(), "adapter_model.safetensors cannot be read"),
        (lambda folder: cut(folder / WEIGHTS), "adapter_model.safetensors cannot be read"),
        (lambda folder: lose_a_tensor(folder / WEIGHTS), "does not fit the model: it lacks"),
        (lambda folder: spoil(folder / WEIGHTS), "NaN or infinite"),
        (lambda folder: cut(folder / HEAD), "value_head.safetensors cannot be read"),
        (lambda folder: (folder / BASE).write_text(""), "base_model.json cannot be read"),
    ],
)
def test_what_is_no_whole_adapter_is_told(
    folder: Path, saved: Path, damage: Callable[[Path], object], says: str
) -> None:
    damage(saved)
    with pytest.raises(UsageError, match=says) as caught:
        LocalModel.load(folder, ModelOptions(adapter=saved, value_head=True))
    assert caught.value.hint


def test_an_adapter_of_another_base_model_is_refused_although_its_shapes_fit(saved: Path, tmp_path: Path) -> None:
    other = tiny.write_model(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match="another base model: model_hash differ"):
        LocalModel.load(other, ModelOptions(adapter=saved))


def test_writing_that_is_cut_short_leaves_no_adapter(trained: LocalModel, saved: Path) -> None:
    (saved / WEIGHTS).unlink()
    (saved / WEIGHTS).mkdir()  # it cannot be written
    with pytest.raises(EnvironmentFailure, match="cannot be written"):
        trained.save(saved)
    assert not (saved / CONFIG).exists()


def test_a_state_is_taken_as_a_whole_or_not_at_all(trained: LocalModel) -> None:
    before = trained.adapter_state()
    for name, value in (("value_head.bias", torch.tensor([float("nan")])), ("value_head.bias", torch.zeros(2))):
        with pytest.raises(UsageError, match=r"value_head\.bias"):
            trained.load_adapter_state(state(trained, 2) | {name: value})
    with pytest.raises(UsageError, match="lacks"):
        trained.load_adapter_state(dict(list(before.items())[1:]))
    after = trained.adapter_state()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("package", ["transformers", "peft", "safetensors.torch"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    folder: Path, saved: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingCapability, match=package) as caught:
        LocalModel.load(folder, ModelOptions(adapter=saved))
    assert "autoresearchd[learn]" in caught.value.hint
