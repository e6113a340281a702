"""What a policy needs of a language model: a question, a reply, and the ways in which asking fails.

And what its clients share: what a provider's errors mean, its words made safe, and bounds on what it tells.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import string
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.errors import AutoresearchdError, Interrupted
from autoresearchd.domain.ports import Cancel
from autoresearchd.domain.proposal import Cost

T = TypeVar("T")
Message = Mapping[str, str]
"""``{"role": "system" | "user" | "assistant", "content": text}``."""
Count = Callable[[Sequence[Message]], int]
"""How many tokens messages have."""

MAX_REPLY_BYTES = 2_000_000
"""Of the text of a reply, in UTF-8. No edit of a program is as long; a model in a loop is."""
SHORTEST_REPLY = 256
"""Tokens that a reply gets at least, however small the context is."""
LONGEST_WAIT_S = 24 * 3600.0
_LOOK_S = 0.05  # how often a cancel is looked at: it has no way of waking two waits at once
_LETTERS, _DIGITS, _SPACES = string.ascii_letters.encode(), string.digits.encode(), b" \t\n\r"
_KINDS = bytes.maketrans(_LETTERS + _DIGITS + _SPACES, b"a" * len(_LETTERS) + b"0" * len(_DIGITS) + b" " * len(_SPACES))
"""All letters become one, all digits, all white space."""
_MESSAGE_OVERHEAD, _MAX_WORDS, _UNSEEN_TOKENS = 8, 400, 100_000

_KEYED = frozenset({"anthropic", "deepseek", "gemini", "groq", "mistral", "openai", "openrouter", "xai"})
"""Providers that answer nobody without a key (docs.litellm.ai)."""
_ALSO = {"gemini": "GOOGLE_", "openrouter": "OR_"}
"""How a variable may begin that holds one, beside the provider's own name."""
_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window|size)|prompt is too long|too many (?:input )?tokens|maximum model length"
    r"|input (?:is )?too long|exceeds? the (?:maximum|model)|maximum prompt length|exceed(?:s|ed)? model token limit"
    r"|exceeds? context limit|(?:prompt|input) exceeds? max(?:imum)? length",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content[ _-]?(?:filter|policy|management)|safety system", re.IGNORECASE)
