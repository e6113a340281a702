"""What the algorithms need of a model that learns, and what they give to it and get from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch
from torch import Tensor

from autoresearchd.learner.training.logprobs import Sample, Statistics
from autoresearchd.learner.training.prompt_sharing import Sharing

__all__ = ["Generated", "Learnable", "Sample", "Sampler", "Statistics", "Who"]


class Who(StrEnum):
    """Whose weights: the base with the adapter that is trained, the base alone, the base with ``set_teacher``'s."""

    POLICY = "policy"
    BASE = "base"
    TEACHER = "teacher"


@dataclass(frozen=True, slots=True)
class Generated:
    """A completion: all that was drawn, with the token that ended the turn; its text without special tokens.

    finished: whether the model ended it; else it was cut off.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    finished: bool


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

    @property
    def padding(self) -> int:
        """A token id that fills up short rows."""

    @property
    def vocabulary(self) -> int:
        """Token ids are from 0 to below this."""

    @property
    def hashes(self) -> tuple[str, str, str]:
        """Of the base model, the tokenizer and the chat template, as they are stored with each answer."""

    @property
    def device(self) -> torch.device:
        """Where the model stands."""

    @property
    def sharing(self) -> Sharing | None:
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

        top: how many of the likeliest tokens are told. at: token ids [B, L−1, k] of the same batch that are told
        instead.
        """

    def trainable(self) -> list[torch.nn.Parameter]:
        """The parameters that learn: of the adapter, and of the value head where there is one."""

    def adapter_state(self) -> dict[str, Tensor]:
        """Copies of the trainable parameters by name, on the CPU."""

    def load_adapter_state(self, state: Mapping[str, Tensor]) -> None:
        """Put such copies back."""

    def set_teacher(self, state: Mapping[str, Tensor] | None) -> None:
        """Weights that ``Who.TEACHER`` uses from now on; None: the base alone."""
