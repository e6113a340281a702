"""Fitting a prompt into a number of tokens: its pieces have ranks, and the least informative go first.

Counting tokens may take a while (a tokenizer, a server), so it is done rarely: where to cut is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.labels import Label
from autoresearchd.models.client import Count, Message

CLOSE_ENOUGH = 0.01
"""Share of the budget that may stay unused: another count would not be worth its time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A text that stays or goes as a whole. rank: the lower, the sooner it goes; None: it stays whatever happens."""

    text: str
    rank: tuple[int, ...] | None = None


def _as_it_is(text: str, _cut: bool) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Section:
    """Pieces that stand below one another; one without any is left out.

    frame: puts the heading and the fence around their text; told whether pieces are missing.
    """

    pieces: tuple[Piece, ...]
    frame: Callable[[str, bool], str] = _as_it_is

    def text(self, kept: Sequence[Piece] | None = None) -> str:
        """The section with the pieces that are kept, all by default; empty where there are none."""
        kept = self.pieces if kept is None else kept
        return self.frame("\n".join(p.text for p in kept), len(kept) < len(self.pieces)) if kept else ""


def fit(
    sections: Sequence[Section],
    build: Callable[[Sequence[str]], tuple[Message, ...]],
    *,
    budget: int,
    count: Count,
) -> tuple[Message, ...]:
    """The messages with as few pieces left out as the budget allows.

    Args:
        sections: in the order in which they stand.
        build: makes the messages from the texts of the sections that are left.
        budget: tokens that the messages may have.
        count: counts them; called a few times, and always for the messages that are given back.

    Raises:
        PolicyError: what must stay does not fit.
    """
    places = [
        (piece.rank, i, j) for i, s in enumerate(sections) for j, piece in enumerate(s.pieces) if piece.rank is not None
    ]
    order = [(i, j) for _, i, j in sorted(places)]

    tried: dict[int, tuple[Message, ...]] = {}

    def tokens(dropped: int) -> int:
        tried[dropped] = build(_texts(sections, frozenset(order[:dropped])))
        return count(tried[dropped])

    return tried[_fewest(len(order), tokens, budget)]


def _fewest(most: int, tokens: Callable[[int], int], budget: int) -> int:
    """How many pieces to drop, about as few as can be, by bisection; its tokens have been counted."""
    if tokens(0) <= budget:
        return 0
    low, high, used = 0, most, tokens(most)
    if used > budget:
        raise PolicyError(
            f"the prompt has {used} tokens without any history, and may have {budget}",
            label=Label.ERROR,
            hint="raise context_tokens for a model that can read as much, or make the editable files shorter",
        )
    while high - low > 1 and budget - used > CLOSE_ENOUGH * budget:
        middle = (low + high) // 2
        now = tokens(middle)
        if now <= budget:
            high, used = middle, now
        else:
            low = middle
    return high


def _texts(sections: Sequence[Section], dropped: frozenset[tuple[int, int]]) -> list[str]:
    kept = ([p for j, p in enumerate(s.pieces) if (i, j) not in dropped] for i, s in enumerate(sections))
    return [text for section, pieces in zip(sections, kept, strict=True) if (text := section.text(pieces))]
