"""Near duplicates: edits that are not the same program as an earlier one, but so close that a model should be told.

Two kinds are looked for. An edit of nothing but constants is a near duplicate where an earlier experiment set the same
constants to the same values, from the same parent or from the same values. Any other edit is one where the same tokens
were removed and added but for a tenth, and so of what was not there before, and all numbers are the same: the same idea
with another number, or another function in the same place, is no duplicate.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from autoresearchd.domain.cleaning import one_line
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import NEVER_RUN, Label
from autoresearchd.domain.quantities import some_of
from autoresearchd.evaluator.feedback import changed_lines

WINDOW = 500
"""How many of the latest experiments are compared with."""
ALIKE = 0.9
"""Share of tokens that two edits must have in common, in order (one minus the normalised edit distance)."""
CLOSE = 1e-6
"""Relative distance below which two numbers are the same."""
_MOST_TOKENS = 500
_MOST_NAMED = 3
_TRIED = 5
_LARGEST = 1e300
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*(?:(?<=[eE])[+-]\d+)?|[^\w\s]")
_LITERAL = re.compile(r"\b\d[\w.]*(?:(?<=[eE])[+-]\d+)?|\b(?:True|False|None)\b|\"[^\"]*\"|'[^']*'")
_COMMENT = re.compile(r"[ +-]#[^\"']*$")


@dataclass(frozen=True, slots=True)
class _Entry:
    """An edit as it is compared.

    shelf: what two near duplicates have in common, the names of the constants or all numbers in order. constants: their
    new values, empty where more than constants changed; removed: the lines that held the old ones. tokens: in order;
    new: those that are added oftener than removed. number, came: of the experiment, and what became of it.
    """

    parent: str
    shelf: frozenset[str] | tuple[str, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    tokens: Sequence[str] = ()
    new: Counter[str] = field(default_factory=Counter)
    number: int = -1
    came: str = ""


class NearDuplicates:
    """The latest experiments of a segment, and which warnings were given."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque(maxlen=WINDOW)
        self._warned: set[str] = set()

    def add(self, experiment: Experiment, diff: str) -> None:
        """Take a decided experiment in; those that were never run say nothing."""
        decision, proposal = experiment.decision, experiment.proposal
        if decision is not None and proposal is not None and decision.label not in NEVER_RUN:
            label = decision.label if decision.label is not Label.NO_GAIN else Label.NONE
            came = f"{decision.status} ({label})" if label else str(decision.status)
            came = came if decision.value is None else f"{decision.value:.6g}, {came}"
            self._entries.append(_read(experiment.parent, diff, proposal.changes, experiment.number, came))

    def look(self, diff: str, changes: Mapping[str, Any], parent: str) -> str:
        """What to tell a model that proposes this edit; empty where nothing like it is remembered."""
        proposed = _read(parent, diff, changes)
        shelf = [entry for entry in reversed(self._entries) if entry.shelf == proposed.shelf]
        if proposed.constants:
            same = next((entry for entry in shelf if _same_values(proposed, entry)), None)
            return "" if same is None else f"experiment {same.number} {_what(same)} already: {same.came}"
        if not proposed.tokens or not shelf:
            return ""
        tokens = [entry.tokens for entry in shelf]
        scorer = Levenshtein.normalized_similarity
        near = process.extract(proposed.tokens, tokens, scorer=scorer, score_cutoff=ALIKE, limit=_TRIED)
        for _, alike, index in near:
            entry = shelf[index]
            # Of what two edits bring in that was not there before: the share that they have in common.
            most = max(proposed.new.total(), entry.new.total())
            if (proposed.new & entry.new).total() >= ALIKE * most:
                return f"experiment {entry.number} made nearly the same edit ({alike:.0%} alike): {entry.came}"
        return ""

    def warn_once(self, key: str) -> bool:
        due = key not in self._warned
        self._warned.add(key)
        return due


def _read(parent: str, diff: str, changes: Mapping[str, Any], number: int = -1, came: str = "") -> _Entry:
    lines = [line[0] + " ".join(line[1:].split()) for line in changed_lines(diff).split("\n") if line[1:].strip()]
    lines = [code for line in lines if (code := _COMMENT.sub("", line))]
    # Whether it changes numbers, texts and flags in place, and nothing else.
    masked = [(line[0], "".join(_LITERAL.sub("0", line[1:]).split())) for line in lines]
    if changes and sorted(t for sign, t in masked if sign == "-") == sorted(t for sign, t in masked if sign == "+"):
        removed = tuple("".join(line.split()) for line in lines if line[0] == "-")
        constants = {str(name): value for name, value in changes.items()}
        return _Entry(parent, frozenset(constants), constants, removed, number=number, came=came)
    tokens: list[str] = []
    new: Counter[str] = Counter()
    for line in lines:
        words = _TOKEN.findall(line)
        tokens += words
        (new.update if line[0] == "+" else new.subtract)(words[1:])
    tokens = tokens[:_MOST_TOKENS]
    return _Entry(parent, tuple(t for t in tokens if t[0].isdigit()), tokens=tokens, new=+new, number=number, came=came)


def _same_values(a: _Entry, b: _Entry) -> bool:
    """Whether both set the constants to the same values, from the same parent or from the same lines."""
    same = all(_close(value, b.constants[name]) for name, value in a.constants.items())
    return same and (a.parent == b.parent or a.removed == b.removed)


def _close(a: Any, b: Any) -> bool:
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    if not numbers or max(abs(a), abs(b)) > _LARGEST:
        return type(a) is type(b) and bool(a == b)
    return math.isclose(a, b, rel_tol=CLOSE)


def _what(entry: _Entry) -> str:
    moves = []
    for name, value in sorted(entry.constants.items()):
        shown = f"{value:.6g}" if isinstance(value, float) else one_line(str(value)[:240], 60)
        moves.append(f"{one_line(name.rpartition(':')[2], 60)} to {shown}")
    return f"changed {some_of(moves, _MOST_NAMED)}"
