"""The words of an answer: what it says that its edit is for, bounded and cleaned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoresearchd.policy import answer
from autoresearchd.policy.edits.objects import EDIT_KEYS

_TEXTS = {
    "hypothesis": answer.MAX_TEXT,
    "description": answer.MAX_LINE,
    "arch_change": answer.MAX_TEXT,
    "next_action_hint": answer.MAX_TEXT,
}
_KEYS = frozenset({*_TEXTS, "expected_delta"})
_TITLES = {
    "hypothesis": "hypothesis",
    "description": "description",
    "expected delta": "expected_delta",
    "arch change": "arch_change",
    "architecture change": "arch_change",
    "next action hint": "next_action_hint",
}
_NUMBER = re.compile(r"\s*[-+]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][-+]?\d{1,3})?")
_DECORATION = " \t#>*_`-"
_LONGEST_TITLE = 40
_LONGEST_LINE = 4 * answer.MAX_TEXT


def words_of(objects: Sequence[Mapping[str, Any]], lines: Iterable[str]) -> dict[str, Any]:
    """The words in the last object that has any, else those in lines like ``Hypothesis: …``."""
    for found in reversed(objects):
        if not _KEYS.isdisjoint(found):
            return _bounded(found)
    return _bounded(_titled(lines))


def _titled(lines: Iterable[str]) -> dict[str, str]:
    """What follows the known titles; the first of each counts."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, rest = line[:_LONGEST_LINE].partition(":")
        if not colon or len(name) > _LONGEST_TITLE:
            continue
        key = _TITLES.get(name.strip(_DECORATION).lower().replace("_", " "))
        if key is not None and key not in found:
            found[key] = rest.strip(_DECORATION if key != "expected_delta" else " \t*_`")
    return found


def _bounded(found: Mapping[str, Any]) -> dict[str, Any]:
    words: dict[str, Any] = {key: answer.clean(found.get(key), most) for key, most in _TEXTS.items()}
    words["expected_delta"] = _delta(found.get("expected_delta"))
    free = {key: value for key, value in found.items() if key not in EDIT_KEYS and key not in _KEYS}
    kept = {key: value for key, value in words.items() if value not in ("", None)}
    return {**answer.asi_of(free, "").extra, **kept}


def _delta(value: object) -> float | None:
    """A number, or a text that begins with one."""
    if isinstance(value, str):
        text = value[:_LONGEST_TITLE].replace("−", "-")
        match = _NUMBER.match(text)
        # A percentage is no difference of the metric.
        if match is None or text[match.end() :].lstrip().startswith("%"):
            return None
        return answer.number(float(match[0]))
    return answer.number(value)
