r"""The text of a log: lines without terminal codes, a task's own pattern, and the metrics that were printed.

Forms of metrics: ``METRIC name=value`` lines (pi-autoresearch), ``name: value`` lines (karpathy/autoresearch), JSON
objects, one a line or in a result file, and a regular expression of the task. The last value of a name wins. Where
nobody chose a form, ``name=value`` is one, too, and a name that none of them gave is looked for as people write it
(``Validation RMSE: 1.2``). Values that are not finite are returned as such.

Logs are hostile: every quantifier here has a bound, so that no text costs more than time linear in its length. A task's
pattern sees single lines of bounded length, and each line and each text has an allowance of time (``LineMatcher``).
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

import regex

from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.errors import ConfigError
from autoresearchd.domain.task import Scoring

_CONTROL = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours, cursor movements
    r"|\][^\x07\x1b\n\r]{0,512}(?:\x07|\x1b\\)"  # OSC: window titles, hyperlinks
    r"|[ -/]{0,8}[0-~])"
    r"|[\x00\x07\x08\x1b\ufeff]"
)

_DIGITS = r"(?:[0-9]{1,3}(?:[,_][0-9]{3}){1,102}(?:\.[0-9]{0,400})?|[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})"
_FIGURE = rf"[+-]?{_DIGITS}(?:[eE][+-]?[0-9]{{1,5}})?"
_WORD = r"(?i:[+-]?(?:nan|inf(?:inity)?)|none|null)"
_STOP = r"(?=[ \t|;)\]}]|,(?:[ \t\n]|\Z)|\n|\Z)"
_UNIT = r"(?:[ \t]?[%A-Za-zµμ°²³/]{1,16})?"

NUMBER = rf"(?:{_FIGURE}|{_WORD})"
"""A number where the format itself says where it ends. A finite double has at most 309 digits before the point."""
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


ALLOWANCE_S, FREE_S = 1.0, 20e-6
"""Processor time for one text, beyond what is free for each of its lines."""
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


# ---------------------------------------------------------------------- metrics
MAX_NAMES = 256
NAME = r"[\w.µ/@-]{1,128}"

_WINDOW = 2**20
_MATCHES = 100_000
_LONGEST_LINE = 2_000
_JSON_DEPTH = 4
_METRIC_LINE = re.compile(rf"\n[ \t]{{0,32}}METRIC[ \t]{{1,32}}({NAME})[ \t]{{0,32}}=[ \t]{{0,32}}({NUMBER_THEN_UNIT})")
_JSON_LINE = re.compile(r"\n[ \t]{0,32}(\{[^\n]{1,65536})")
_BEFORE = r"(?:final|validation|valid|val|test|eval|evaluation)"
"""Words that may stand before a metric's name and say what it was measured on; not ``best`` or ``train``."""
_NUMBER_IN_TEXT = re.compile(NUMBER_THEN_UNIT)


def known_names(scoring: Scoring) -> tuple[str, ...]:
    """Names that the task speaks of: its metric, further metrics, and those that constraints bound."""
    names = (scoring.metric.name, *scoring.metrics, *scoring.display_metrics, *(c.metric for c in scoring.constraints))
    return tuple(dict.fromkeys(names))


def parse_metrics(text: str, scoring: Scoring, *, result_file: str | None = None) -> dict[str, float]:
    """Metrics in a log and in the text of a result file, whose values win; those that the task speaks of come first.

    Never raises for what ``text`` holds. ConfigError when the task's own pattern cannot be used.
    """
    metrics, known = _parse_log(text, scoring), known_names(scoring)
    if result_file is not None:
        metrics.update(_parse_result_file(result_file, scoring))
    ordered = [*(n for n in known if n in metrics), *(n for n in metrics if n not in known)]
    return {name: metrics[name] for name in ordered[:MAX_NAMES]}


# ---------------------------------------------------------------------- logs
def _parse_log(text: str, scoring: Scoring, mode: str | None = None) -> dict[str, float]:
    text, known = "\n" + as_lines(text), known_names(scoring)
    mode = mode or scoring.parse_mode
    if mode != "regex":
        found = _scan(text, mode, known)
        return (
            _as_people_write(text, [name for name in known if name not in found]) | found if mode == "auto" else found
        )
    # The pattern alone decides on the names that it gives; the other forms may add to them.
    matcher = LineMatcher(scoring.pattern or "", key="scoring.pattern")
    named = _group_names(matcher.regex, scoring.metric.name)
    return {k: v for k, v in _scan(text, "auto", known).items() if k not in named} | _search(text, matcher, named)


def _windows(text: str) -> Iterator[tuple[int, int]]:
    """Stretches of whole lines, each beginning with a line end. The last comes first, because the last value wins."""
    high = len(text)
    while high > 0:
        low = text.rfind("\n", 0, high - _WINDOW + 1) if high > _WINDOW else 0
        yield max(low, 0), high
        high = max(low, 0)


def _scan(text: str, mode: str, known: tuple[str, ...]) -> dict[str, float]:
    """All forms but the pattern. Bounded: earlier windows are left out once the later ones gave very many matches."""
    found: dict[str, float] = {}
    seen = 0
    for low, high in _windows(text):
        matches = list(_matches(text, low, high, mode, known, [n for n in known if n not in found]))
        for name, value in {name: value for _, name, value in sorted(matches, key=itemgetter(0))}.items():
            if name in known or len(found) < MAX_NAMES:
                found.setdefault(name, value)
        seen += len(matches)
        if seen > _MATCHES:
            break
    return found


