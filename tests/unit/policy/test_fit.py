"""A prompt fits its budget, loses the least informative first, and counting is rare."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.errors import PolicyError
from autoresearchd.models.client import Message
from autoresearchd.models.token_estimate import estimate_tokens
from autoresearchd.policy.prompt.token_budget import Piece, Section, fit


class Counter:
    """Counts characters, and how often it was asked."""

    def __init__(self, per_character: float = 1.0) -> None:
        self.calls, self._per_character = 0, per_character

    def __call__(self, messages: Sequence[Message]) -> int:
        self.calls += 1
        return int(sum(len(m["content"]) for m in messages) * self._per_character)


def build(texts: Sequence[str]) -> tuple[Message, ...]:
    return ({"role": "user", "content": "\n\n".join(texts)},)


def content(sections: Sequence[Section], budget: int, count: Counter | None = None) -> str:
    return fit(sections, build, budget=budget, count=count or Counter())[0]["content"]


def test_the_lowest_rank_goes_first_wherever_it_stands() -> None:
    sections = [
        Section((Piece("goal"),)),
        Section((Piece("oldest " * 20, (0, 0)), Piece("older " * 20, (0, 1)), Piece("newest", (1, 0)))),
        Section((Piece("hint", (2,)),)),
    ]
    assert content(sections, 160) == "goal\n\n" + "older " * 20 + "\nnewest\n\nhint"
    assert content(sections, 30) == "goal\n\nnewest\n\nhint"
    assert content(sections, 11) == "goal\n\nhint"


@given(
    st.lists(st.tuples(st.integers(0, 60), st.none() | st.integers(0, 9)), max_size=40),
    st.integers(1, 900),
    st.sampled_from([0.25, 1.0, 2.5]),
)
def test_the_budget_holds_and_what_goes_is_what_ranks_lowest(
    drawn: list[tuple[int, int | None]], budget: int, per_character: float
) -> None:
    pieces = [Piece(f"<{i}>" + "y" * size, None if rank is None else (rank,)) for i, (size, rank) in enumerate(drawn)]
    sections = [Section(tuple(pieces[i : i + 5])) for i in range(0, len(pieces), 5)]
    count = Counter(per_character)
    try:
        shown = content(sections, budget, count)
    except PolicyError:
        must = "\n\n".join(
            "\n".join(p.text for p in s.pieces if p.rank is None)
            for s in sections
            if any(p.rank is None for p in s.pieces)
        )
        assert int(len(must) * per_character) > budget
        return
    assert int(len(shown) * per_character) <= budget
    assert count.calls <= 12
    left = [p for i, p in enumerate(pieces) if f"<{i}>" in shown]
    gone = [p for i, p in enumerate(pieces) if f"<{i}>" not in shown]
    assert all(p.rank is not None for p in gone)
    assert max((p.rank for p in gone if p.rank), default=(-1,)) <= min((p.rank for p in left if p.rank), default=(10,))
    assert content(sections, budget, Counter(per_character)) == shown


@pytest.mark.parametrize(
    ("text", "tokens"),
    [  # as the tokenizer of SmolLM2 counts them, which takes numbers digit by digit
        ("the quick brown fox jumps over the lazy dog", 9),
        ("MATRIX_LR 0.04 → 0.056: discard/no_gain, 1.0123, improvement -0.0031", 40),
        ('for group in optimizer.param_groups:\n    group["lr"] = group["initial_lr"] * multiplier\n', 24),
        ("学习率太高，训练不稳定。", 22),
        ("🙂🚀🤖", 8),
    ],
)
def test_the_estimate_errs_upwards(text: str, tokens: int) -> None:
    def estimate(text: str) -> int:
        return estimate_tokens([{"role": "user", "content": text}])

    assert tokens <= estimate(text) - estimate("") <= 1.6 * tokens + 4
    assert estimate("") > 0
    assert estimate("\ud800") > estimate("")
