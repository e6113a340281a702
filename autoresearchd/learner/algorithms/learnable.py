"""What the algorithms need of a model that learns; and log-probabilities of tokens, in pieces of bounded memory.

All is computed in float32 (float64 stays float64), whatever the model's own precision. The vocabulary is what costs
memory: a float32 copy of the logits of 16 × 1,000 tokens of a vocabulary of 150,000 has 9.6 GB. Tokens are therefore
taken ``rows`` at a time, and each piece is computed again in the backward pass (activation checkpointing): about
6 × rows × V numbers live at once (measured) instead of 6 × B × T × V. With ``head`` (hidden states in, logits out) the
logits of the whole batch never exist either. Only tokens of completions are computed at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autoresearchd.domain.errors import UsageError

if TYPE_CHECKING:
    from autoresearchd.learner.training.prompt_sharing import Sharing

ROWS = 256
"""Tokens whose logits are in memory at once."""

Head = Callable[[Tensor], Tensor]
"""From hidden states [n, D] to logits [n, V]: the model's output layer."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion with its prompt, as token ids, neither empty; behaviour: log-probabilities as they were stored."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    behaviour: tuple[float, ...] | None = None
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts with their completions, padded to L tokens; what is said of a token stands where it is predicted.

    ids, attention: [B, L], as a model takes them. mask: [B, L−1], True where a position predicts a token of the
    completion; behaviour: [B, L−1], its stored log-probability, 0 off the mask. temperatures: [B].
    """

    ids: Tensor
    attention: Tensor
    mask: Tensor
    behaviour: Tensor
    temperatures: Tensor

    @property
    def targets(self) -> Tensor:
        """The token that each position predicts."""
        return self.ids[:, 1:]

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        moved = (self.ids, self.attention, self.mask, self.behaviour, self.temperatures)
        return Batch(*(each.to(device) for each in moved))


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a model says of a batch: of each token, [B, L−1]; 0 off the mask.

    logprobs: log-probability of the target. entropy: of the distribution that it was drawn from, in nats.
    top_indices, top_logprobs: [B, L−1, k], where they were asked for; normalised over the whole vocabulary. values:
    [B], float32, of the state at the last token of the prompt, where they were asked for.
    """

    batch: Batch
    logprobs: Tensor
    entropy: Tensor
    top_indices: Tensor | None = None
    top_logprobs: Tensor | None = None
    values: Tensor | None = None


def collate(samples: Sequence[Sample], *, padding: int) -> Batch:
    """Samples as one batch, padded to the right with a token id that is attended to by nothing."""
    shape = len(samples), max(len(each.prompt) + len(each.completion) for each in samples)
    ids = torch.full(shape, padding, dtype=torch.long)
    attention, mask = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.bool)
    told = torch.zeros(shape, dtype=torch.float32)
    for row, each in enumerate(samples):
        begin, end = len(each.prompt), len(each.prompt) + len(each.completion)
        ids[row, :end] = torch.tensor([*each.prompt, *each.completion], dtype=torch.long)
        attention[row, :end] = True
        mask[row, begin:end] = True
        if each.behaviour is not None:
            told[row, begin:end] = torch.tensor(each.behaviour, dtype=torch.float32)
    heat = torch.tensor([each.temperature for each in samples], dtype=torch.float64)
    return Batch(ids, attention, mask[:, 1:], told[:, 1:], heat)


