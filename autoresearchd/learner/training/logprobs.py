"""Log-probabilities of tokens: padded batches, statistics of each token in pieces of bounded memory, KL divergences.

All is computed in float32 (float64 stays float64), whatever the model's own precision. The vocabulary is what costs
memory: a float32 copy of the logits of 16 × 1,000 tokens of a vocabulary of 150,000 has 9.6 GB. Tokens are therefore
taken ``rows`` at a time, and each piece is computed again in the backward pass (activation checkpointing): about
6 × rows × V numbers live at once (measured) instead of 6 × B × T × V. With ``head`` (hidden states in, logits out) the
logits of the whole batch never exist either. Only tokens of the mask are computed at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from autoresearchd.domain.errors import UsageError

ROWS = 256
"""Tokens whose logits are in memory at once."""

Head = Callable[[Tensor], Tensor]
"""From hidden states [n, D] to logits [n, V]: the model's output layer."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Prompts with their completions, padded to L tokens; what is said of a token stands where it is predicted.

    ids, attention, positions: [B, L], as a model takes them. targets: [B, L−1], the token that each position predicts;
    mask: [B, L−1], True where that is a token of the completion; behaviour: [B, L−1], its stored log-probability,
    0 off the mask.
    """

    ids: Tensor
    attention: Tensor
    positions: Tensor
    mask: Tensor
    behaviour: Tensor

    @property
    def targets(self) -> Tensor:
        """The token that each position predicts."""
        return self.ids[:, 1:]


@dataclass(frozen=True, slots=True)
class TokenStatistics:
    """Of each token; 0 off the mask.

    logprobs: log-probability of the target. entropy: of the distribution that it was drawn from, in nats.
    top_indices, top_logprobs: [B, T, k], where they were asked for; normalised over the whole vocabulary.
    """

    logprobs: Tensor
    entropy: Tensor
    top_indices: Tensor | None = None
    top_logprobs: Tensor | None = None


def collate(
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    behaviour: Sequence[Sequence[float]] | None = None,
    *,
    padding: int,
    side: Literal["left", "right"] = "right",
) -> Batch:
    """Pad prompts and completions to one batch.

    Args:
        prompts: token ids; none is empty, since something must predict the first token of the completion.
        completions: token ids; none is empty.
        behaviour: stored log-probabilities of the completions' tokens, None where they do not matter.
        padding: a token id of the vocabulary; it is attended to by nothing.
        side: where the padding goes.

    Raises:
        UsageError: the batch is empty, a prompt or a completion is, or there is not one log-probability for each token.
    """
    stored = [[0.0] * len(each) for each in completions] if behaviour is None else [list(each) for each in behaviour]
    if not prompts:
        raise UsageError("the batch is empty: it has no completion to learn from", hint="leave empty batches out")
    if not len(prompts) == len(completions) == len(stored):
        raise UsageError(
            f"{len(prompts)} prompts, {len(completions)} completions and {len(stored)} rows of log-probabilities "
            "do not belong together",
            hint="give one of each for every trajectory",
        )
    rows = list(zip(prompts, completions, stored, strict=True))
    for number, (prompt, completion, logprobs) in enumerate(rows):
        if not prompt or not completion or len(completion) != len(logprobs):
            raise UsageError(
                f"row {number} of the batch: a prompt of {len(prompt)} tokens, a completion of {len(completion)} and "
                f"{len(logprobs)} log-probabilities",
                hint="leave out rows without prompt or completion, and those whose log-probabilities are not complete",
            )
    longest = max(len(prompt) + len(completion) for prompt, completion, _ in rows)
    ids = torch.full((len(rows), longest), padding, dtype=torch.long)
    attention = torch.zeros((len(rows), longest), dtype=torch.bool)
    mask = torch.zeros((len(rows), longest), dtype=torch.bool)
    told = torch.zeros((len(rows), longest), dtype=torch.float32)
    for number, (prompt, completion, logprobs) in enumerate(rows):
        length = len(prompt) + len(completion)
        first = longest - length if side == "left" else 0
        begin, end = first + len(prompt), first + length
        ids[number, first:end] = torch.tensor([*prompt, *completion], dtype=torch.long)
        attention[number, first:end] = True
        mask[number, begin:end] = True
        told[number, begin:end] = torch.tensor(logprobs, dtype=torch.float32)
    positions = (attention.cumsum(dim=-1) - 1).clamp(min=0)
    return Batch(ids, attention, positions, mask[:, 1:], told[:, 1:])


def batch_statistics(
    features: Tensor,
    batch: Batch,
    *,
    head: Head | None = None,
    temperature: float | Tensor = 1.0,
    top: int = 0,
    at: Tensor | None = None,
    rows: int = ROWS,
) -> TokenStatistics:
    """Statistics of the completions of a batch, [B, L−1].

    The rest is as for ``token_statistics``.

    Args:
        features: [N, …], of the positions that predict a token of a completion, row by row.
        batch: that they are of.
        head: the output layer.
        temperature: one number, or one for each completion.
        top: how many of the likeliest tokens are told.
        at: token ids [B, L−1, k] that are told instead.
        rows: tokens at once.
    """
    mask = batch.mask
    heat = _temperatures(temperature, mask.shape, features.device)[mask.flatten()]
    found = token_statistics(
        features[None],
        batch.targets[mask][None],
        mask.new_ones((1, len(features))),
        head=head,
        temperature=heat[None],
        top=top,
        at=None if at is None else at[mask][None],
        rows=rows,
    )
    told = (found.logprobs, found.entropy, found.top_indices, found.top_logprobs)
    logprobs, entropy, indices, others = (None if each is None else _spread(each[0], mask) for each in told)
    assert logprobs is not None and entropy is not None
    return TokenStatistics(logprobs, entropy, indices, others)


def token_statistics(
    features: Tensor,
    targets: Tensor,
    mask: Tensor,
    *,
    head: Head | None = None,
    temperature: float | Tensor = 1.0,
    top: int = 0,
    at: Tensor | None = None,
    rows: int = ROWS,
) -> TokenStatistics:
    """Log-probability and entropy of each token, and the log-probabilities of some others in its place.

    Args:
        features: logits [B, T, V], or hidden states [B, T, D] where ``head`` is given.
        targets: token ids [B, T].
        mask: [B, T], bool.
        head: the output layer.
        temperature: what the logits are divided by: that with which the tokens were drawn, else a ratio to stored
            log-probabilities compares two distributions that were never meant to be alike. One number, or one for each
            completion.
        top: how many of the likeliest tokens are told.
        at: token ids [B, T, k] that are told instead: another model's likeliest.
        rows: tokens at once.
    """
    if top and at is not None:
        raise ValueError("either the likeliest tokens are told or given ones")
    heat = _temperatures(temperature, targets.shape, features.device)

    def piece(part: Tensor, wanted: Tensor, keep: Tensor, heat: Tensor, others: Tensor | None) -> tuple[Tensor, ...]:
        logprobs = _log_softmax(part[keep], head, heat[keep])
        told = logprobs.gather(-1, wanted[keep].unsqueeze(-1)).squeeze(-1)
        present = logprobs.masked_fill(logprobs == -math.inf, 0.0)  # 0·log 0 is 0
        entropy = -(logprobs.exp() * present).sum(dim=-1)
        if others is None and not top:
            return told, entropy
        indices = logprobs.detach().topk(top, dim=-1).indices if others is None else others[keep]
        return told, entropy, logprobs.gather(-1, indices), indices

    found = _in_pieces(piece, features, mask, rows, head, targets.flatten(), mask.flatten(), heat, _rows_of(at))
    if len(found) == 2:
        return TokenStatistics(found[0], found[1])
    return TokenStatistics(found[0], found[1], top_indices=found[3], top_logprobs=found[2])


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The estimate k3 of KL(policy ‖ reference) of each token drawn from the policy: (r − 1) − log r, r = π_ref/π.

    Schulman, "Approximating KL divergence" (2020); GRPO (Shao et al. 2024, arXiv:2402.03300), Eq. 4. Unbiased, never
    negative, of low variance. As a term of a loss its expected gradient is that of KL(reference ‖ policy), which pulls
    to the same place by another way (Tang and Munos 2025).
    """
    difference = reference - logprobs
    return torch.expm1(difference) - difference


