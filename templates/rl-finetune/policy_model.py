"""The policy: a small decoder of fixed shape, and how answers are drawn from it. Protected: the scorer uses it as well.

What is handed over between set-up, training and scoring is one array of float32, all parameters after each other
(`weights_of`, `with_weights`). What computes is this file, whatever the weights are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from problems import ANSWER, END_ID, PAD_ID, PROMPT, TOKENS
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, DEPTH, HEADS = 64, 2, 4
CLOSED = -1e4
"""The logit of PAD, which no answer may have; finite, so that its gradient is."""


class Past(NamedTuple):
    """What has been read: which tokens count (B, T), and each block's keys and values (B, HEADS, T, WIDTH / HEADS)."""

    seen: Tensor
    pairs: tuple[tuple[Tensor, Tensor], ...]

    def repeat(self, each: int) -> Past:
        """Every row `each` times, one after the other: a problem is read once for all of its answers."""
        pairs = tuple((k.repeat_interleave(each, 0), v.repeat_interleave(each, 0)) for k, v in self.pairs)
        return Past(self.seen.repeat_interleave(each, 0), pairs)


class Block(nn.Module):
    """Attention, then two layers with ReLU, each added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(
        self, x: Tensor, mask: Tensor, pair: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The stream, and the keys and values of all tokens so far."""
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        if pair is not None:
            k, v = torch.cat((pair[0], k), 2), torch.cat((pair[1], v), 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.relu(self.up(self.between(x)))), (k, v)


class Policy(nn.Module):
    """Embedded tokens and places, blocks, logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(TOKENS), WIDTH)
        self.places = nn.Parameter(torch.empty(PROMPT + ANSWER, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.last, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(TOKENS))
        for weight in (self.embed.weight, self.places):
            nn.init.normal_(weight, std=0.1)

    def forward(self, tokens: Tensor, past: Past | None = None) -> tuple[Tensor, Past]:
        """Logits (B, T, TOKENS) of what follows tokens (B, T) that stand behind `past`, and all that was read."""
        seen, before = tokens != PAD_ID, 0
        if past is not None:
            seen, before = torch.cat((past.seen, seen), 1), past.seen.size(1)
        own, every = torch.arange(before, seen.size(1)), torch.arange(seen.size(1))
        # Each place sees itself, the filling too: what sees nothing at all turns into NaN.
        mask = ((every <= own[:, None]) & seen[:, None]) | (every == own[:, None])
        x, pairs = self.embed(tokens) + self.places[own], []
        for number, block in enumerate(self.blocks):
            x, pair = block(x, mask[:, None], None if past is None else past.pairs[number])
            pairs.append(pair)
        logits = self.head(self.last(x))
        closed = torch.zeros(logits.size(-1))
        closed[PAD_ID] = CLOSED
        return logits + closed, Past(seen, tuple(pairs))


@torch.no_grad()
def draw(
    policy: Policy,
    asked: Tensor,
    each: int = 1,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Answers (B · each, ANSWER) to problems (B, PROMPT): drawn, or at temperature 0 always the likeliest token."""
    logits, past = policy(asked)
    logits, past = logits[:, -1].repeat_interleave(each, 0), past.repeat(each)
    said = torch.full((len(logits), ANSWER), PAD_ID)
    going = torch.ones(len(logits), dtype=torch.bool)
    for place in range(ANSWER):
        if temperature > 0:
            # As torch.multinomial, with one random number for a row instead of one for each token.
            below = (logits / temperature).softmax(-1).cumsum(-1)
            token = (below < torch.rand(len(below), 1, generator=generator)).sum(-1).clamp(max=below.size(1) - 1)
        else:
            token = logits.argmax(-1)
        said[:, place] = torch.where(going, token, PAD_ID)
        going &= token != END_ID
        if place + 1 == ANSWER or not going.any():
            break
        after, past = policy(said[:, place : place + 1], past)
        logits = after[:, 0]
    return said


def log_probs(policy: Policy, asked: Tensor, said: Tensor, temperature: float = 1.0) -> Tensor:
    """The log-probability of each token of answers (B · each, ANSWER) to problems (B, PROMPT), 0 behind their ends."""
    each = len(said) // len(asked)
    first, past = policy(asked)
    rest, _ = policy(said[:, :-1], past.repeat(each))
    logits = torch.cat((first[:, -1:].repeat_interleave(each, 0), rest), 1) / temperature
    chosen = logits.log_softmax(-1).gather(-1, said[..., None])[..., 0]
    return torch.where(said != PAD_ID, chosen, 0.0)


def weights_of(policy: Policy) -> np.ndarray:
    """All parameters after each other, float32."""
    return nn.utils.parameters_to_vector(policy.parameters()).detach().numpy().astype(np.float32)


def with_weights(weights: np.ndarray) -> Policy:
    """The policy that has them.

    Raises:
        ValueError: they are not one finite float32 for each of its parameters.
    """
    policy = Policy()
    wanted = sum(p.numel() for p in policy.parameters())
    if weights.shape != (wanted,) or weights.dtype != np.float32 or not np.isfinite(weights).all():
        raise ValueError(f"the weights must be {wanted} finite float32 in one row, as weights_of gives them")
    nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), policy.parameters())
    return policy
