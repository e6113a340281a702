"""Drawing tokens from the plain softmax of a model, with a random generator of each row's own."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any


class Draw:
    """A processor of logits that draws the tokens itself, writes their log-probabilities down, and leaves them alone.

    Neither top-p nor top-k nor penalties: what is written down is of the very distribution that was drawn from. What a
    row draws depends on its own seed and logits, not on the rows beside it.

    Args:
        torch: the library.
        temperature: 0 takes the likeliest token, with its log-probability at temperature 1.
        seeds: one for each row; None: another one at each time.
        device: where the logits are.
    """

    def __init__(self, torch: ModuleType, temperature: float, seeds: Sequence[int | None], device: Any) -> None:
        self._torch, self._temperature = torch, temperature
        self._generators = [_generator(torch, seed, device) for seed in seeds]
        self.logprobs: list[list[float]] = [[] for _ in seeds]

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        torch, temperature = self._torch, self._temperature
        logits = scores.float()
        logprobs = torch.log_softmax(logits / temperature if temperature > 0 else logits, dim=-1)
        if temperature > 0:
            rows = zip(logprobs.exp(), self._generators, strict=True)
            tokens = torch.stack([torch.multinomial(row, 1, generator=generator) for row, generator in rows])
        else:
            tokens = logprobs.argmax(dim=-1, keepdim=True)
        for found, value in zip(self.logprobs, logprobs.gather(-1, tokens)[:, 0].tolist(), strict=True):
            found.append(value)
        return torch.full_like(scores, float("-inf")).scatter_(-1, tokens, 0.0)


def _generator(torch: ModuleType, seed: int | None, device: Any) -> Any:
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed % 2**63)
    return generator
