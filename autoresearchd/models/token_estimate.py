"""How many tokens messages have, for models whose tokenizer is not at hand."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from autoresearchd.models.client import Message

Count = Callable[[Sequence[Message]], int]
"""How many tokens messages have."""

_LETTERS, _DIGITS, _SPACES = string.ascii_letters.encode(), string.digits.encode(), b" \t\n\r"
_KINDS = bytes.maketrans(_LETTERS + _DIGITS + _SPACES, b"a" * len(_LETTERS) + b"0" * len(_DIGITS) + b" " * len(_SPACES))
"""All letters become one, all digits, all white space."""
_TWELFTHS = 12
_LETTER, _DIGIT, _SPACE, _OTHER = 3, 16, 4, 8
"""Twelfths of a token that a byte of each kind is taken for; see ``estimate_tokens``."""

_MESSAGE_OVERHEAD = 8


def estimate_tokens(messages: Sequence[Message]) -> int:
    """An estimate of the tokens of messages that errs upwards, for models whose tokenizer is not at hand.

    The rates are our own choice: a letter counts a quarter of a token, a digit four thirds, white space a third, any
    other byte two thirds, and each message eight tokens for its chat template. They were set against the tokenizer of
    SmolLM2, which splits numbers into digits, and small vocabularies give more tokens than large ones: for prompts,
    code, prose and tables of results the estimate is 0 to 30 per cent above it, for a table full of hashes 3 per cent
    below; single lines vary more.
    """
    return sum(_MESSAGE_OVERHEAD + sum(_estimate(text) for text in message.values()) for message in messages)


def _estimate(text: str) -> int:
    raw = text.encode("utf-8", "replace").translate(_KINDS)
    letters, digits, spaces = (raw.count(kind) for kind in (b"a", b"0", b" "))
    others = len(raw) - letters - digits - spaces
    return -(-(_LETTER * letters + _DIGIT * digits + _SPACE * spaces + _OTHER * others) // _TWELFTHS)
