r"""Regular expressions of a task, applied to logs that a hostile job may have written.

A matcher that backtracks can take for ever, so a pattern such as ``(a+)+$`` would let a job stop the daemon; Python's
own cannot be interrupted. Four walls: patterns whose time may grow exponentially are refused, a pattern sees single
lines of bounded length, no line may take more than ``LINE_S`` (the package regex, which is asked for what Python's
matcher takes, has a deadline), and each reader has an allowance of time after which it finds nothing more.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

import regex

from autoresearchd.errors import ConfigError

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

    Raises:
        ConfigError: it is no regular expression, has no group, or could take exponential time.
    """
    try:
        compiled = re.compile(pattern)
        regex.compile(pattern)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"not a regular expression: {error}", key=key, mend="mend or quote the pattern") from None
    survey = _survey(pattern)
    if survey.problem:
        raise ConfigError(
            f"this pattern could take for ever on some lines: {survey.problem}",
            key=key,
            mend="repeat a character class instead of a group, e.g. `[\\d,]+` for `(\\d+,?)+`",
        )
    if survey.variable > MAX_VARIABLE or survey.broad > MAX_BROAD:
        raise ConfigError(
            f"this pattern could take for ever: {survey.variable} variable repeats, {survey.broad} of them of anything",
            key=key,
            mend=f"use at most {MAX_VARIABLE} of `*`, `+`, `?`, at most {MAX_BROAD} of them on `.` or `[^…]`",
        )
    if not compiled.groups:
        raise ConfigError(
            "this pattern has no group", key=key, mend="put round brackets around the number: `score: ([\\d.]+)`"
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
