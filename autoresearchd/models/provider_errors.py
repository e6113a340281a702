"""What the clients of models share: what a provider's errors mean, its words made safe, and bounds."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from autoresearchd.domain.cleaning import clean
from autoresearchd.domain.proposal import Cost
from autoresearchd.models.client import ModelError, Question, Trouble

MAX_REPLY_BYTES = 2_000_000
"""Of the text of a reply, in UTF-8. No edit of a program is as long; a model in a loop is."""

_KEYED = {
    "anthropic": ("ANTHROPIC_",),
    "deepseek": ("DEEPSEEK_",),
    "gemini": ("GEMINI_", "GOOGLE_"),
    "groq": ("GROQ_",),
    "mistral": ("MISTRAL_",),
    "openai": ("OPENAI_",),
    "openrouter": ("OPENROUTER_", "OR_"),
    "xai": ("XAI_",),
}
"""Providers that answer nobody without a key, and how the variables begin that may hold one (docs.litellm.ai)."""

LONGEST_WAIT_S = 24 * 3600.0
_MAX_WORDS = 400
_UNSEEN_TOKENS = 100_000

_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window|size)|prompt is too long|too many (?:input )?tokens|maximum model length"
    r"|input (?:is )?too long|exceeds? the (?:maximum|model)",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content[ _-]?(?:filter|policy|management)|safety system", re.IGNORECASE)
_OUT_OF_MONEY = re.compile(r"insufficient[ _-]quota|exceeded your current quota|billing|credit balance", re.IGNORECASE)


def absent_key(model: str, environment: Mapping[str, str]) -> str:
    """The variable that a model's provider wants its key in, where nothing of the provider's is set; else empty.

    Providers that may be asked without a key, or find it elsewhere, are not judged.
    """
    provider = model.partition("/")[0] if "/" in model else ""
    begins = _KEYED.get(provider, ())
    if not begins or any(value.strip() and name.startswith(begins) for name, value in environment.items()):
        return ""
    return f"{begins[0]}API_KEY"


def trouble_of(status: int, words: str) -> Trouble:
    """What an HTTP status means, with the error's code and message in ``words``.

    An account without money (402, some 400 and 429) is nothing that waiting fixes: ``UNAUTHORISED``, as for a key.
    """
    if status in (400, 402, 403, 429) and (status == 402 or _OUT_OF_MONEY.search(words)):
        return Trouble.UNAUTHORISED
    if status in (400, 409, 413, 422):
        if status == 413 or _TOO_LONG.search(words):
            return Trouble.CONTEXT_TOO_LONG
        return Trouble.REFUSED if _FILTERED.search(words) else Trouble.BAD_REQUEST
    if status in (401, 403):
        return Trouble.UNAUTHORISED
    if status == 429:
        return Trouble.RATE_LIMITED
    if status in (404, 410):
        return Trouble.NOT_FOUND
    if status == 408:
        return Trouble.TIMEOUT
    if status >= 500:
        # llama.cpp and some gateways answer 500 to a prompt that does not fit.
        return Trouble.CONTEXT_TOO_LONG if status == 500 and _TOO_LONG.search(words) else Trouble.OVERLOADED
    return Trouble.BAD_REQUEST


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds that a reply asks to wait (RFC 9110, 10.2.3, and OpenAI's milliseconds); None where it does not say.

    headers: names in lower case, or a mapping that does not mind. now: what a date is counted from.
    """
    seconds = math.nan
    for name, unit in (("retry-after", 1.0), ("retry-after-ms", 0.001)):
        with contextlib.suppress(KeyError, ValueError):
            told = unit * float(headers[name])
            seconds = told if math.isfinite(told) else seconds
    if math.isnan(seconds):
        try:
            then = parsedate_to_datetime(headers["retry-after"])
        except (KeyError, ValueError, TypeError, OverflowError):
            return None
        then = then if then.tzinfo is not None else then.replace(tzinfo=UTC)
        seconds = (then - (now or datetime.now(UTC))).total_seconds()
    return min(max(0.0, seconds), LONGEST_WAIT_S)


def words_of(text: str, hide: Iterable[str] = ()) -> str:
    """A provider's words, fit to be shown: one line, cut, without control characters and without these secrets.

    Secrets are taken out before the text is cut: half of one would not be known any more.
    """
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
    """The text of a reply; ModelError with what it cost where there is none to work with.

    An empty text is a reply like another, which the caller sends back, unless the provider withheld it.
    """
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

    A server that tells of a billion would use up the user's cap of the day. A token has a byte at least; what a
    provider adds to a prompt, and thinks beyond ``max_tokens``, is allowed for.
    """
    usage = found.get("usage")
    told = [usage.get(name) if isinstance(usage, dict) else None for name in ("prompt_tokens", "completion_tokens")]
    tokens_in, tokens_out = (n if type(n) is int and 0 <= n < 10**9 else 0 for n in told)
    asked = sum(len(part.encode("utf-8", "replace")) for message in question.messages for part in message.values())
    return min(tokens_in, asked + _UNSEEN_TOKENS), min(tokens_out, 4 * question.max_tokens + _UNSEEN_TOKENS)


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
