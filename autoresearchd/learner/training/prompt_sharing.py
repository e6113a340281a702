"""Rows that begin alike, laid out as one: what they have in common once, then the rest of each, which sees no other's.

The answers of a round have one prompt, which is long, and are short themselves. Repeated in every row, the prompt is
what nearly all time and memory goes to. Here it stands once: [prompt][answer 1]…[answer G]. Positions go on behind the
prompt for each answer anew, and a mask lets a token see the prompt and what is before it in its own answer. That is
exact for attention over all that came before; which models have that, their configuration and a probe tell.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import accumulate, takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor

from autoresearchd.learner.algorithms.learnable import Sample
from autoresearchd.models.client import words_of

_MASKED = ("sdpa", "eager")
"""Implementations of attention that take a mask for each pair of tokens; flash-attention takes none."""
_FULL = "full_attention"
_ROTATED_BY_LENGTH = {"dynamic", "longrope"}
_PROBE = (24, (15, 3, 8))
LEAK = 1e-3
"""How far what others answer may move an answer's log-probabilities; it is the same computation: not at all."""


class Pack(NamedTuple):
    """Rows of a batch, by their places, that go through a model as one; they begin with ``shared`` tokens in common.

    lengths: tokens of each, with those in common.
    """

    rows: tuple[int, ...]
    shared: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return self.shared + sum(length - self.shared for length in self.lengths)


class Sharing(NamedTuple):
    """Which rows of a batch are packed.

    width: of the hidden states: how attention, which grows with the square of a pack's tokens, weighs against the rest.
    """

    width: int

    def packs(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[Pack]:
        """All rows in packs, alone where to share costs more than it saves. lengths: of each row, with its prompt."""
        packs: list[Pack] = []
        for row in sorted(range(len(prompts)), key=lambda row: (tuple(prompts[row]), row)):
            alone = Pack((row,), len(prompts[row]), (lengths[row],))
            if packs:
                last = packs[-1]
                begun = zip(prompts[last.rows[0]][: last.shared], prompts[row], strict=False)
                shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], begun))
                joined = Pack((*last.rows, row), shared, (*last.lengths, lengths[row]))
                if self._cost(joined) < self._cost(last) + self._cost(alone):
                    packs[-1] = joined
                    continue
            packs.append(alone)
        return packs

    def _cost(self, pack: Pack) -> float:
        """Work of a layer, in units of 4 × width multiplications.

        About 12 × width² weights for a token; 2 × width for each that it looks at: all under a mask, half without.
        """
        tokens = pack.tokens
        return tokens * (6.0 * self.width + (tokens if len(pack.rows) > 1 else tokens / 2))


def cut(pack: Pack, most: int) -> list[Pack]:
    """A pack in packs of at most so many tokens, the longest rows first; a row that is longer stays whole."""
    found: list[Pack] = []
    for length, row in sorted(zip(pack.lengths, pack.rows, strict=True), key=lambda each: (-each[0], each[1])):
        if found and found[-1].tokens + length - pack.shared <= most:
            last = found[-1]
            found[-1] = Pack((*last.rows, row), pack.shared, (*last.lengths, length))
        else:
            found.append(Pack((row,), pack.shared, (length,)))
    return found


def laid_out(pack: Pack, rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """A pack of several rows as a model takes it. rows: [B, L], ids of its batch. dtype: of the attention's scores.

    Ids and positions [1, T], what is added to the scores [1, 1, T, T], and where the tokens of each row stand.
    """
    device, shared = rows.device, pack.shared
    ids, positions = [rows[pack.rows[0], :shared]], [torch.arange(shared, device=device)]
    owners, places = [torch.zeros(shared, dtype=torch.long, device=device)], []
    begin = shared
    for number, (row, length) in enumerate(zip(pack.rows, pack.lengths, strict=True), start=1):
        own = length - shared
        ids.append(rows[row, shared:length])
        positions.append(torch.arange(shared, length, device=device))
        owners.append(torch.full((own,), number, dtype=torch.long, device=device))
        places.append(torch.cat((positions[0], torch.arange(begin, begin + own, device=device))))
        begin += own
    owner = torch.cat(owners)
    seen = ((owner[:, None] == owner) | (owner == 0)).tril_()
    mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)
    return torch.cat(ids)[None], torch.cat(positions)[None], mask[None, None], places


# ---------------------------------------------------------------------- which models can
def reason_against(model: Any) -> str:
    """Why a model cannot share prompts, by its configuration, where it takes a long row to show; empty: it may."""
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
    if _rotations(getattr(config, "rope_parameters", None)) & _ROTATED_BY_LENGTH:
        return "its positions depend on how long the longest row is"
    decoder = model.get_decoder()
    known = () if decoder is None else inspect.signature(decoder.forward).parameters
    return "" if {"attention_mask", "position_ids"} <= set(known) else "it takes no positions or no mask"


def _rotations(parameters: object) -> set[str]:
    """The kinds of rotary positions that a configuration names, of all layers."""
    if not isinstance(parameters, Mapping):
        return set()
    own = {str(parameters["rope_type"])} if "rope_type" in parameters else set()
    return own.union(*(_rotations(each) for each in parameters.values() if isinstance(each, Mapping)))


def probe(vocabulary: int) -> tuple[list[Sample], list[Sample]]:
    """Answers of several lengths to one prompt, on which both ways are compared; and others, but for the last one."""
    prompt, answers = _PROBE
    shown = tuple((41 * number + 7) % vocabulary for number in range(prompt))
    ends = list(accumulate(answers))

    def made(factor: int) -> list[Sample]:
        ids = tuple((factor * number + 11) % vocabulary for number in range(ends[-1]))
        return [Sample(shown, ids[end - own : end]) for end, own in zip(ends, answers, strict=True)]

    first = made(37)
    return first, [*made(53)[:-1], first[-1]]


def tolerance(dtype: torch.dtype) -> float:
    """How far log-probabilities may differ by rounding: by 1e-5 in float32, by up to 0.2 in bfloat16 (SmolLM2-135M)."""
    return LEAK if dtype in (torch.float32, torch.float64) else 0.5
