"""What all readers of logs share: text without terminal codes, and numbers as programs print them.

Logs are hostile: every quantifier here has a bound, so that no text costs more than time linear in its length.
"""

from __future__ import annotations

import math
import re

from autoresearchd.domain.cleaning import printable

_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours, cursor movements
    r"|\][^\x07\x1b\n\r]{0,512}(?:\x07|\x1b\\)"  # OSC: window titles, hyperlinks
    r"|[ -/]{0,8}[0-~])"
    r"|[\x00\x07\x08\x1b\ufeff]"
)

# A finite double has at most 309 digits before the point; a program that prints one in full has printed a number.
_DIGITS = r"(?:[0-9]{1,3}(?:[,_][0-9]{3}){1,102}(?:\.[0-9]{0,400})?|[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})"
_FIGURE = rf"[+-]?{_DIGITS}(?:[eE][+-]?[0-9]{{1,5}})?"
_WORD = r"(?i:[+-]?(?:nan|inf(?:inity)?)|none|null)"
_STOP = r"(?=[ \t|;)\]}]|,(?:[ \t\n]|\Z)|\n|\Z)"
_UNIT = r"(?:[ \t]?[%A-Za-zµμ°²³/]{1,16})?"

NUMBER = rf"(?:{_FIGURE}|{_WORD})"
"""A number without a look at what follows; for places where the format itself says where it ends."""

NUMBER_THEN_UNIT = rf"(?:{_FIGURE}(?={_UNIT}{_STOP})|{_WORD}(?=%?{_STOP}))"
"""A number with its end in sight: ``1.23 ms``, ``45,060.2 MB``, ``87%``; not ``1.2.3`` or ``3/10``."""


def without_control_codes(text: str) -> str:
    """``text`` without what only a terminal understands (ECMA-48 escape sequences, backspace, bell, NUL)."""
    if "\x1b" in text or "\x08" in text or "\x00" in text or "\x07" in text or "\ufeff" in text:
        return _CONTROL.sub("", text)
    return text


def as_lines(text: str) -> str:
    r"""``text`` with one kind of line end, without control codes; a progress bar's ``\r`` ends a line too."""
    return without_control_codes(text).replace("\r", "\n")


def to_float(figure: str) -> float:
    """Value of what NUMBER matched; ``none`` and ``null`` are not a number."""
    try:
        return float(figure.replace(",", "").replace("_", ""))
    except ValueError:
        return math.nan


def shorten(text: str, limit: int) -> str:
    """``text`` on one line, at most ``limit`` characters, without control codes and lone surrogates."""
    line = " ".join(without_control_codes(text[: 4 * limit]).split())
    line = printable(line)
    return line if len(line) <= limit else line[: limit - 1] + "…"


def tells(text: str, what: str) -> bool:
    """Whether ``text`` begins with all that ``what`` says, which may have been cut where it is too long."""
    begin = " ".join(what.split()).removesuffix("…").rstrip(" .")
    return " ".join(text.split()).startswith(begin)
