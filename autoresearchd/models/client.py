"""What a policy needs of a language model: a question, a reply, and the ways in which asking fails."""

from __future__ import annotations

import string
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

from autoresearchd.domain.errors import AutoresearchdError, Interrupted
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost

T = TypeVar("T")
Message = Mapping[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``."""
Count = Callable[[Sequence[Message]], int]
"""How many tokens messages have."""

_LOOK_S = 0.05
"""How often a cancel is looked at: it has no way of waking two waits at once."""
_LETTERS, _DIGITS, _SPACES = string.ascii_letters.encode(), string.digits.encode(), b" \t\n\r"
_KINDS = bytes.maketrans(_LETTERS + _DIGITS + _SPACES, b"a" * len(_LETTERS) + b"0" * len(_DIGITS) + b" " * len(_SPACES))
"""All letters become one, all digits, all white space."""
_MESSAGE_OVERHEAD = 8


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. timeout: seconds until the reply must be there; schema: a JSON schema that the reply should obey.

    temperature, seed: of the sampling, None: the model's own default.
    """

    messages: tuple[Message, ...]
    max_tokens: int = 8192
    temperature: float | None = None
    seed: int | None = None
    timeout: float = 300.0
    schema: Mapping[str, Any] | None = None


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

    what: in the provider's words, cut and without secrets. retry_after: seconds that the provider asks to wait. cost:
    what the failed question may have cost all the same; None: nothing that is known.
    """

    def __init__(
        self, trouble: Trouble, what: str, *, retry_after: float | None = None, cost: Cost | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.trouble, self.retry_after, self.cost = trouble, retry_after, cost


class TooLong(ModelError):
    """A reply that was not read to its end, or not at all, where it would have told what it cost."""


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


@runtime_checkable
class KnowsSchemas(Protocol):
    """A client that knows whether its model can be made to obey a schema."""

    def takes_schema(self) -> bool:
        """Whether a reply to a question with a schema will obey it, as far as that can be known before."""
        ...


def estimate_tokens(messages: Sequence[Message]) -> int:
    """An estimate of the tokens of messages that errs upwards, for models whose tokenizer is not at hand.

    The rates are our own choice: a letter counts a quarter of a token, a digit four thirds, white space a third, any
    other byte two thirds, and each message eight tokens for its chat template. They were set against the tokenizer of
    SmolLM2, which splits numbers into digits, and small vocabularies give more tokens than large ones: for prompts,
    code, prose and tables of results the estimate is 0 to 30 per cent above it, for a table full of hashes 3 per cent
    below; single lines vary more.
    """
    return sum(_MESSAGE_OVERHEAD + sum(map(_estimate, message.values())) for message in messages)


def _estimate(text: str) -> int:
    raw = text.encode("utf-8", "replace").translate(_KINDS)
    letters, digits, spaces = (raw.count(kind) for kind in (b"a", b"0", b" "))
    twelfths = 3 * letters + 16 * digits + 4 * spaces + 8 * (len(raw) - letters - digits - spaces)
    return -(-twelfths // 12)


def perform(
    function: Callable[[], T], cancel: Cancel, timeout: float, *, give_up: Callable[[], None] = lambda: None
) -> T:
    """What ``function`` returns or raises; Interrupted once ``cancel`` is set, ModelError when ``timeout`` is over.

    It is called in a daemon thread, and not at all when ``cancel`` is set already. A call that is abandoned goes on
    there by itself: it must end some time, keep nothing that a later call needs, and its outcome is dropped.
    ``give_up`` is called then, to make it end soon (by closing its connection, say).
    """
    if cancel.is_set():
        raise Interrupted("the model was not asked: a stop was requested")
    outcome: Future[T] = Future()
    done = threading.Event()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the outcome is taken
            outcome.set_exception(error)
        finally:
            done.set()

    deadline = time.monotonic() + timeout
    threading.Thread(target=run, name="model-call", daemon=True).start()
    while not done.wait(max(0.0, min(_LOOK_S, deadline - time.monotonic()))):
        if cancel.is_set():
            give_up()
            raise Interrupted("the model's reply was not waited for: a stop was requested")
        if time.monotonic() >= deadline:
            give_up()
            hint = "raise the time-out for models in config.yaml"
            raise ModelError(Trouble.TIMEOUT, f"no reply within {timeout:g} s", hint=hint)
    return outcome.result()
