"""A model that learns, small enough to be computed at once: one linear layer over a vocabulary of letters."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from autoresearchd.learner.algorithms.learnable import Generated, Sample, Statistics, Who, collate, token_statistics
from autoresearchd.learner.training.prompt_sharing import Sharing

LETTERS = "abcdefghijklmn"
"""The vocabulary, after the tokens for padding (0) and for the end of a turn (1)."""

_SIZE, _WIDTH, _RANK = len(LETTERS) + 2, 16, 4


class TinyLearnable:
    """Says what comes next from the last token and from the mean of all before it, in float64 on the CPU.

    Letters that stand in its prompt are a little likelier than others, so that a teacher who has read something says
    something else. The adapter adds a product of two small matrices, of which one begins at 0. nan_calls: which of its
    scorings of the policy say NaN, from 1; sharing: how it says that answers to one prompt share it.
    """

    padding, ends, vocabulary = 0, frozenset({1}), _SIZE
    context: int | None = None
    hashes = ("tiny", "letters", "lines")
    device = torch.device("cpu")

    def __init__(self, seed: int = 0, *, nan_calls: Collection[int] = (), sharing: Sharing | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._embedding = torch.randn((_SIZE, _WIDTH), generator=generator, dtype=torch.float64)
        down = torch.randn((_RANK, _WIDTH), generator=generator, dtype=torch.float64) / _WIDTH**0.5
        self._adapter = {
            "down": torch.nn.Parameter(down),
            "up": torch.nn.Parameter(torch.zeros((_SIZE, _RANK), dtype=torch.float64)),
            "value": torch.nn.Parameter(torch.zeros(_WIDTH, dtype=torch.float64)),
        }
        self._teacher: dict[str, Tensor] | None = None
        self._nan_calls, self.sharing = frozenset(nan_calls), sharing
        self.calls = 0

    def encode(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return (*_ids("".join(f"{each['role'][0]}{each['content']}" for each in messages)), 1)

    def tokens(self, text: str) -> tuple[int, ...]:
        return (*_ids(text), 1)

    def statistics(
        self,
        samples: Sequence[Sample],
        *,
        who: Who = Who.POLICY,
        top: int = 0,
        at: Tensor | None = None,
        values: bool = False,
    ) -> Statistics:
        batch = collate(samples, padding=self.padding)
        with torch.set_grad_enabled(torch.is_grad_enabled() and who is Who.POLICY):
            hidden = self._hidden(batch.ids)
            logits = self._logits(hidden, who)
            if who is Who.POLICY:
                self.calls += 1
                if self.calls in self._nan_calls:
                    logits = logits * float("nan")
            predicting = logits[:, :-1][batch.mask]
            found = token_statistics(predicting, batch, top=min(top, _SIZE), at=at)
            value = None
            if values:
                last = torch.tensor([len(each.prompt) - 1 for each in samples])
                value = (hidden[torch.arange(len(samples)), last] @ self._adapter["value"]).float()
        return replace(found, values=value)

    def trainable(self) -> list[torch.nn.Parameter]:
        return list(self._adapter.values())

    def adapter_state(self) -> dict[str, Tensor]:
        return {name: each.detach().clone() for name, each in self._adapter.items()}

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, each in self._adapter.items():
                each.copy_(state[name])

    def set_teacher(self, state: Mapping[str, Tensor]) -> None:
        self._teacher = {name: each.clone() for name, each in state.items()}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        seeds: Sequence[int],
        who: Who = Who.POLICY,
    ) -> list[Generated]:
        rows = zip(prompts, seeds, strict=True)
        return [self._one(list(prompt), max_tokens, temperature, seed, who) for prompt, seed in rows]

    @torch.no_grad()
    def _one(self, prompt: list[int], most: int, temperature: float, seed: int, who: Who) -> Generated:
        generator = torch.Generator().manual_seed(seed)
        ids: list[int] = []
        logprobs: list[float] = []
        while len(ids) < most and not (ids and ids[-1] in self.ends):
            logits = self._logits(self._hidden(torch.tensor([prompt + ids]))[:, -1], who)[0]
            each = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
            drawn = torch.multinomial(each.exp(), 1, generator=generator)[0] if temperature > 0 else each.argmax()
            ids.append(int(drawn))
            logprobs.append(float(each[drawn]))
        text = "".join(LETTERS[token - 2] for token in ids if token > 1)
        return Generated(tuple(ids), tuple(logprobs), text)

    def _hidden(self, ids: Tensor) -> Tensor:
        each = self._embedding[ids]
        count = torch.arange(1, ids.shape[-1] + 1, dtype=torch.float64).unsqueeze(-1)
        return each + 2 * each.cumsum(dim=-2) / count

    def _logits(self, hidden: Tensor, who: Who) -> Tensor:
        logits = 0.05 * hidden @ self._embedding.T
        weights: Mapping[str, Tensor] | None = self._adapter if who is Who.POLICY else None
        if who is Who.TEACHER:
            weights = self._teacher
        return logits if weights is None else logits + hidden @ weights["down"].T @ weights["up"].T


def _ids(text: str) -> tuple[int, ...]:
    """One token for each character; those that are none of its letters are taken for one of them."""
    return tuple(2 + (LETTERS.index(c) if c in LETTERS else ord(c) % len(LETTERS)) for c in text)