def _log_softmax(features: Tensor, head: Head | None, temperature: Tensor) -> Tensor:
    logits = features if head is None else head(features)
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return torch.log_softmax(wide / temperature.to(wide.dtype).unsqueeze(-1), dim=-1)


def _temperatures(temperature: float | Tensor, shape: torch.Size, device: torch.device) -> Tensor:
    """One for each token, flat."""
    heat = torch.as_tensor(temperature, dtype=torch.float64, device=device)
    if heat.dim() == 1:
        heat = heat.unsqueeze(-1)
    if not bool((torch.isfinite(heat) & (heat > 0)).all()):
        raise UsageError(
            "a temperature is not above 0: tokens that were not drawn at random have no ratio",
            hint="leave out what was generated with temperature 0",
        )
    return heat.expand(shape).flatten()


def _rows_of(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.reshape(-1, tensor.shape[-1])


def _in_pieces(
    piece: Callable[..., tuple[Tensor, ...]],
    features: Tensor,
    mask: Tensor,
    rows: int,
    head: Head | None,
    *others: Tensor | None,
) -> tuple[Tensor, ...]:
    """What ``piece`` says of the masked tokens of a few rows at a time, put back to [B, T, …] with zeros elsewhere."""
    if features.shape[:-1] != mask.shape:
        raise ValueError(f"features of shape {tuple(features.shape)} do not fit the mask's {tuple(mask.shape)}")
    flat = features.reshape(-1, features.shape[-1])
    parts = torch.split(flat, rows)
    columns = [[None] * len(parts) if other is None else list(torch.split(other, rows)) for other in others]
    again = torch.is_grad_enabled() and (features.requires_grad or head is not None)
    found: list[tuple[Tensor, ...]] = []
    for part, *rest in zip(parts, *columns, strict=True):
        if again:
            found.append(checkpoint(piece, part, *rest, use_reentrant=False, preserve_rng_state=False))
        else:
            found.append(piece(part, *rest))
    return tuple(_spread(torch.cat(column), mask) for column in zip(*found, strict=True))


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Values of the masked tokens [n, …] in their places, zero elsewhere."""
    wide = values.new_zeros((*mask.shape, *values.shape[1:]))
    return wide.masked_scatter(mask.reshape(*mask.shape, *(1 for _ in values.shape[1:])), values)
