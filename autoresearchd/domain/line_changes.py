"""Which lines of a text were changed, and how a unified diff tells it, in a time that no text makes long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

_MOST_PAIRS = 200_000
"""Of lines that are equal in both texts: with 450 blank lines in each ``difflib`` takes seconds, with 5,000 hours."""
_OFTEN, _LONG = 0.01, 200
"""A line with a larger share of a longer text is one that ``difflib`` may leave out of account."""
_CONTEXT = 3


class Change(NamedTuple):
    """Lines ``start`` to ``end`` of the old text became ``first`` to ``last`` of the new one, the ends not counted."""

    start: int
    end: int
    first: int
    last: int


def changed_lines(old: Sequence[str], new: Sequence[str]) -> list[Change]:
    """The changes in their order, as few as can be found; texts that repeat themselves too much are changed as one."""
    head = _alike(old, new)
    tail = _alike(old[head:][::-1], new[head:][::-1])
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    in_a, often = Counter(a), len(b) * _OFTEN + 1
    pairs = [(in_a[line] * count, count <= often) for line, count in Counter(b).items()]
    junk = sum(number for number, _ in pairs) > _MOST_PAIRS
    if junk and (len(b) < _LONG or sum(number for number, counts in pairs if counts) > _MOST_PAIRS):
        return [Change(head, head + len(a), head, head + len(b))]
    found = SequenceMatcher(None, a, b, autojunk=junk).get_opcodes()
    return [Change(*(head + place for place in places)) for tag, *places in found if tag != "equal"]


def unified(path: str, before: str, after: str) -> list[str]:
    """The lines of a unified diff that ``git apply`` takes, carriage returns and all; none where nothing differs."""
    old, new = _lines(before), _lines(after)
    lines = [f"--- a/{path}", f"+++ b/{path}"]
    groups: list[list[Change]] = []
    for change in changed_lines(old, new):
        if groups and change.start - groups[-1][-1].end <= 2 * _CONTEXT:
            groups[-1].append(change)
        else:
            groups.append([change])
    for group in groups:
        at, end = max(0, group[0].start - _CONTEXT), min(len(old), group[-1].end + _CONTEXT)
        first, last = group[0].first - group[0].start + at, group[-1].last - group[-1].end + end
        lines.append(f"@@ -{_span(at, end)} +{_span(first, last)} @@")
        for change in group:
            lines += [f" {line}" for line in old[at : change.start]]
            lines += [f"-{line}" for line in old[change.start : change.end]]
            lines += [f"+{line}" for line in new[change.first : change.last]]
            at = change.end
        lines += [f" {line}" for line in old[at:end]]
    return lines if groups else []


def _alike(a: Sequence[str], b: Sequence[str]) -> int:
    """How many lines both begin with."""
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def _lines(text: str) -> list[str]:
    """As git counts them; what ends without a newline is marked as in its diffs."""
    lines = text.split("\n")
    end = lines.pop()
    return [*lines, f"{end}\n\\ No newline at end of file"] if end else lines


def _span(start: int, end: int) -> str:
    return f"{start + 1}" if end - start == 1 else f"{start + (end > start)},{end - start}"
