"""Writing completions in batches: each drawn by its own seed from the plain softmax, whatever is written beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.learnable import Generated
from autoresearchd.models.transformers_client import Draw, library


def batches(
    prompts: Sequence[Sequence[int]], max_tokens: int, context: int | None, rows: int
) -> list[tuple[int, list[int]]]:
    """Which prompts are answered together, at most ``rows`` at once, and with how many tokens at most.

    Prompts of about the same length go together, so that little is padded. Those whose context has no room for
    ``max_tokens`` get what it has, beside others of the same room only: nothing is ever looked at beyond the context.
    Raises UsageError: a prompt is empty or leaves no room.
    """
    rooms: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        room = max_tokens if context is None else min(max_tokens, context - len(prompt))
        if not prompt or room < 1:
            raise UsageError(
                f"prompt {number} has {len(prompt)} tokens, the context length of the model is {context}",
                hint="leave empty prompts out, and those that fill the context",
            )
        rooms.setdefault(room, []).append(number)
    found = []
    for room, numbers in rooms.items():
        ordered = sorted(numbers, key=lambda number: len(prompts[number]))
        found += [(room, ordered[at : at + rows]) for at in range(0, len(ordered), rows)]
    return found


def write(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float,
    seeds: Sequence[int],
    padding: int,
    ends: frozenset[int],
    decode: Callable[[Sequence[int]], str],
    share: bool = False,
) -> list[Generated]:
    """One completion for each prompt of a batch; padded to the left, so that all go on at the same place.

    model: a causal language model of transformers, in evaluation mode. prompts: each with room for ``max_tokens`` more.
    share: whether a prompt that is answered several times is read once, and its keys and values copied.
    """
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), padding, dtype=torch.long)
    attention = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.long)
        attention[row, width - len(prompt) :] = 1
    draw = Draw(torch, temperature, seeds, model.device)
    with torch.no_grad():
        output = model.generate(
            ids.to(model.device),
            attention_mask=attention.to(model.device),
            past_key_values=_read(model, prompts, ids, attention) if share else None,
            max_new_tokens=max_tokens,
            do_sample=False,  # ``draw`` leaves one token to choose from
            logits_processor=library("transformers").LogitsProcessorList([draw]),
        )
    found = []
    for drawn, logprobs in zip(output[:, width:].tolist(), draw.logprobs, strict=True):
        # Up to the first end; a row that has ended is filled up until the last one has.
        length = next((at + 1 for at, token in enumerate(drawn) if token in ends), len(drawn))
        own = tuple(drawn[:length])
        found.append(Generated(own, tuple(logprobs[:length]), decode(own), own[-1] in ends))
    return found


def _read(model: Any, prompts: Sequence[Sequence[int]], ids: Tensor, attention: Tensor) -> Any:
    """The cache of a batch whose prompts were each read once, up to their last token; None where all differ."""
    first: dict[tuple[int, ...], int] = {}
    rows = [first.setdefault(tuple(prompt), row) for row, prompt in enumerate(prompts)]
    if len(first) == len(rows) or ids.shape[1] < 2:
        return None
    chosen = list(first.values())
    seen = attention[chosen, :-1].to(model.device)
    cache = library("transformers").DynamicCache(config=model.config)
    model.get_decoder()(
        input_ids=ids[chosen, :-1].to(model.device),
        attention_mask=seen,
        position_ids=(seen.cumsum(dim=-1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
    )
    cache.batch_select_indices(torch.tensor([chosen.index(row) for row in rows], device=model.device))
    return cache
