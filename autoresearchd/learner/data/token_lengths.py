"""How many tokens prompts and answers have, and which of them are longer than a run may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.data.trajectories import Split, Trajectory
from autoresearchd.models.model_files import Source
from autoresearchd.models.transformers_client import encoded, load_tokenizer

_SHORTEST = 16
"""Tokens that a fresh answer may have at least."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a run takes, and how long that is.

    parts: what is not too long; left_out: how many answers are. answer: tokens that a fresh answer may have.
    longest_first: what is learned from, by the tokens of prompt and answer.
    """

    parts: Split
    left_out: int
    answer: int
    longest_first: tuple[Trajectory, ...]


def prompt_tokens(place: Path) -> Callable[[Trajectory], int]:
    """Counts the tokens of prompts by the tokenizer of a model; each prompt is looked at once."""
    tokenizer = load_tokenizer(Source.at(place))
    known: dict[str, int] = {}

    def count(each: Trajectory) -> int:
        key = each.prompt_hash
        if key not in known:
            known[key] = len(encoded(tokenizer, each.messages))
        return known[key]

    return count


def within(
    parts: Split, prompt: Callable[[Trajectory], int], *, answer: int = 0, most: int | None = None, live: bool = False
) -> Lengths:
    """Leave out what has more than ``most`` tokens (None: nothing).

    Stored answers count where they are learned from; where a state is asked afresh, the longest answer that it may get.

    prompt: counts the tokens of a prompt. answer: tokens that a fresh answer may have; 0: as many as the longest of
    those that were stored. live: whether states of the training part are asked afresh, too. Raises UsageError: nothing
    is left to learn from, or to ask about.
    """

    def fits(tokens: int) -> bool:
        return most is None or tokens <= most

    prompts = {each.key: prompt(each) for each in (*parts.train, *parts.held_out)}
    whole = {each.key: prompts[each.key] + _own(each) for each in (*parts.train, *parts.held_out)}
    stored = (_own(each) for each in (*parts.train, *parts.held_out) if fits(whole[each.key]))
    answer = max(answer or max(stored, default=0), _SHORTEST)
    trained = {key: tokens + answer for key, tokens in prompts.items()} if live else whole
    train = tuple(each for each in parts.train if fits(trained[each.key]))
    held_out = tuple(each for each in parts.held_out if fits(prompts[each.key] + answer))
    if not train or not held_out:
        least = min((trained[each.key] for each in parts.train), default=0)
        raise UsageError(
            f"max_length={most} leaves nothing to {'ask about' if train else 'learn from'}: the shortest prompt of the "
            f"training part has {least:,} tokens with its answer, and a fresh answer may have {answer:,}",
            hint="give a larger --set max_length, or a smaller --set max_tokens",
        )
    left_out = len(parts.train) + len(parts.held_out) - len(train) - len(held_out)
    longest_first = tuple(sorted(train, key=lambda each: trained[each.key], reverse=True))
    return Lengths(replace(parts, train=train, held_out=held_out), left_out, answer, longest_first)


def _own(each: Trajectory) -> int:
    """Tokens of a stored answer; where they were not stored, a text has about one for each three characters."""
    return len(each.token_ids or ()) or len(each.completion) // 3
