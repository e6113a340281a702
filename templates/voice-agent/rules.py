"""What a prompt has to be. Protected; told alike by a run, which may not hand over another one, and by the scorer."""

from __future__ import annotations

import re

MOST_CHARACTERS = 2000
LARGEST_BYTES = 4 * MOST_CHARACTERS
"""A character of UTF-8 has at most four."""

CONTROL = re.compile(r"<\|[^\n]{0,40}?\|>|</?s>|\[/?INST\]|<</?SYS>>|<(?:start|end)_of_turn>", re.IGNORECASE)
"""How chat templates mark turns. Here SmolLM2 reads them as plain text; a server behind an endpoint may not."""

_TURN = re.compile(r"(Caller|Assistant): *(.*)")
_UNSEEN = re.compile(r"[^\S \n]|[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def problem(raw: bytes) -> str | None:
    """What is wrong with a prompt, in words that follow its name; None where nothing is."""
    if len(raw) > LARGEST_BYTES:
        return f"has {len(raw):,} bytes: at most {MOST_CHARACTERS:,} characters are allowed"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"is not UTF-8: byte {error.start} is {raw[error.start]:#04x}; save it as UTF-8"
    if len(text) > MOST_CHARACTERS:
        return f"has {len(text):,} characters: at most {MOST_CHARACTERS:,} are allowed"
    if not text.strip():
        return "is empty: write what the assistant is to know and to do"
    if found := CONTROL.search(text):
        return f"holds {found[0]!r}, which marks turns of a conversation: describe or quote turns in plain words"
    if [role for role, _ in split(text)[1]] != ["Caller", "Assistant"] * (len(split(text)[1]) // 2):
        return "has examples that are no pairs of a line `Caller: …` and a line `Assistant: …` after it"
    if found := _UNSEEN.search(text):
        return f"holds the invisible character U+{ord(found[0]):04X}: use plain spaces and line feeds"
    return None


def split(prompt: str) -> tuple[str, list[tuple[str, str]]]:
    """What the system's turn says, and the examples: ``Caller`` or ``Assistant`` with what they say."""
    lines = [(line, _TURN.fullmatch(line.strip())) for line in prompt.splitlines()]
    told = "\n".join(line for line, turn in lines if turn is None).strip()
    return told, [(turn[1], turn[2]) for _, turn in lines if turn is not None]
