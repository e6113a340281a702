"""The lines of a file that are most like lines that are not in it (by rapidfuzz), for messages to a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from autoresearchd.policy.edits.model import shown

_WIDTH = 200
_MOST_LINES = 20_000
_SAMPLED = 4
_SHOWN = 8
_LEAST = 60.0


def most_similar(wanted: Sequence[str], lines: Sequence[str]) -> str:
    """The place that is most like ``wanted``, with its line numbers; empty where nothing is."""
    from rapidfuzz import fuzz, process  # only when an answer failed

    choices = [line[:_WIDTH].strip() for line in lines[:_MOST_LINES]]
    sampled = sorted(range(len(wanted)), key=lambda i: -len(wanted[i].strip()[:_WIDTH]))[:_SAMPLED]
    votes: defaultdict[int, float] = defaultdict(float)
    for offset in sampled:
        query = wanted[offset][:_WIDTH].strip()
        if query:
            for _, score, index in process.extract(query, choices, scorer=fuzz.ratio, limit=5, score_cutoff=_LEAST):
                votes[index - offset] += score
    if not votes:
        return ""
    start = max(min(votes, key=lambda place: (-votes[place], place)), 0)
    stop = min(start + max(len(wanted), 1), start + _SHOWN, len(lines))
    rows = [f"    {number + 1}| {shown(lines[number])}" for number in range(start, stop)]
    where = f"line {start + 1} is" if stop - start == 1 else f"lines {start + 1} to {stop} are"
    return f"; {where} most like it:\n" + "\n".join(rows)
