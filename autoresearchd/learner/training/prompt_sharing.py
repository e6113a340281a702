"""Whether a model can read several answers after one prompt: what its configuration says, and what a probe shows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from autoresearchd.learner.algorithms.learnable import Sample
from autoresearchd.models.provider_errors import words_of

_MASKED = ("sdpa", "eager")
"""Implementations of attention that take a mask for each pair of tokens; flash-attention takes none."""
_FULL = "full_attention"
_ROTATED_BY_LENGTH = ("dynamic", "longrope")
_PROBE = (24, (15, 3, 8))
LEAK = 1e-3
"""How far what others answer may move an answer's log-probabilities; it is the same computation: not at all."""


def reason_against(model: Any) -> str:
    """Why a model's answers cannot share a prompt, by its configuration; empty: nothing is known.

    A probe would not show it where it takes a long row to show: a window, or positions that are rotated by the length
    of the longest row.

    model: a causal language model of transformers.
    """
    config = model.config.get_text_config()
    attention = getattr(config, "_attn_implementation", None)
    if attention not in _MASKED:
        return f"its attention ({words_of(str(attention))}) takes no mask of our own"
    kinds = getattr(config, "layer_types", None)
    other = sorted({str(kind) for kind in kinds or ()} - {_FULL})
    if other:
        return f"it has layers of another kind than full attention: {words_of(', '.join(other))}"
    if not kinds and (getattr(config, "sliding_window", None) or getattr(config, "attention_chunk_size", None)):
        return "its attention looks back through a window"
    if _rotations(getattr(config, "rope_parameters", None)) & set(_ROTATED_BY_LENGTH):
        return "its positions depend on how long the longest row is"
    decoder = model.get_decoder()
    known = () if decoder is None else inspect.signature(decoder.forward).parameters
    if not {"attention_mask", "position_ids"} <= set(known):
        return "it takes no positions or no mask"
    return ""


def probe(vocabulary: int) -> tuple[list[Sample], list[Sample]]:
    """Answers of several lengths to one prompt, on which both ways are compared; and others, but for the last one.

    vocabulary: token ids are below this.
    """
    prompt, answers = _PROBE
    found: tuple[list[Sample], list[Sample]] = ([], [])
    for factor, into in zip((37, 53), found, strict=True):
        ids = [(factor * number + 11) % vocabulary for number in range(sum(answers))]
        starts = [sum(answers[:number]) for number in range(len(answers))]
        shown = tuple((41 * number + 7) % vocabulary for number in range(prompt))
        into += [Sample(shown, tuple(ids[at : at + own])) for at, own in zip(starts, answers, strict=True)]
    return found[0], [*found[1][:-1], found[0][-1]]


def tolerance(dtype: torch.dtype) -> float:
    """How far log-probabilities of the likeliest tokens may differ between both ways, by rounding.

    In bfloat16 they were found to differ by up to 0.2 (SmolLM2-135M); what is exact differs by 1e-5 in float32.
    """
    return LEAK if dtype in (torch.float32, torch.float64) else 0.5


def _rotations(parameters: object) -> set[str]:
    """The kinds of rotary positions that a configuration names, of all layers."""
    if not isinstance(parameters, Mapping):
        return set()
    own = {str(parameters["rope_type"])} if "rope_type" in parameters else set()
    return own.union(*(_rotations(each) for each in parameters.values() if isinstance(each, Mapping)))
