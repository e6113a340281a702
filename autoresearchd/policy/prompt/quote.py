"""How words of models, programs and logs stand in a prompt: as data, clean, cut, in a fence that they cannot close."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.redaction import Redactor
from autoresearchd.evaluator.measure.log_text import without_control_codes

DATA = "data"
"""Marks a fenced block that holds what others said; a system message explains it once."""

MAX_ROW = 400
"""Characters of one line of a log."""

_LOOK_AHEAD = 1024
"""Characters behind a cut that are looked at: as long as secrets are that stand in a line."""

_WINDOW = 8192

_TICKS = re.compile(r"`{3,}")


@dataclass(frozen=True, slots=True)
class Quote:
    """Cleans and cuts. What is cut is redacted before: half of a secret would not be known any more."""

    redactor: Redactor = field(default_factory=Redactor)

    def line(self, value: object, most: int) -> str:
        """On one line, printable, cut to a length."""
        text = value if isinstance(value, str) else str(value)
        if len(text) > most:
            text = self.redactor.text(text[: most + _LOOK_AHEAD])
        text = printable(" ".join(without_control_codes(text).split()))
        return text if len(text) <= most else text[: most - 1] + "…"

    def start(self, text: str, most: int) -> str:
        """The beginning of a text, printable, its lines as they are, cut to a length."""
        window = self.redactor.text(text[: most + _WINDOW]) if len(text) > most else text
        shown = "\n".join(_rows(window, most)).strip("\n")
        cut = len(text) > most + _WINDOW or len(shown) > most
        return shown[: most - 1].rstrip() + "…" if cut else shown

    def end(self, text: str, most: int, rows: int) -> str:
        """The last lines of a log, printable, without empty ones, cut to a length."""
        if len(text) > most:
            text = self.redactor.text(text[-(most + _WINDOW) :])
        found = [row for row in _rows(text, MAX_ROW) if row]
        kept: list[str] = []
        for row in reversed(found[-rows:]):
            if len(row) >= most:
                break
            most -= len(row) + 1
            kept.append(row)
        return "\n".join(reversed(kept))


def fence_block(text: str, info: str = "") -> str:
    """The text in a fence of backticks that is longer than any in it."""
    fence = "`" * fence_length(text)
    return f"{fence}{info}\n{text}\n{fence}"


def fence_length(text: str) -> int:
    """How many backticks a fence around the text needs."""
    return max((len(run) + 1 for run in _TICKS.findall(text)), default=3)


def data_block(text: str) -> str:
    """A block of what others said."""
    return fence_block(text, DATA)


def _rows(text: str, most: int) -> list[str]:
    r"""Lines as a terminal shows them: of a progress bar, which rewrites its line with ``\r``, what it ended with."""
    rows = []
    for row in without_control_codes(text.replace("\r\n", "\n")).split("\n"):
        if "\r" in row:
            row = next((part for part in reversed(row.split("\r")) if part.strip()), "")
        row = printable(row[: most + 1].replace("\t", "    ").rstrip())
        rows.append(row if len(row) <= most else row[: most - 1] + "…")
    return rows
