"""What a provider of models may do with a question, good answers and every fault: the script of a ``model_server``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """What the server does with one question.

    text, finish: of the answer; None: a message without content. refusal: beside it. status, error: of an answer that
    is an error. headers: beside the usual ones. raw: a body to be sent as it is. fault: ``hang`` (no answer before the
    client goes away), ``cut`` (the connection ends in the middle of the body), ``drop`` (it ends before the answer).
    """

    text: str | None = ""
    finish: str = "stop"
    refusal: str | None = None
    status: int = 200
    error: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    fault: str = ""


def fails(status: int, words: str, code: str | None, kind: str, headers: Mapping[str, str] | None = None) -> Turn:
    """An answer that is an error, in the words and under the code of the server."""
    error = {"message": words, "type": kind, "param": None, "code": code}
    return Turn(status=status, error=error, headers=headers or {})


says = Turn
empty = partial(Turn, "")
refusal = partial(Turn, None, "content_filter", refusal="I cannot help with that.")
"""The provider's filter has withheld the answer."""
invalid_json = partial(Turn, raw=b'{"choices": [{"message": {"content": "half')
no_choices = partial(Turn, raw=b'{"object": "chat.completion", "model": "scripted-model", "choices": []}')
hang = partial(Turn, fault="hang")
cut = partial(Turn, "an answer that nobody sees the end of", fault="cut")
drop = partial(Turn, fault="drop")
too_large = partial(Turn, "x" * 2**21)
loads = partial(Turn, raw=b"Success: LoRA adapter added successfully.")
"""The server loads the adapter that it is told to."""
escapes = partial(Turn, "\x1b]0;owned\x07\x1b[2J\x1b[31mdone\x1b[0m\x00\u202e\ud800")
"""An answer that would paint a terminal, set its title and clear its screen."""

server_error = partial(fails, 500, "The server had an error while processing your request", None, "server_error")
overloaded = partial(fails, 503, "That model is currently overloaded with other requests", None, "server_error")
unauthorised = partial(fails, 401, "Incorrect API key provided", "invalid_api_key", "invalid_request_error")
bad_request = partial(fails, 400, "messages: must not be like this", None, "invalid_request_error")
out_of_money = partial(
    fails, 429, "You exceeded your current quota, please check your plan.", "insufficient_quota", "requests"
)
"""Waiting does not help."""
too_long = "This model's maximum context length is 4096 tokens. However, your messages resulted in 8192 tokens."
context_too_long = partial(fails, 400, too_long, "context_length_exceeded", "invalid_request_error")
loads_not = partial(fails, 404, "Loading lora failed: No adapter found for /repo", None, "NotFoundError")
"""The server finds no adapter, because it runs on another machine, say."""


def rate_limited(after: float | None = 1.0) -> Turn:
    """429, with Retry-After in seconds where one is given."""
    headers = {} if after is None else {"Retry-After": f"{after:g}"}
    return fails(429, "Rate limit reached for requests", "rate_limit_exceeded", "requests", headers)


def no_model(name: str = "nobody") -> Turn:
    return fails(404, f"The model `{name}` does not exist", "model_not_found", "invalid_request_error")


def edits(path: str, search: str, replace: str, words: str = "This may help.") -> Turn:
    """An answer with one SEARCH/REPLACE block, for any path."""
    return Turn(f"{words}\n\n{path}\n```python\n<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n```\n")


other_file = partial(edits, "../../.ssh/authorized_keys", "", "ssh-ed25519 AAAA nobody")
