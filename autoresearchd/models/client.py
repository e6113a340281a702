"""What a policy needs of a language model: a question, a reply, and the ways in which asking fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost

Message = Mapping[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. timeout: seconds until the reply must be there; schema: a JSON schema that the reply should obey.

    temperature, seed: of the sampling, None: the model's own default. stop: texts that end the reply.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 8192
    temperature: float | None = None
    seed: int | None = None
    timeout: float = 300.0
    schema: Mapping[str, Any] | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    model: as the provider names it; finish: ``stop``, ``length``, ``content_filter`` and so on. cost.usd is None where
    the price is not known. token_ids, logprobs: one for each token of ``text``, None where the provider does not tell.
    sampling: the parameters that were in force; the hashes: of base model, tokenizer and chat template, where they are
    known; adapter: version of the LoRA adapter, empty for none.
    """

    text: str
    model: str
    cost: Cost
    finish: str = "stop"
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    model_hash: str | None = None
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    adapter: str = ""


class Trouble(StrEnum):
    """Why there is no reply, and so what to do about it."""

    RATE_LIMITED = "rate limited"
    OVERLOADED = "overloaded"
    TIMEOUT = "timed out"
    UNREACHABLE = "not reachable"
    CONTEXT_TOO_LONG = "the context is too long"
    UNAUTHORISED = "the key was refused"
    NOT_FOUND = "no such model"
    REFUSED = "the provider refuses to answer"
    BAD_REQUEST = "the request was refused"
    BROKEN_REPLY = "the reply cannot be read"


PASSING = frozenset(
    {Trouble.RATE_LIMITED, Trouble.OVERLOADED, Trouble.TIMEOUT, Trouble.UNREACHABLE, Trouble.BROKEN_REPLY}
)
"""Worth another try in a moment."""

FINAL = frozenset({Trouble.UNAUTHORISED, Trouble.NOT_FOUND})
"""Nothing that waiting fixes: the user has to."""


class ModelError(AutoresearchdError):
    """A question got no reply.

    Args:
        trouble: the kind.
        what: in the provider's words, cut and without secrets.
        retry_after: seconds that the provider asks to wait, None where it does not say.
        cost: what the failed question may have cost all the same, None: nothing that is known.
    """

    def __init__(
        self, trouble: Trouble, what: str, *, retry_after: float | None = None, cost: Cost | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.trouble, self.retry_after, self.cost = trouble, retry_after, cost


class ModelClient(Protocol):
    """A language model that can be asked. Not safe for several threads."""

    @property
    def name(self) -> str:
        """The model, as messages and the store name it."""
        ...

    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """One question, one attempt: retries and fallbacks are the caller's.

        Ends soon after ``cancel`` is set, by raising Interrupted; raises ModelError for everything that a provider or
        the network can do.
        """
        ...

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens the messages have: by the model's own tokenizer, or a stated estimate that errs upwards."""
        ...


@runtime_checkable
class KnowsPrices(Protocol):
    """A client that can tell what so many tokens cost, also where no reply says so."""

    def price(self, cost: Cost) -> float | None:
        """US dollars for the tokens of ``cost``, None where nobody knows."""
        ...
