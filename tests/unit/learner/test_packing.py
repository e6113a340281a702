"""A prompt that is computed once for several answers changes nothing of what is learned from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, wraps
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from autoresearchd.learner.algorithms.learnable import Sample, Statistics
from autoresearchd.learner.training.load_model import Loaded, ModelOptions
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.training.prompt_sharing import Sharing, reason_against
from autoresearchd.models.transformers_client import told
from tests.unit.learner import tiny

pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
pytest.importorskip("peft", reason="pip install 'autoresearchd[learn]'")

tokens = st.lists(st.integers(6, 200), min_size=1, max_size=12).map(tuple)
groups = st.lists(st.tuples(tokens, st.lists(tokens, min_size=1, max_size=4)), min_size=1, max_size=3)


def samples_of(groups: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]]) -> list[Sample]:
    """Answers to some prompts, those to one not next to each other."""
    found = [
        (number, Sample(prompt, answer, tuple(-0.1 * i - 1 for i in range(len(answer))), 0.5 + 0.5 * (number % 3)))
        for prompt, answers in groups
        for number, answer in enumerate(answers)
    ]
    return [sample for _, sample in sorted(found, key=lambda each: each[0])]


# -- what comes out is the same
def llama(**more: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**(tiny.sizes(262) | more)))


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    still: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    size = {"vocab_size": 262, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": tiny.CONTEXT}
    return GPT2LMHeadModel(GPT2Config(**size, **still))


MODELS = {"llama": llama, "gpt2": gpt2}
Both = tuple[LocalModel, LocalModel]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    place = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(place)
    return AutoTokenizer.from_pretrained(place)


def made(base: Any, tokenizer: Any, **options: Any) -> LocalModel:
    """A tiny random model with an adapter that changes what it says, in float64."""
    import peft
    import transformers

    settings_of: Any = transformers.GenerationConfig
    base.generation_config = settings_of(eos_token_id=[tiny.STOP, tiny.END], pad_token_id=tiny.PAD)
    transposed = base.config.model_type == "gpt2"
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", fan_in_fan_out=transposed)
    for module in base.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = MethodType(normed, module)
    with told(Path()):
        adapted = peft.get_peft_model(base.eval(), config, adapter_name="default").eval()
    loaded = Loaded(adapted.double(), base, tokenizer, ("m", "t", "c"), torch.device("cpu"))
    model = LocalModel(loaded, ModelOptions(value_head=True, **options))
    model.load_adapter_state({name: each.to(base.dtype) for name, each in tiny.state(model, 1).items()})
    return model


def normed(self: Any, states: Tensor) -> Tensor:
    """The norm of Llama and its like without its detour through float32, which would hide what differs."""
    scaled: Tensor = self.weight * states * torch.rsqrt(states.square().mean(-1, keepdim=True) + self.variance_epsilon)
    return scaled


def built(name: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        base = MODELS[name]()
    with torch.no_grad():
        for parameter in base.parameters():
            parameter.mul_(2.0)
    return base


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, tokenizer: Any) -> Both:
    """The same model twice: its answers share their prompt, and they do not."""
    sharing, apart = (made(built(request.param), tokenizer, share_prompts=shared) for shared in (True, False))
    assert sharing.sharing == Sharing(32), sharing.apart
    assert (apart.sharing, apart.apart) == (None, "share_prompts is false")
    return sharing, apart


def figures(found: Statistics) -> list[Tensor]:
    return [each.detach() for each in (found.logprobs, found.entropy, found.top_logprobs) if each is not None]


def gradients(model: LocalModel, found: Statistics, weights: Tensor) -> list[Tensor]:
    """Of a sum of all that is said of the tokens, each with its own weight."""
    assert found.top_logprobs is not None
    total = (weights * (found.logprobs + 0.3 * found.entropy + 0.1 * found.top_logprobs.square().sum(-1))).sum()
    return list(torch.autograd.grad(total, list(model._policy.values())))


@given(groups, st.integers(0, 5))
@settings(max_examples=12, deadline=None)
def test_what_is_said_of_each_token_and_the_gradient_are_the_same(
    both: Both, groups: list[tuple[tuple[int, ...], list[tuple[int, ...]]]], seed: int
) -> None:
    samples = samples_of([((*prompt, 2, 3, *prompt, 4), answers) for prompt, answers in groups])
    found: list[Statistics] = []
    grads: list[list[Tensor]] = []
    for model in both:
        at = None if not found else found[0].top_indices
        found.append(model.statistics(samples, top=3 if at is None else 0, at=at))
        weights = torch.rand(found[-1].batch.mask.shape, generator=torch.Generator().manual_seed(seed)).double()
        grads.append(gradients(model, found[-1], weights))
    for one, other in zip(*map(figures, found), strict=True):
        assert float((one - other).abs().max()) < 1e-6
    for one, other in zip(*grads, strict=True):
        assert float((one - other).abs().max()) < 1e-6 * max(1.0, float(other.abs().max()))
    assert torch.equal(found[0].batch.mask, found[1].batch.mask)
    assert torch.equal(found[0].batch.behaviour, found[1].batch.behaviour)


SAMPLES = samples_of([((7, 8, 9) * 12, [(10, 11), (12,), (13, 14, 15)]), ((20, 21), [(22, 23)])])


def test_values_are_of_each_prompts_end_however_it_is_laid_out(both: Both) -> None:
    found, grads = [], []
    for model in both:
        values = model.statistics(SAMPLES, values=True).values
        assert values is not None
        found.append(values)
        grads.append(torch.autograd.grad(values.square().sum(), model.trainable()))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-5)
    first, other, *rest = found[0].detach().tolist()
    assert rest == pytest.approx([first, first], abs=1e-6), "answers to one prompt are actions in one state"
    assert abs(first - other) > 1e-3


# -- models that cannot
class Leaky(torch.nn.Module):
    """A layer that mixes what it is given along the row, as a convolution or a state does."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: Tensor, *rest: Any, **more: Any) -> Any:
        before = torch.nn.functional.pad(states, (0, 0, 1, 0))[:, :-1]
        return self.inner(states + 0.5 * before, *rest, **more)


