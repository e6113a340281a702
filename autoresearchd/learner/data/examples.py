"""Trajectories as a model takes them: token ids within its context, with their outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Learnable, Sample
from autoresearchd.learner.algorithms.train_options import SftOptions
from autoresearchd.learner.data.reward_signal import good
from autoresearchd.learner.data.trajectories import Trajectory


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


@dataclass(frozen=True, slots=True)
class Examples:
    """What can be learned from, and how many trajectories were left out, by reason."""

    kept: tuple[Example, ...]
    left_out: Mapping[str, int]


def check_rewards(trajectories: Sequence[Trajectory]) -> None:
    """Refuse data that are empty, and rewards that are not finite. Raises UsageError: they are."""
    if not trajectories:
        raise UsageError(
            "there are no trajectories to learn from",
            hint="run experiments with a local model first, or join other sessions with --from",
        )
    bad = [each for each in trajectories if not math.isfinite(each.reward)]
    if bad:
        first = bad[0]
        raise UsageError(
            f"{len(bad)} of {len(trajectories)} rewards are not finite: "
            f"experiment {first.number} of {first.session} has {first.reward}",
            hint="leave these trajectories out; no experiment is judged by NaN or infinity",
        )


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
        return Sample(_prompt(model, each), each.token_ids, each.logprobs, each.temperature)

    return _examples(model, trajectories, sample)


def imitable(model: Learnable, trajectories: Sequence[Trajectory], options: SftOptions) -> Examples:
    """Those that are worth imitating, in the order given; where no tokens are stored, the text is tokenized anew."""

    def sample(each: Trajectory) -> Sample | str:
        if not good(each, options.above, kept=options.kept):
            return "not_kept"
        return Sample(_prompt(model, each), each.token_ids or model.tokens(each.completion))

    return _examples(model, trajectories, sample)


def fits(model: Learnable, sample: Sample) -> bool:
    """Whether prompt and completion have room in the model's context."""
    return model.context is None or len(sample.prompt) + len(sample.completion) <= model.context


def _prompt(model: Learnable, each: Trajectory) -> tuple[int, ...]:
    """The tokens of what the policy was shown, as they were stored, or else by the chat template."""
    return each.prompt_ids or model.encode(each.messages)


def _examples(
    model: Learnable, trajectories: Sequence[Trajectory], sample: Callable[[Trajectory], Sample | str]
) -> Examples:
    """The trajectories with the samples that are made of them; those that are left out by the reason."""
    kept, left_out = [], Counter[str]()
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
    return Examples(tuple(kept), left_out)
