"""Near duplicates: edits that are not the same program as an earlier one, but so close that a model should be told.

Two kinds are looked for. An edit of nothing but constants is a near duplicate where an earlier experiment set the same
constants to the same values from the same values, or from the same parent. Any other edit is one where the same tokens
were removed and added but for a tenth, and so of what was not there before, and all numbers are the same: the same idea
with another number, or another function in the same place, is no duplicate.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from autoresearchd.domain.labels import NEVER_RUN, Label, Status
from autoresearchd.evaluator.novelty import changed_lines
from autoresearchd.policy.answer import clean

WINDOW = 500
"""How many of the latest experiments are compared with."""
ALIKE = 0.9
"""Share of tokens that two edits must have in common, in order (one minus the normalised edit distance)."""
CLOSE = 1e-6
"""Relative distance below which two numbers are the same."""

_MOST_TOKENS = 500
_LONGEST = 300
_MOST_WARNINGS = 2000
_MOST_NAMED = 3
_TRIED = 5
_LARGEST = 1e300
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*(?:(?<=[eE])[+-]\d+)?|[^\w\s]")
_LITERAL = re.compile(r"\b\d[\w.]*(?:(?<=[eE])[+-]\d+)?|\b(?:True|False|None)\b|\"[^\"]*\"|'[^']*'")
_COMMENT = re.compile(r"[ +-]#[^\"']*$")
_NUMBER = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_VALUE = r"True|False|None|\"[^\"\\\n]{0,80}\"|'[^'\\\n]{0,80}'|[\d_.eE+\-*/ ()\[\],]{1,80}"
_ASSIGNMENT = re.compile(
    rf"([+-])[ \t]*([A-Za-z_][\w.]{{0,80}}|[\"'][A-Za-z_]\w{{0,80}}[\"'])[ \t]*"
    rf"(?:(?::[ \t]*[\w\[\], .|]{{1,60}})?=|(?<=[\"']):)[ \t]*({_VALUE})[ \t]*,?[ \t]*(?:#.*)?"
)
_Shelf = frozenset[str] | tuple[str, ...]
Constants = Mapping[str, tuple[Any, Any]]
"""Name → (value before, value after)."""


@dataclass(frozen=True, slots=True)
class Past:
    """A decided experiment. parent: the commit that its edit was made on; changes: as its proposal gave them."""

    number: int
    parent: str
    diff: str
    status: Status
    label: Label = Label.NONE
    value: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An edit as it is compared. constants: empty where it changed more than such; then tokens, one character each.

    shelf: what two near duplicates have in common, the names of the constants or all numbers in order. new: tokens that
    are added oftener than removed.
    """

    past: Past
    shelf: _Shelf
    constants: Constants = field(default_factory=dict)
    tokens: str = ""
    new: Counter[str] = field(default_factory=Counter)