_TOO_LARGE = re.compile(r"request too large|tokens must be reduced", re.IGNORECASE)
"""In a 429: this prompt alone is more than a minute's tokens."""
_SOON = re.compile(r"(?:retry|try again) in \d|retryDelay|per[ _-]?(?:min|hour|day)", re.IGNORECASE)
_OUT_OF_MONEY = re.compile(  # a link to the page for billing says nothing
    r"insufficient[ _-](?:quota|balance)|exceeded your current quota|(?<!/)billing|credit balance"
    r"|used all available credits|monthly spending limit",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. timeout: seconds; schema: a JSON schema to be obeyed; None: the model's own default."""

    messages: tuple[Message, ...]
    max_tokens: int = 8192
    temperature: float | None = None
    seed: int | None = None
    timeout: float = 300.0
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    finish: ``stop``, ``length``, ``content_filter`` and so on. token_ids, logprobs: one for each token of ``text``,
    where the provider tells. sampling: the parameters that were in force. adapter: version of the LoRA adapter.
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
    NOT_FOUND = "not found"
    NO_QUESTIONS = "takes no questions"
    REFUSED = "the provider refuses to answer"
    BAD_REQUEST = "the request was refused"
    BROKEN_REPLY = "the reply cannot be read"


PASSING = frozenset(
    {
        Trouble.RATE_LIMITED,
        Trouble.OVERLOADED,
        Trouble.TIMEOUT,
        Trouble.UNREACHABLE,
        Trouble.BROKEN_REPLY,
        Trouble.NO_QUESTIONS,
    }
)
"""Worth another try in a moment. What takes no questions may stand in for a server that is being started."""
FINAL = frozenset({Trouble.UNAUTHORISED, Trouble.NOT_FOUND})
"""Nothing that waiting fixes: the user has to."""


class ModelError(AutoresearchdError):
    """A question got no reply. what: in the provider's words, cut and without secrets.

    retry_after: seconds that it asks to wait. cost: what the question may have cost all the same.
    """

    def __init__(
        self, trouble: Trouble, what: str, *, retry_after: float | None = None, cost: Cost | None = None, hint: str = ""
    ) -> None:
        super().__init__(what, hint=hint)
        self.trouble, self.retry_after, self.cost = trouble, retry_after, cost


class TooLong(ModelError):
    """A reply that was not read to its end, or not at all, where it would have told what it cost."""


class BrokeOff(ModelError):
    """The connection ended before the reply did."""


class ModelClient(ABC):
    """A language model that can be asked. Not safe for several threads. in_process: whether it is held here.

    doubt: what speaks against its name, once it was asked; empty: nothing is known.
    """

    in_process = False
    doubt = ""

    @property
    @abstractmethod
    def name(self) -> str:
        """The model, as messages and the store name it."""

    @abstractmethod
    def ask(self, question: Question, cancel: Cancel) -> Reply:
        """One question, one attempt: retries and fallbacks are the caller's.

        Raises Interrupted soon after ``cancel`` is set; ModelError for all that a provider or the network can do.
        """

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens the messages have: by the model's own tokenizer, or an estimate that errs upwards."""
        return estimate_tokens(messages)

    def price(self, cost: Cost) -> float | None:
        """US dollars for the tokens of ``cost``, where no reply says so; None where nobody knows."""
        return None

    def takes_schema(self) -> bool:
        return False

    def renew(self) -> None:  # noqa: B027
        """Look before the next question which version of the local policy is in use."""

    def unload(self) -> None:  # noqa: B027
        """Give back what the model takes in memory; it is loaded again at the next question."""


# ---------------------------------------------------------------------- asking
def estimate_tokens(messages: Sequence[Message]) -> int:
    """An estimate of the tokens of messages that errs upwards, for models whose tokenizer is not at hand.

    The rates are our own choice: a letter counts a quarter of a token, a digit four thirds, white space a third, any
    other byte two thirds, and each message eight tokens for its chat template. Against the tokenizer of SmolLM2 the
    estimate of prompts, code, prose and tables is 0 to 30 per cent too high, of a table full of hashes 3 per cent too
    low.
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

    A call that is abandoned goes on in its thread: it must end some time, and keep nothing that a later call needs.
    ``give_up`` then makes it end soon.
    """
    if cancel.is_set():
        raise Interrupted("the model was not asked: a stop was requested")
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the outcome is taken
            outcome.set_exception(error)

    deadline = time.monotonic() + timeout
    threading.Thread(target=run, name="model-call", daemon=True).start()
    while not wait([outcome], max(0.0, min(_LOOK_S, deadline - time.monotonic()))).done:
        if cancel.is_set():
            give_up()
            raise Interrupted("the model's reply was not waited for: a stop was requested")
        if time.monotonic() >= deadline:
            give_up()
            raise ModelError(Trouble.TIMEOUT, f"no reply within {timeout:g} s")
    return outcome.result()


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These environment variables while a library is imported or loads; what the user has set stays as it is."""
    added = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


# ---------------------------------------------------------------------- what providers say
def absent_key(model: str, environment: Mapping[str, str]) -> str:
    """The variable for the key of a provider that answers nobody without, where nothing of it is set; else empty."""
    provider, slash, _ = model.partition("/")
    own = f"{provider.upper()}_"
    begins = (own, _ALSO.get(provider, own))
    keyed = slash and provider in _KEYED
    there = any(value.strip() and name.startswith(begins) for name, value in environment.items())
    return f"{own}API_KEY" if keyed and not there else ""


def trouble_of(status: int, words: str) -> Trouble:
    """What an HTTP status means, with the error's code and message in ``words``.

    An account without money (402, some 400 and 429) is nothing that waiting fixes: ``UNAUTHORISED``, as for a key.
    Providers speak of the quota and of billing where a limit of the minute or the day is reached, too, and Anthropic
    answers 400 until a limit that the user has set there is over.
    """
    if status == 400 and "will regain access" in words:
        return Trouble.RATE_LIMITED
    if status == 429 and _TOO_LARGE.search(words):
        return Trouble.CONTEXT_TOO_LONG
    waits = status == 429 and _SOON.search(words)
    if status == 402 or (status in (400, 403, 429) and _OUT_OF_MONEY.search(words) and not waits):
        return Trouble.UNAUTHORISED
    # llama.cpp and some gateways answer 500 to a prompt that does not fit.
    if status == 413 or (status in (400, 409, 422, 500) and _TOO_LONG.search(words)):
        return Trouble.CONTEXT_TOO_LONG
    if status in (400, 409, 422) and _FILTERED.search(words):
        return Trouble.REFUSED
    if status in (408, 504, 524):  # 504, 524: a gateway's patience is at its end, and the model may go on
        return Trouble.TIMEOUT
    if status >= 500:
        return Trouble.OVERLOADED
    known = {401: Trouble.UNAUTHORISED, 403: Trouble.UNAUTHORISED, 404: Trouble.NOT_FOUND, 410: Trouble.NOT_FOUND}
    return {**known, 429: Trouble.RATE_LIMITED}.get(status, Trouble.BAD_REQUEST)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a reply asks to wait (RFC 9110, 10.2.3, and OpenAI's milliseconds). headers: in lower case."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with contextlib.suppress(KeyError, ValueError):
            seconds = unit * float(headers[name])
            if math.isfinite(seconds):
                return min(max(0.0, seconds), LONGEST_WAIT_S)
    return None


def words_of(text: str, hide: Iterable[str] = ()) -> str:
    """A provider's words on one line, cut, without control characters and, before the cut, without these secrets."""
    for secret in hide:
        if secret:
            text = text.replace(secret, "…")
    return clean(text, _MAX_WORDS)


def read_choice(found: Mapping[str, Any], cost: Cost) -> tuple[Mapping[str, Any], str, str]:
    """The first choice of a reply, its text, and why it ended; ModelError with what it cost where there is none."""
    choices = found.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise ModelError(Trouble.BROKEN_REPLY, "the reply holds no message", cost=cost)
    content, refusal = message.get("content"), message.get("refusal")
    if not isinstance(content, str | None):
        raise ModelError(Trouble.BROKEN_REPLY, "the message of the reply is not a text", cost=cost)
    finish = clean(choice.get("finish_reason"), 40) or "stop"
    return choice, checked_text(content or "", finish, refusal if isinstance(refusal, str) else "", cost), finish


def checked_text(text: str, finish: str, refusal: str, cost: Cost) -> str:
    """The text of a reply, which may be empty; ModelError with its cost where it is too long, or was withheld."""
    encoded = text.encode("utf-8", "replace")  # half of a surrogate pair, which JSON can write, cannot be stored
    if len(encoded) > MAX_REPLY_BYTES:
        what = f"the reply is longer than {MAX_REPLY_BYTES:,} bytes and was thrown away"
        raise ModelError(Trouble.BROKEN_REPLY, what, cost=cost)
    if not text.strip() and (finish == "content_filter" or refusal):
        said = f": {words_of(refusal)}" if refusal else ""
        raise ModelError(Trouble.REFUSED, f"the model refused to answer{said}", cost=cost)
    return encoded.decode("utf-8")


def count_usage(question: Question, found: Mapping[str, Any]) -> tuple[int, int]:
    """The tokens of a question and its answer as a reply tells them, held to what they may have been.

    Else a server could use up the user's cap. What a provider adds to a prompt, and thinks beyond, is allowed for.
    """
    usage = found.get("usage")
    told = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    tokens_in, tokens_out = (n if type(n) is int and 0 <= n < 10**9 else 0 for n in told)
    asked = sum(len(part.encode("utf-8", "replace")) for message in question.messages for part in message.values())
    return min(tokens_in, asked + _UNSEEN_TOKENS), min(tokens_out, 4 * question.max_tokens + _UNSEEN_TOKENS)
