"""Text of others made fit to be shown and stored."""

from __future__ import annotations


def printable(text: str, *, keep: str = "", instead: str = "?") -> str:
    """The text with ``instead`` for each character that is not to be seen (controls, direction marks), but ``keep``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else instead for c in text)


def storable(text: str) -> str:
    """The text without what UTF-8, a database or a request cannot hold (halves of surrogate pairs, NUL)."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, most: int | None = None) -> str:
    """The text on one line, printable, cut to a length."""
    line = " ".join(printable(text, instead=" ").split())
    return line if most is None or len(line) <= most else line[: most - 1] + "…"


def clean(value: object, most: int) -> str:
    """``one_line``; nothing for what is no text."""
    return one_line(value[: 4 * most], most) if isinstance(value, str) else ""
