"""Tiny random language models over bytes, with a chat template, and how they are asked: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoresearchd.learner.algorithms.learnable import Learnable, Sample, Who
from autoresearchd.learner.training.local_model import LocalModel

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|stop|>")
PAD, END, STOP = 0, 1, 5
CONTEXT = 256

MESSAGES = ({"role": "system", "content": "Research."}, {"role": "user", "content": "lr = 0.1"})
SAMPLES = (
    Sample((2, 40, 41, 1, 4), (50, 51, 1), behaviour=(-1.0, -2.0, -3.0)),
    Sample((2, 40), (60, 61, 62, 63, 64, 1), temperature=0.7),
    Sample((3, 90, 91, 1, 4), (70, 71, 1)),
)


def write_tokenizer(place: Path) -> int:
    """Write a tokenizer over bytes; how many tokens it knows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<|pad|>", eos_token="<|stop|>", additional_special_tokens=list(SPECIAL[1:5])
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place)
    return len(vocabulary)


def sizes(vocabulary: int) -> dict[str, Any]:
    """Of a model of two layers, which knows two tokens that end a turn."""
    return {
        "vocab_size": vocabulary, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT, "bos_token_id": None,
        "eos_token_id": [STOP, END], "pad_token_id": PAD,
    }  # fmt: skip


def write_model(place: Path, *, seed: int = 0, context: int = CONTEXT) -> Path:
    """Write a Llama whose distributions are far from even."""
    from transformers import LlamaConfig, LlamaForCausalLM

    size = sizes(write_tokenizer(place)) | {"max_position_embeddings": context}
    config = LlamaConfig(**size, attention_dropout=0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0)
    model.save_pretrained(place)
    return place


def state(model: LocalModel, seed: int) -> dict[str, Tensor]:
    """An adapter that changes what the base says."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 0.2 * torch.randn(each.shape, generator=generator) for name, each in sorted(model.adapter_state().items())
    }


def logprobs(model: Learnable, *samples: Sample, who: Who = Who.POLICY) -> list[list[float]]:
    """Of the completions' tokens, as plain lists."""
    with torch.no_grad():
        found = model.statistics(samples, who=who)
    return [found.logprobs[row][found.batch.mask[row]].tolist() for row in range(len(samples))]
