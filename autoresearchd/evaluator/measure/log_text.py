r"""What all readers of logs share: lines without terminal codes, numbers as programs print them, a task's own pattern.

Logs are hostile: every quantifier here has a bound, so that no text costs more than time linear in its length. A task's
pattern sees single lines of bounded length, and each line and each text has an allowance of time (``LineMatcher``).
"""

from __future__ import annotations

import math
import re
import time
from typing import Any

import regex

from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.errors import ConfigError

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
    return _CONTROL.sub("", text)


def as_lines(text: str) -> str:
    r"""``text`` with one kind of line end, without control codes; a progress bar's ``\r`` ends a line too."""
    return without_control_codes(text).replace("\r", "\n")


def to_float(figure: str) -> float:
    """Value of what NUMBER matched; ``none`` and ``null`` are not a number."""
    try:
        return float(figure.replace(",", "").replace("_", ""))
    except ValueError:
        return math.nan


def json_number(item: object) -> float | None:
    """A number of JSON; ``null`` is how some writers spell NaN."""
    if item is None:
        return math.nan
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        return None
    try:
        return float(item)
    except OverflowError:
        return math.inf if item > 0 else -math.inf


def shorten(text: str, limit: int) -> str:
    """``text`` on one line, at most ``limit`` characters, without control codes and lone surrogates."""
    line = printable(" ".join(without_control_codes(text[: 4 * limit]).split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def tells(text: str, what: str) -> bool:
    """Whether ``text`` begins with all that ``what`` says, which may have been cut where it is too long."""
    begin = " ".join(what.split()).removesuffix("…").rstrip(" .")
    return " ".join(text.split()).startswith(begin)


ALLOWANCE_S = 1.0
"""Processor time for one text, beyond ``FREE_S`` for each of its lines."""
FREE_S = 20e-6
LINE_S = 0.25
"""Processor time for one line."""
PATIENCE_S = 30.0
"""By the clock, for all lines of a text that were not done in time: on a busy machine a good one may have to wait."""
MOST_CHARACTERS = 512


def compile_pattern(pattern: str, *, key: str) -> re.Pattern[str]:
    """Compile a pattern of the task. ConfigError: it is not a regular expression, or has no group."""
    try:
        compiled: re.Pattern[str] = regex.compile(pattern)  # one of regex has all that one of Python's has
    except (regex.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"not a regular expression: {error}", key=key, hint="fix or quote the pattern") from None
    if not compiled.groups:
        raise ConfigError(
            "this pattern has no group", key=key, hint="put round brackets around the number: `score: ([\\d.]+)`"
        )
    return compiled


class LineMatcher:
    """A task's pattern with its walls, one for each text that is read: once they are reached nothing more is found.

    The deadline of ``regex`` is by the clock. Where a line passed it with little processor time spent, the machine is
    busy and not the pattern slow: the line gets more time.
    """

    def __init__(self, pattern: str, *, key: str) -> None:
        self.regex: Any = compile_pattern(pattern, key=key)
        self._left, self._patience = ALLOWANCE_S, PATIENCE_S

    def search(self, line: str) -> re.Match[str] | None:
        """The first match within the first few hundred characters of ``line``."""
        began, wait = time.thread_time(), LINE_S
        match: re.Match[str] | None = None
        while self._left > 0 and self._patience > 0:
            try:
                match = self.regex.search(line, 0, MOST_CHARACTERS, timeout=wait)
            except TimeoutError:
                self._patience -= wait
                wait = min(2 * wait, 8 * LINE_S, self._patience)
                if time.thread_time() - began < LINE_S:
                    continue
            except RecursionError:
                pass
            break
        self._left -= max(0.0, time.thread_time() - began - FREE_S)
        return match