def _matches(
    text: str, low: int, high: int, mode: str, known: Sequence[str], wanted: Sequence[str]
) -> Iterator[tuple[int, str, float]]:
    """(position, name, value) of what each form of a mode gives in a stretch of a text."""
    if mode in ("auto", "metric"):
        for match in _METRIC_LINE.finditer(text, low, high):
            yield match.start(), match[1], to_float(match[2])
    if wanted and mode in ("auto", "key_value"):
        # The longest first, so that ``loss`` does not hide ``loss_val``; quotes are those of pretty-printed JSON.
        names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
        space, sign = r"[ \t]{0,32}", "[:=]" if mode == "auto" else ":"
        key_line = re.compile(rf"\n{space}[\"']?({names})[\"']?{space}{sign}{space}({NUMBER_THEN_UNIT})")
        for match in key_line.finditer(text, low, high):
            yield match.start(), match[1], to_float(match[2])
    if wanted and mode in ("auto", "json"):
        for match in _JSON_LINE.finditer(text, low, high):
            line = match[1]
            values = _flatten(_load(line)) if any(name.rpartition(".")[2] in line for name in wanted) else {}
            yield from ((match.start(), name, values[name]) for name in wanted if name in values)


def _as_people_write(text: str, names: Sequence[str]) -> dict[str, float]:
    """``Validation RMSE: 1.2`` for ``rmse``, any letter case, a few words before it; nothing where those differ."""
    found: dict[str, float] = {}
    for name in names:
        written = "[ _-]".join(re.escape(part) for part in re.split(r"[_-]", name))
        space = r"[ \t]{0,32}"
        line = re.compile(
            rf"\n{space}((?:{_BEFORE}[ \t_-]{{1,4}}){{0,2}}){written}{space}[:=]{space}({NUMBER_THEN_UNIT})",
            re.IGNORECASE,
        )
        low, high = next(_windows(text), (0, 0))
        matches = list(islice(line.finditer(text, low, high), _MATCHES))
        if len({match[1].lower().strip(" \t_-") for match in matches}) == 1:
            found[name] = to_float(matches[-1][2])
    return found


def example_pattern(text: str, name: str) -> str:
    """A ``scoring.pattern`` for the last line of a log that has a metric's name, and a number after it; or nothing."""
    between = r"[^\w\n]{0,12}(?:[a-z]{1,12}[^\w\n]{1,6}){0,3}?"
    near = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.])({between})({NUMBER_THEN_UNIT})", re.IGNORECASE)
    for line in reversed(as_lines(text[-_WINDOW:]).split("\n")):
        match = near.search(line[:_LONGEST_LINE])
        if match is None or not math.isfinite(to_float(match[2])):
            continue
        pattern = re.escape(match[0][: match.start(2) - match.start()]).replace("\\ ", " ") + r"(\S+)"
        known = LineMatcher(pattern, key="scoring.pattern").search(line)
        return pattern if known is not None and pattern.isprintable() and "'" not in pattern else ""
    return ""


# ---------------------------------------------------------------------- JSON
def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _flatten(value: Any, prefix: str = "", depth: int = 0) -> dict[str, float]:
    """Numbers of an object, those of inner objects under dotted names."""
    flat: dict[str, float] = {}
    if not isinstance(value, dict) or depth > _JSON_DEPTH:
        return flat
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, str):
            match = _NUMBER_IN_TEXT.match(item.strip()) if len(item) <= 512 else None
            number = to_float(match[0]) if match else None
        else:
            number = json_number(item)
        if isinstance(item, dict):
            flat.update(_flatten(item, f"{name}.", depth + 1))
        elif number is not None:
            flat[name] = number
    return flat


def _parse_result_file(text: str, scoring: Scoring) -> dict[str, float]:
    """A result file is one JSON object (of a list the last), or lines like those of a log."""
    value = _load(text.lstrip("\ufeff"))
    if isinstance(value, list) and value:
        value = value[-1]
    if isinstance(value, dict):
        return {name: number for name, number in _flatten(value).items() if re.fullmatch(NAME, name)}
    return _parse_log(text, scoring, "auto")


# ---------------------------------------------------------------------- the task's own pattern
def _group_names(regex: re.Pattern[str], primary: str) -> tuple[str, ...]:
    """Which metrics a pattern gives: its named groups (``value`` is the task's metric), else the metric by group 1."""
    return tuple(primary if name in ("value", "metric") else name for name in regex.groupindex) or (primary,)


def _search(text: str, matcher: LineMatcher, names: tuple[str, ...]) -> dict[str, float]:
    """Lines from the last to the first, until each group has a value."""
    groups: tuple[str | int, ...] = tuple(matcher.regex.groupindex) or (1,)
    found: dict[str, float] = {}
    for low, high in _windows(text):
        for line in reversed(text[low:high].split("\n")):
            match = matcher.search(line) if line else None
            if match is None:
                continue
            for group, name in zip(groups, names, strict=True):
                number = _NUMBER_IN_TEXT.match((match[group] or "").strip())
                if number and name not in found:
                    found[name] = to_float(number[0])
            if len(found) == len(set(names)):
                return found
    return found