class NearDuplicates:
    """The latest experiments of a segment, and which warnings were given.

    Args:
        window: how many experiments are remembered.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._entries: deque[_Entry] = deque()
        self._shelves: dict[_Shelf, list[_Entry]] = {}
        self._warned: OrderedDict[str, None] = OrderedDict()

    def add(self, past: Past) -> None:
        """Take a decided experiment in; those that were never run say nothing."""
        if past.label in NEVER_RUN:
            return
        entry = _read(past)
        self._entries.append(entry)
        self._shelves.setdefault(entry.shelf, []).append(entry)
        while len(self._entries) > self._window:
            oldest = self._entries.popleft()
            shelf = self._shelves[oldest.shelf]
            shelf.remove(oldest)
            if not shelf:
                del self._shelves[oldest.shelf]

    def look(self, diff: str, changes: Mapping[str, Any], parent: str) -> str:
        """What to tell a model that proposes this edit; empty where nothing like it is remembered."""
        proposed = _read(Past(-1, parent, diff, Status.DISCARD, changes=changes))
        shelf = self._shelves.get(proposed.shelf, [])
        if proposed.constants:
            found = next((e for e in reversed(shelf) if _same_values(proposed, e)), None)
            return "" if found is None else f"experiment {found.past.number} {_what(found)} already: {_came(found)}"
        if not proposed.tokens or not shelf:
            return ""
        near = process.extract(
            proposed.tokens,
            [e.tokens for e in shelf],
            scorer=Levenshtein.normalized_similarity,
            score_cutoff=ALIKE,
            limit=_TRIED,
        )
        for _, alike, index in near:
            found = shelf[index]
            if _overlap(proposed.new, found.new) >= ALIKE:
                return f"experiment {found.past.number} made nearly the same edit ({alike:.0%} alike): {_came(found)}"
        return ""

    def warn_once(self, key: str) -> bool:
        """Whether a warning about a program (its hash) is due: True the first time that it is asked for."""
        if key in self._warned:
            self._warned.move_to_end(key)
            return False
        self._warned[key] = None
        while len(self._warned) > _MOST_WARNINGS:
            self._warned.popitem(last=False)
        return True


def _read(past: Past) -> _Entry:
    lines = [line[0] + " ".join(line[1:].split()) for line in changed_lines(past.diff).split("\n") if line[1:].strip()]
    constants = _constants(lines)
    if not constants and _only_literals(lines):
        constants = {str(name): (None, value) for name, value in past.changes.items()}
    kept = replace(past, diff="", changes={})
    if constants:
        return _Entry(kept, frozenset(constants), constants)
    tokens: list[str] = []
    new: Counter[str] = Counter()
    for line in lines:
        found = _TOKEN.findall(_COMMENT.sub("", line))
        tokens += found
        (new.update if line[0] == "+" else new.subtract)(found[1:])
    numbers = tuple(t for t in tokens[:_MOST_TOKENS] if t[0].isdigit())
    return _Entry(kept, numbers, tokens="".join(map(_character, tokens[:_MOST_TOKENS])), new=+new)


def _only_literals(lines: list[str]) -> bool:
    """Whether an edit changes numbers, texts and flags in place, and nothing else."""
    masked = [(line[0], _LITERAL.sub("0", line[1:])) for line in lines]
    return sorted(t for sign, t in masked if sign == "-") == sorted(t for sign, t in masked if sign == "+")


def _overlap(a: Counter[str], b: Counter[str]) -> float:
    """What two edits bring in that was not there before: the share that they have in common."""
    most = max(a.total(), b.total())
    return (a & b).total() / most if most else 1.0


def _character(token: str) -> str:
    """A token as one character, so that distances count tokens (two tokens rarely share one: there are a million)."""
    return chr(0xE000 + zlib.crc32(token.encode(errors="replace")) % 0x100000)


# ---------------------------------------------------------------------- constants
def _constants(lines: list[str]) -> Constants:
    """The constants that a diff changes; nothing where it changes anything else as well."""
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    for line in lines:
        found = _ASSIGNMENT.fullmatch(line) if len(line) <= _LONGEST else None
        if found is None:
            return {}
        side, name = (after if found[1] == "+" else before), found[2].strip("\"'")
        if name in side:
            return {}  # one name at two places: which is which cannot be told
        side[name] = _value(found[3])
    if before.keys() != after.keys():
        return {}
    return {name: (before[name], after[name]) for name in after if not _close(before[name], after[name])}


def _value(text: str) -> Any:
    text = text.strip(", ")
    if re.fullmatch(_NUMBER, text):
        return float(text.replace("_", ""))
    return text.replace("'", '"').replace(" ", "") if text[:1] not in "\"'" else text[1:-1]


def _same_values(a: _Entry, b: _Entry) -> bool:
    """Whether both set the constants to the same values, from the same parent or from the same values."""
    if not all(_close(a.constants[n][1], b.constants[n][1]) for n in a.constants):
        return False
    return a.past.parent == b.past.parent or all(
        a.constants[n][0] is not None and _close(a.constants[n][0], b.constants[n][0]) for n in a.constants
    )


def _close(a: Any, b: Any) -> bool:
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    if not numbers or max(abs(a), abs(b)) > _LARGEST:
        return type(a) is type(b) and bool(a == b)
    return math.isclose(a, b, rel_tol=CLOSE)


# ---------------------------------------------------------------------- words
def _what(entry: _Entry) -> str:
    """What an experiment did: ``changed LR to 0.02``."""
    names = sorted(entry.constants)
    moves = [f"{clean(_label(n), 60)} to {_show(entry.constants[n][1])}" for n in names[:_MOST_NAMED]]
    more = len(names) - len(moves)
    return f"changed {', '.join(moves)}" + (f" and {more} more" if more else "")


def _label(name: str) -> str:
    return name.rpartition(":")[2]


def _show(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else clean(str(value), 60)


def _came(entry: _Entry) -> str:
    """What came of it: ``2.31, discard``, ``crash (oom)``."""
    past = entry.past
    label = f" ({past.label})" if past.label and past.label is not Label.NO_GAIN else ""
    outcome = f"{past.status}{label}"
    return outcome if past.value is None else f"{past.value:.6g}, {outcome}"
