"""Trajectories as a model takes them: token ids within its context, with their outcomes; what is too long for a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Learnable, Sample
from autoresearchd.learner.data.trajectories import Split, Trajectory
from autoresearchd.models.model_files import Source
from autoresearchd.models.transformers_client import encoded, load_tokenizer

_SHORTEST = 16
"""Tokens that a fresh answer may have at least."""


@dataclass(frozen=True, slots=True)
class Example:
    """A trajectory with its tokens."""

    trajectory: Trajectory
    sample: Sample

    @property
    def reward(self) -> float:
        """What it earned."""
        return self.trajectory.reward

    @property
    def tokens(self) -> int:
        """Of its completion."""
        return len(self.sample.completion)


Examples = tuple[list[Example], Counter[str]]
"""What can be learned from, and how many trajectories were left out, by reason."""


def shuffled(trajectories: Sequence[Trajectory], seed: int) -> list[Trajectory]:
    """The same prompts and completions with each other's outcomes: reward, label, error and feedback move together."""
    generator = torch.Generator().manual_seed(derive_seed(seed, 0, "shuffle rewards"))
    order = torch.randperm(len(trajectories), generator=generator).tolist()
    names = ("reward", "censored", "label", "error", "feedback")
    return [
        replace(each, **{name: getattr(trajectories[other], name) for name in names})
        for each, other in zip(trajectories, order, strict=True)
    ]


def replayable(model: Learnable, trajectories: Sequence[Trajectory]) -> Examples:
    """Those whose stored tokens and log-probabilities can be learned from, in the order given."""

    def sample(each: Trajectory) -> Sample | str:
        if not each.token_ids or each.logprobs is None or len(each.logprobs) != len(each.token_ids):
            return "without_tokens"
        if not each.temperature > 0:
            return "not_sampled"
        return Sample(model.encode(each.messages), each.token_ids, each.logprobs, each.temperature)

    return _examples(model, trajectories, sample)


def imitable(model: Learnable, trajectories: Sequence[Trajectory]) -> Examples:
    """Those that are worth imitating, in the order given; where no tokens are stored, the text is tokenized anew."""

    def sample(each: Trajectory) -> Sample | str:
        if not each.good:
            return "not_kept"
        return Sample(model.encode(each.messages), each.token_ids or model.tokens(each.completion))

    return _examples(model, trajectories, sample)


def fits(model: Learnable, sample: Sample) -> bool:
    """Whether prompt and completion have room in the model's context."""
    return model.context is None or len(sample.prompt) + len(sample.completion) <= model.context


def _examples(
    model: Learnable, trajectories: Sequence[Trajectory], sample: Callable[[Trajectory], Sample | str]
) -> Examples:
    kept, left_out = list[Example](), Counter[str]()
    for each in trajectories:
        made = sample(each)
        if isinstance(made, str):
            left_out[made] += 1
        elif not made.prompt or not made.completion:
            left_out["empty"] += 1
        elif not all(0 <= token < model.vocabulary for token in (*made.prompt, *made.completion)):
            left_out["unknown_tokens"] += 1  # a database may hold any number
        elif not fits(model, made):
            left_out["too_long"] += 1
        else:
            kept.append(Example(each, made))
    return kept, left_out


# ---------------------------------------------------------------------- lengths
@dataclass(frozen=True, slots=True)
class Lengths:
    """What a run takes, what is too long left out. answer: tokens that a fresh one may have."""

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
    answer: tokens of that; 0: as many as the longest of those that were stored. live: states of the training part are
    asked afresh, too. Raises UsageError: nothing is left to learn from, or to ask about.
    """

    def fits(tokens: int) -> bool:
        return most is None or tokens <= most

    everything = (*parts.train, *parts.held_out)
    # Of a stored answer without tokens: a text has about one for each three characters.
    own = {each.key: len(each.token_ids or ()) or len(each.completion) // 3 for each in everything}
    prompts = {each.key: prompt(each) for each in everything}
    whole = {key: tokens + own[key] for key, tokens in prompts.items()}
    answer = max(answer or max((own[key] for key in own if fits(whole[key])), default=0), _SHORTEST)
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
    longest_first = tuple(sorted(train, key=lambda each: trained[each.key], reverse=True))
    left_out = len(everything) - len(train) - len(held_out)
    return Lengths(replace(parts, train=train, held_out=held_out), left_out, answer, longest_first)
