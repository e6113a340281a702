"""How far a diff is from the diffs tried before: the smallest normalised edit distance (Levenshtein, by rapidfuzz).

The novelty of AutoResearch-RL (arXiv:2603.07300): the minimum edit distance between the proposed diff and all earlier
ones in the history.
"""

from __future__ import annotations

from collections.abc import Iterable

from rapidfuzz.distance import Levenshtein

MAX_CHARACTERS = 4000
"""Of one diff that are compared: enough to tell ideas apart, and a bound on the time (quadratic in the length)."""


def changed_lines(diff: str) -> str:
    """The lines that a unified diff adds and removes, signs kept, without its headers and its context."""
    kept = (line for line in diff.split("\n") if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- ")))
    return "\n".join(kept)[:MAX_CHARACTERS]


def novelty(diff: str, earlier: Iterable[str]) -> float:
    """Distance to the nearest earlier diff: 0 for one that was tried before, 1 for one that shares nothing."""
    own = changed_lines(diff)
    nearest = 1.0
    for other in earlier:
        nearest = min(nearest, Levenshtein.normalized_distance(own, changed_lines(other), score_cutoff=nearest))
    return nearest
