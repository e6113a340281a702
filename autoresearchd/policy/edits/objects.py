"""The JSON objects in an answer: bare or in a fenced block, each beginning on a line of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autoresearchd.policy.edits.model import shown
from autoresearchd.policy.edits.segments import Fence, Prose, Segments

EDIT_KEYS = ("edits", "search_replace", "diff", "files")
_MAX_OBJECTS = 1000
_MAX_SCANNED = 8 * 1024 * 1024
_DEEP = 100_000
_BEGIN = re.compile(r'^[ \t]*(?=\{\s*")', re.MULTILINE)
_BARE = re.compile(r'^(?=\{\s*")', re.MULTILINE)
_EDIT_KEY = re.compile(r'"(?:edits|search_replace|diff|files)"\s*:')
_LANGUAGES = frozenset({"", "json", "jsonc", "json5", "jsonl"})


@dataclass(frozen=True, slots=True)
class Found:
    """The objects in order; broken: what is wrong with the first that looks like an edit and does not parse."""

    objects: tuple[Mapping[str, Any], ...]
    broken: str = ""

    @property
    def edit(self) -> Mapping[str, Any] | None:
        """The last object that holds an edit."""
        return next((o for o in reversed(self.objects) if any(o.get(key) for key in EDIT_KEYS)), None)


def whole_object(text: str) -> Found:
    """The object that an answer begins with, as structured output does."""
    return _read([(text, _BEGIN)], most=1)


def objects(parts: Segments) -> Found:
    """All objects outside of code."""
    texts: list[tuple[str, re.Pattern[str]]] = []
    for part in parts.parts:
        if isinstance(part, Prose):
            # An indented brace in a bare diff belongs to the file that it changes.
            texts.append(("\n".join(part.lines), _BARE if part.diff else _BEGIN))
        elif isinstance(part, Fence) and part.language in _LANGUAGES:
            texts.append(("\n".join(part.lines), _BEGIN))
    return _read(texts)


def _read(texts: Iterable[tuple[str, re.Pattern[str]]], most: int = _MAX_OBJECTS) -> Found:
    # Line feeds inside strings are what models write; NaN is taken for a value that is not there.
    decoder = json.JSONDecoder(strict=False, parse_constant=lambda _: None)
    found: list[Mapping[str, Any]] = []
    broken, scanned, tried = "", 0, 0
    for text, begin in texts:
        at = 0
        while tried < most and scanned < _MAX_SCANNED and (start := begin.search(text, at)):
            tried += 1
            try:
                value, at = decoder.raw_decode(text, start.end())
            except json.JSONDecodeError as error:
                at = start.end() + 1
                # How far it got is what it cost: objects that break off late must not be read again and again.
                scanned += error.pos - start.end() + 1
                if not broken and _EDIT_KEY.search(text, start.end(), start.end() + _DEEP):
                    broken = f"the JSON object is broken at {_near(text, error)}: {error.msg}"
            except (ValueError, RecursionError) as error:
                at = start.end() + 1
                scanned += _DEEP
                broken = broken or f"the JSON object cannot be read: {shown(str(error))}"
            else:
                found.append(value)
    return Found(tuple(found), broken)


def _near(text: str, error: json.JSONDecodeError) -> str:
    line = text[: error.pos].rpartition("\n")[2][-40:]
    return f"line {error.lineno}, column {error.colno}, after `{shown(line)}`"
