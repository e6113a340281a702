"""Metrics out of the text that a job or an evaluation printed.

Forms: ``METRIC name=value`` lines (pi-autoresearch), ``name: value`` lines (karpathy/autoresearch,
autoresearch-distillation), JSON objects, one a line or in a result file, and a regular expression of the task. The
last value of a name wins. Where nobody chose a form, ``name=value`` is one, too, and a name that none of them gave is
looked for as people write it (``Validation RMSE: 1.2``). Values that are not finite are returned as such: what reads
them labels them, and never takes them for good.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from autoresearchd.domain.task import Scoring
from autoresearchd.evaluator.measure.log_text import NUMBER_THEN_UNIT, LineMatcher, as_lines, json_number, to_float

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
    """Metrics in a log and, when given, in the text of a result file, whose values win.

    Never raises for what ``text`` holds. ConfigError when the task's own pattern cannot be used.
    """
    metrics = _parse_log(text, scoring)
    if result_file is not None:
        metrics.update(_parse_result_file(result_file, scoring))
    return _limited(metrics, known_names(scoring))


# ---------------------------------------------------------------------- logs
def _parse_log(text: str, scoring: Scoring, mode: str | None = None) -> dict[str, float]:
    text = "\n" + as_lines(text)
    mode = mode or scoring.parse_mode
    if mode == "auto":
        found = _scan(text, mode, known_names(scoring))
        return {**_as_people_write(text, [name for name in known_names(scoring) if name not in found]), **found}
    if mode != "regex":
        return _scan(text, mode, known_names(scoring))
    # The pattern alone decides on the names that it gives; the other forms may add to them.
    matcher = LineMatcher(scoring.pattern or "", key="scoring.pattern")
    named = set(_group_names(matcher.regex, scoring.metric.name))
    metrics = {k: v for k, v in _scan(text, "auto", known_names(scoring)).items() if k not in named}
    return {**metrics, **_search(text, matcher, scoring.metric.name)}


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
        here: dict[str, tuple[int, float]] = {}
        for position, name, value in _matches(text, low, high, mode, known, [n for n in known if n not in found]):
            seen += 1
            if name not in here or here[name][0] <= position:
                here[name] = (position, value)
        for name, (_, value) in here.items():
            if name in known or len(found) < MAX_NAMES:
                found.setdefault(name, value)
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
        for match in _key_line(known, "[:=]" if mode == "auto" else ":").finditer(text, low, high):
            yield match.start(), match[1], to_float(match[2])
    if wanted and mode in ("auto", "json"):
        for match in _JSON_LINE.finditer(text, low, high):
            line = match[1]
            values = _flatten(_load(line)) if any(name.rpartition(".")[2] in line for name in wanted) else {}
            yield from ((match.start(), name, values[name]) for name in wanted if name in values)


def _key_line(known: Sequence[str], sign: str) -> re.Pattern[str]:
    # The longest first, so that ``loss`` does not hide ``loss_val``; quotes are those of pretty-printed JSON.
    names = "|".join(re.escape(name) for name in sorted(known, key=len, reverse=True))
    return re.compile(rf"\n[ \t]{{0,32}}[\"']?({names})[\"']?[ \t]{{0,32}}{sign}[ \t]{{0,32}}({NUMBER_THEN_UNIT})")


def _as_people_write(text: str, names: Sequence[str]) -> dict[str, float]:
    """``Validation RMSE: 1.2`` for ``rmse``: in any case of letters, a space for an underscore, a few words before it.

    Nothing where it is written with different words before it: which is meant only the task's pattern can say.
    """
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
    """Numbers of an object, those of inner objects under dotted names. ``null`` is how some writers spell NaN."""
    flat: dict[str, float] = {}
    if not isinstance(value, dict) or depth > _JSON_DEPTH:
        return flat
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            flat.update(_flatten(item, f"{name}.", depth + 1))
        else:
            number = _json_number(item)
            if number is not None:
                flat[name] = number
    return flat


def _json_number(item: Any) -> float | None:
    if isinstance(item, str) and len(item) <= 512:
        match = _NUMBER_IN_TEXT.match(item.strip())
        return to_float(match[0]) if match else None
    return json_number(item)


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


def _search(text: str, matcher: LineMatcher, primary: str) -> dict[str, float]:
    """Lines from the last to the first, until each group has a value."""
    groups: tuple[str | int, ...] = tuple(matcher.regex.groupindex) or (1,)
    names = _group_names(matcher.regex, primary)
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


def _limited(metrics: Mapping[str, float], known: tuple[str, ...]) -> dict[str, float]:
    """At most MAX_NAMES names, those that the task speaks of first."""
    ordered = [*(n for n in known if n in metrics), *(n for n in metrics if n not in known)]
    return {name: metrics[name] for name in ordered[:MAX_NAMES]}
