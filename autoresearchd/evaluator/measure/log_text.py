r"""What all readers of logs share: lines without terminal codes, numbers as programs print them, a task's own pattern.

Logs are hostile: every quantifier here has a bound, so that no text costs more than time linear in its length. A task's
pattern meets four walls: one whose time may grow exponentially is refused, it sees single lines of bounded length, no
line may take more than ``LINE_S`` (the package regex has a deadline), and each reader has an allowance of time.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field

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


MAX_VARIABLE = 16
MAX_BROAD = 3
ALLOWANCE_S = 1.0
FREE_S = 20e-6
LINE_S = 0.25

_TOKEN = re.compile(
    r"(?P<escape>\\.)"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<open>\((?:\?(?:P<\w+>|[aiLmsux-]*:|[=!>]|<[=!]))?)"
    r"|(?P<close>\))"
    r"|(?P<repeat>[*+?]|\{\d*,?\d*\})[?+]?"
    r"|(?P<bar>\|)"
    r"|(?P<any>\.)"
    r"|(?P<literal>.)",
    re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    """What is known of an open group."""

    variable: bool = False
    choice: bool = False


@dataclass(slots=True)
class _Survey:
    """Counts of what makes a pattern slow."""

    variable: int = 0
    broad: int = 0
    problem: str = ""
    stack: list[_Group] = field(default_factory=lambda: [_Group()])
    atom: _Group = field(default_factory=_Group)
    atom_broad: bool = False

    def repeat(self, quantifier: str, at: int) -> None:
        """Take note of a quantifier on the last atom."""
        most = _most(quantifier)
        if most > 1 and (self.atom.variable or self.atom.choice):
            self.problem = f"the group repeated by {quantifier!r} at position {at} can match the same text in many ways"
        if most > 1 or quantifier == "?":
            self.variable += 1
            self.stack[-1].variable = True
            self.broad += int(self.atom_broad and most > 32)


def _most(quantifier: str) -> float:
    """How often a quantifier repeats at most."""
    if quantifier in "*+":
        return float("inf")
    if quantifier == "?":
        return 1
    low, comma, high = quantifier.strip("{}").partition(",")
    return float(high) if high else (float("inf") if comma else float(low or 1))


def _survey(pattern: str) -> _Survey:
    survey = _Survey()
    for token in _TOKEN.finditer(pattern):
        kind, text = token.lastgroup, token.group(0)
        if kind == "open":
            survey.stack.append(_Group())
        elif kind == "close" and len(survey.stack) > 1:
            survey.atom, survey.atom_broad = survey.stack.pop(), False
            survey.stack[-1].variable |= survey.atom.variable
            survey.stack[-1].choice |= survey.atom.choice
        elif kind == "bar":
            survey.stack[-1].choice = True
        elif kind == "repeat":
            survey.repeat(token.group("repeat"), token.start())
        else:
            broad = kind == "any" or text in (r"\S", r"\D", r"\W") or text.startswith("[^")
            survey.atom, survey.atom_broad = _Group(), broad
    return survey


def compile_pattern(pattern: str, *, key: str) -> re.Pattern[str]:
    """Compile a pattern of the task.

    Raises ConfigError: it is no regular expression, has no group, or could take exponential time.
    """
    try:
        compiled = re.compile(pattern)
        regex.compile(pattern)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"not a regular expression: {error}", key=key, hint="fix or quote the pattern") from None
    survey = _survey(pattern)
    if survey.problem:
        raise ConfigError(
            f"this pattern could take for ever on some lines: {survey.problem}",
            key=key,
            hint="repeat a character class instead of a group, e.g. `[\\d,]+` for `(\\d+,?)+`",
        )
    if survey.variable > MAX_VARIABLE or survey.broad > MAX_BROAD:
        raise ConfigError(
            f"this pattern could take for ever: {survey.variable} variable repeats, {survey.broad} of them of anything",
            key=key,
            hint=f"use at most {MAX_VARIABLE} of `*`, `+`, `?`, at most {MAX_BROAD} of them on `.` or `[^…]`",
        )
    if not compiled.groups:
        raise ConfigError(
            "this pattern has no group", key=key, hint="put round brackets around the number: `score: ([\\d.]+)`"
        )
    return compiled


class LineMatcher:
    """A task's pattern with its walls; one for each text that is read.

    Time beyond ``FREE_S`` a line is counted; after ``ALLOWANCE_S`` of it nothing more is found.
    """

    def __init__(self, pattern: str, *, key: str) -> None:
        self.regex = compile_pattern(pattern, key=key)
        self._matcher = regex.compile(pattern)
        self._limit = 256 if _survey(pattern).broad >= MAX_BROAD else 512
        self._left = ALLOWANCE_S

    def search(self, line: str) -> re.Match[str] | None:
        """The first match within the first few hundred characters of ``line``."""
        if self._left <= 0:
            return None
        began = time.perf_counter()
        try:
            found: re.Match[str] | None = self._matcher.search(line, 0, self._limit, timeout=LINE_S)
            return found  # a match of regex, which has all that one of Python's has
        except (RecursionError, TimeoutError):
            return None
        finally:
            self._left -= max(0.0, time.perf_counter() - began - FREE_S)