def test_a_model_whose_answers_would_see_each_other_scores_them_apart_and_says_by_how_much(tokenizer: Any) -> None:
    base = built("llama")
    base.model.layers[0].mlp = Leaky(base.model.layers[0].mlp)
    model = made(base, tokenizer)
    assert model.sharing is None
    assert "log-probabilities differ by" in model.apart
    with torch.no_grad():
        together = model.statistics(SAMPLES).logprobs
        alone = [model.statistics([each]).logprobs[0] for each in SAMPLES]
    for row, one in zip(together, alone, strict=True):
        assert float((row[: len(one)] - one).abs().max()) < 1e-6


def test_a_model_that_fails_where_it_is_tried_scores_apart_and_ends_no_run(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = built("llama")
    forward = type(base.model).forward

    @wraps(forward)
    def picky(self: Any, *args: Any, attention_mask: Tensor | None = None, **more: Any) -> Any:
        if attention_mask is not None and attention_mask.dim() == 4:
            raise ValueError("masks of four dimensions\x1b[31m are not known here")
        return forward(self, *args, attention_mask=attention_mask, **more)

    monkeypatch.setattr(type(base.model), "forward", picky)
    model = made(base, tokenizer)
    assert model.sharing is None
    assert "ValueError: masks of four dimensions" in model.apart
    assert "\x1b" not in model.apart
    assert torch.isfinite(model.statistics(SAMPLES).logprobs).all()


def mistral() -> Any:
    from transformers import MistralConfig, MistralForCausalLM

    return MistralForCausalLM(MistralConfig(**tiny.sizes(262), sliding_window=64))


ROPE = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("make", "words"), [(mistral, "window"), (partial(llama, rope_parameters=ROPE), "longest row")]
)
def test_what_a_short_probe_could_not_show_is_known_from_the_configuration(make: Any, words: str) -> None:
    assert words in reason_against(make())