def token_statistics(
    features: Tensor,
    batch: Batch,
    *,
    head: Head | None = None,
    top: int = 0,
    at: Tensor | None = None,
    rows: int = ROWS,
) -> Statistics:
    """Log-probability and entropy of each token of the completions, and the log-probabilities of others in its place.

    Logits are divided by the temperature with which the tokens were drawn, else a ratio to stored log-probabilities
    compares two distributions that were never meant to be alike.

    features: [N, V] logits, or [N, D] hidden states where ``head`` is given, of the positions that predict a token of a
    completion, row by row. top: how many of the likeliest tokens are told. at: token ids [B, L−1, k] that are told
    instead: another model's likeliest. Raises UsageError: a temperature is not above 0.
    """
    if not bool((batch.temperatures > 0).all()):
        raise UsageError(
            "a temperature is not above 0: tokens that were not drawn at random have no ratio",
            hint="leave out what was generated with temperature 0",
        )
    mask = batch.mask
    heat = batch.temperatures.to(features.device).unsqueeze(-1).expand(mask.shape)[mask]

    def piece(part: Tensor, wanted: Tensor, heat: Tensor, others: Tensor | None) -> tuple[Tensor, ...]:
        logits = part if head is None else head(part)
        wide = logits if logits.dtype is torch.float64 else logits.float()
        logprobs = torch.log_softmax(wide / heat.to(wide.dtype).unsqueeze(-1), dim=-1)
        told = logprobs.gather(-1, wanted.unsqueeze(-1)).squeeze(-1)
        present = logprobs.masked_fill(logprobs == -math.inf, 0.0)  # 0·log 0 is 0
        entropy = -(logprobs.exp() * present).sum(dim=-1)
        if others is None and not top:
            return told, entropy
        indices = logprobs.detach().topk(top, dim=-1).indices if others is None else others
        return told, entropy, indices, logprobs.gather(-1, indices)

    parts = [torch.split(each, rows) for each in (features, batch.targets[mask], heat)]
    others = [None] * len(parts[0]) if at is None else torch.split(at[mask], rows)
    again = torch.is_grad_enabled() and (features.requires_grad or head is not None)
    found = [
        checkpoint(piece, *each, use_reentrant=False, preserve_rng_state=False) if again else piece(*each)
        for each in zip(*parts, others, strict=True)
    ]
    return Statistics(batch, *(spread(torch.cat(column), mask) for column in zip(*found, strict=True)))


def spread(values: Tensor, mask: Tensor) -> Tensor:
    """Values of the masked tokens [n, …] in their places, zero elsewhere."""
    wide = values.new_zeros((*mask.shape, *values.shape[1:]))
    return wide.masked_scatter(mask.reshape(*mask.shape, *(1 for _ in values.shape[1:])), values)


# ---------------------------------------------------------------------- models
class Who(StrEnum):
    """Whose weights: the base with the adapter that is trained, the base alone, the base with ``set_teacher``'s."""

    POLICY = "policy"
    BASE = "base"
    TEACHER = "teacher"


@dataclass(frozen=True, slots=True)
class Generated:
    """A completion: all that was drawn, with the token that ended the turn; its text without special tokens."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


class Sampler(Protocol):
    """A causal language model as far as completions are drawn from it."""

    @property
    def context(self) -> int | None:
        """How many tokens a prompt and its completion may have together; None where there is no bound."""

    def encode(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """The prompt of a conversation, by the chat template, up to where the answer begins."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        seeds: Sequence[int],
        who: Who = Who.POLICY,
    ) -> list[Generated]:
        """One completion for each prompt, drawn from the plain softmax at the temperature (0: the likeliest token).

        seeds: one for each prompt; the same seed draws the same completion.
        """


class Learnable(Sampler, Protocol):
    """A causal language model of which an adapter, and a value head where it has one, is trained.

    It stands on one device and is used by one thread.
    """

    padding: int
    """A token id that fills up short rows."""
    vocabulary: int
    """Token ids are from 0 to below this."""
    hashes: tuple[str, str, str]
    """Of the base model, the tokenizer and the chat template, as they are stored with each answer."""
    device: torch.device
    """Where the model stands."""
    sharing: Sharing | None
    """How answers to one prompt share it where they are scored together; None: each has it anew."""

    def tokens(self, text: str) -> tuple[int, ...]:
        """A completion of that text, with the token that ends a turn."""

    def statistics(
        self,
        samples: Sequence[Sample],
        *,
        who: Who = Who.POLICY,
        top: int = 0,
        at: Tensor | None = None,
        values: bool = False,
    ) -> Statistics:
        """Score completions. Only ``Who.POLICY`` has gradients, as the caller's grad mode says; the others never do.

        top, at: as in ``token_statistics``.
        """

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that learn: of the adapter, and of the value head where there is one."""

    def adapter_state(self) -> dict[str, Tensor]:
        """Copies of the trainable parameters by name, on the CPU."""

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        """Put such copies back."""

    def set_teacher(self, state: Mapping[str, Tensor]) -> None:
        """Weights that ``Who.TEACHER`` uses from now on; it scores nothing before."""
