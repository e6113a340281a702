"""Commit messages: a subject in one line, a body, and trailers that no text in the first two can imitate.

What git takes for a trailer: git-interpret-trailers(1). It reads the last paragraph, and nothing after a ``---`` line.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

SUBJECT_LENGTH = 72
_BODY_LENGTH = 8000
_VALUE_LENGTH = 200
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*): ?(.*)")
_DANGEROUS = re.compile(r"---|#|\(cherry picked|[A-Za-z0-9-]+[ \t]*:")


def commit_message(subject: str, body: str, trailers: Mapping[str, str]) -> str:
    """The message, without control and formatting characters; body lines that look like trailers are indented."""
    for key in trailers:
        if not _KEY.fullmatch(key):
            raise ValueError(f"not a trailer: {key!r}")
    line = one_line(subject, SUBJECT_LENGTH)
    if line.startswith("---"):
        line = line.lstrip("- ")
    parts = [line or "(no hypothesis)"]
    text = "\n".join(_body_lines(body)).strip("\n")
    if text and text.strip() != parts[0]:
        parts.append(text)
    if trailers:
        parts.append("\n".join(f"{key}: {one_line(value, _VALUE_LENGTH)}".rstrip() for key, value in trailers.items()))
    return "\n\n".join(parts) + "\n"


def parse_message(message: str) -> tuple[str, str, dict[str, str]]:
    """Subject, body and trailers of a message that ``commit_message`` made; the body is empty where it is the subject.

    Only the last paragraph holds trailers, and only when every line of it is one: as git reads it.
    """
    paragraphs = message.strip("\n").split("\n\n")
    found = [_TRAILER.fullmatch(line) for line in paragraphs[-1].split("\n")]
    if len(paragraphs) < 2 or None in found:
        return paragraphs[0], "\n\n".join(paragraphs[1:]), {}
    return paragraphs[0], "\n\n".join(paragraphs[1:-1]), {m[1]: m[2] for m in found if m is not None}


def one_line(text: str, length: int) -> str:
    """The text on a single line of at most ``length`` characters, without control characters."""
    line = " ".join(_visible(text).split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def _visible(text: str) -> str:
    """Line ends and tabs become spaces; other control, formatting (bidi) and unpaired characters go."""
    spaced = "".join(" " if unicodedata.category(c) in {"Zl", "Zp"} or c.isspace() else c for c in text)
    return "".join(c for c in spaced if unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Cn"})


def _body_lines(body: str) -> list[str]:
    """At most one empty line in a row; a line is indented when git could take it for more than text."""
    lines: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", body[:_BODY_LENGTH]):
        line = _visible(raw.expandtabs(4)).rstrip()
        if not line and (not lines or not lines[-1]):
            continue
        lines.append(f"  {line}" if _DANGEROUS.match(line) else line)
    return lines
