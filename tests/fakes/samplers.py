"""A model whose completions follow from a function: for what asks models and does not train them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autoresearchd.learner.algorithms.learnable import Generated, Who


class ScriptedSampler:
    """Writes what a function of who is asked, the prompt's length and the seed says, in two tokens.

    A prompt has one token for each character of its first message. batches: lengths of the prompts of each call.
    """

    def __init__(self, answer: Callable[[Who, int, int], str], *, context: int | None = None) -> None:
        self._answer, self.context = answer, context
        self.batches: list[list[int]] = []

    def encode(self, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        return tuple(range(len(str(messages[0]["content"]))))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        seeds: Sequence[int],
        who: Who = Who.POLICY,
    ) -> list[Generated]:
        self.batches.append([len(prompt) for prompt in prompts])
        texts = [self._answer(who, len(prompt), seed) for prompt, seed in zip(prompts, seeds, strict=True)]
        return [Generated((1, 2), (-0.1, -0.2), text) for text in texts]
