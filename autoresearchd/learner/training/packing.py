"""Rows that begin alike, laid out as one: what they have in common once, then the rest of each, which sees no other's.

The answers of a round have one prompt, which is long, and are short themselves. Repeated in every row, the prompt is
what nearly all time and memory goes to. Here it stands once: [prompt][answer 1]…[answer G]. Positions go on behind the
prompt for each answer anew, and a mask lets a token see the prompt and what is before it in its own answer. That is
exact for attention over all that came before; ``sharing`` finds out for which models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Pack:
    """Rows that go through a model as one.

    rows: their places in the batch. shared: how many tokens they begin with in common. lengths: tokens of each, with
    those in common.
    """

    rows: tuple[int, ...]
    shared: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens that go through the model."""
        return self.shared + sum(length - self.shared for length in self.lengths)


@dataclass(frozen=True, slots=True)
class Layout:
    """A pack as a model takes it.

    ids, positions: [1, T]. seen: [T, T], True where a token (row) sees another (column). places: of each row of the
    pack, where its tokens stand.
    """

    ids: Tensor
    positions: Tensor
    seen: Tensor
    places: tuple[Tensor, ...]

    def mask(self, dtype: torch.dtype) -> Tensor:
        """What is added to the attention's scores, [1, 1, T, T]."""
        added = torch.zeros(self.seen.shape, dtype=dtype, device=self.seen.device)
        return added.masked_fill_(~self.seen, torch.finfo(dtype).min)[None, None]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Which rows of a batch are packed.

    width: of the hidden states. It decides how attention, which grows with the square of a pack's tokens, weighs
    against all else, which grows with their number.
    """

    width: int

    def packs(self, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[Pack]:
        """All rows in packs; each row is in one, alone where to share costs more than it saves.

        prompts: of each row, the tokens that it may share. lengths: tokens of each row, with its prompt.
        """
        found: list[Pack] = []
        for row in sorted(range(len(prompts)), key=lambda row: (tuple(prompts[row]), row)):
            alone = Pack((row,), len(prompts[row]), (lengths[row],))
            if found:
                last = found[-1]
                begun = prompts[last.rows[0]][: last.shared]
                joined = Pack((*last.rows, row), common(begun, prompts[row]), (*last.lengths, lengths[row]))
                if self._cost(joined) < self._cost(last) + self._cost(alone):
                    found[-1] = joined
                    continue
            found.append(alone)
        return found

    def _cost(self, pack: Pack) -> float:
        """Work of a layer, in units of 4 × width multiplications.

        About 12 × width² weights for each token; and 2 × width for each token that it looks at, forth and back: all of
        them under a mask, half of them where the attention knows that none looks ahead.
        """
        tokens = pack.tokens
        return tokens * (6.0 * self.width + (tokens if len(pack.rows) > 1 else tokens / 2))


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


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


def laid_out(pack: Pack, rows: Tensor) -> Layout:
    """A pack as a model takes it.

    pack: of several rows. rows: [B, L], ids of the batch that the pack is of, padded to the right.
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
    seen = (owner[:, None] == owner) | (owner == 0)
    return Layout(torch.cat(ids)[None], torch.cat(positions)[None], seen.tril_(), tuple(places))
