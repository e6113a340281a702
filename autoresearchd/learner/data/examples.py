"""Trajectories as a model takes them: token ids within its context, with their outcomes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.labels import RULES, Status
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.learner.algorithms.learnable import Learnable, Sample
from autoresearchd.learner.algorithms.train_options import SftOptions
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
    return [
        replace(
            each,
            reward=trajectories[other].reward,
            censored=trajectories[other].censored,
            label=trajectories[other].label,
            error=trajectories[other].error,
            feedback=trajectories[other].feedback,
        )
        for each, other in zip(trajectories, order, strict=True)
    ]


def replayable(model: Learnable, trajectories: Sequence[Trajectory]) -> Examples:
    """Those whose stored tokens and log-probabilities can be learned from, in the order given."""
    kept: list[Example] = []
    left_out: Counter[str] = Counter()
    for each in trajectories:
        if not each.token_ids or each.logprobs is None or len(each.logprobs) != len(each.token_ids):
            left_out["without_tokens"] += 1
            continue
        if not each.temperature > 0:
            left_out["not_sampled"] += 1
            continue
        sample = Sample(prompt_of(model, each), each.token_ids, each.logprobs, each.temperature)
        _take(model, Example(each, sample), kept, left_out)
    return Examples(tuple(kept), left_out)


def imitable(model: Learnable, trajectories: Sequence[Trajectory], options: SftOptions) -> Examples:
    """Those that are worth imitating, in the order given; where no tokens are stored, the text is tokenized anew."""
    kept: list[Example] = []
    left_out: Counter[str] = Counter()
    for each in trajectories:
        if not good(each, options):
            left_out["not_kept"] += 1
            continue
        completion = each.token_ids or model.tokens(each.completion)
        _take(model, Example(each, Sample(prompt_of(model, each), completion)), kept, left_out)
    return Examples(tuple(kept), left_out)


def good(each: Trajectory, options: SftOptions) -> bool:
    """Whether an answer is worth imitating."""
    kept = RULES[each.label].status is Status.KEEP
    return each.reward > options.above and not each.error and (kept or not options.kept)


def prompt_of(model: Learnable, each: Trajectory) -> tuple[int, ...]:
    """The tokens of what the policy was shown, as they were stored, or else by the chat template."""
    return each.prompt_ids or model.encode(each.messages)


def fits(model: Learnable, sample: Sample) -> bool:
    """Whether prompt and completion have room in the model's context."""
    return model.context is None or len(sample.prompt) + len(sample.completion) <= model.context


def known(model: Learnable, sample: Sample) -> bool:
    """Whether the model has all of the tokens: a database may hold any number."""
    ids = (*sample.prompt, *sample.completion)
    return min(ids) >= 0 and max(ids) < model.vocabulary


def _take(model: Learnable, example: Example, kept: list[Example], left_out: Counter[str]) -> None:
    if not example.sample.prompt or not example.sample.completion:
        left_out["empty"] += 1
    elif not known(model, example.sample):
        left_out["unknown_tokens"] += 1
    elif not fits(model, example.sample):
        left_out["too_long"] += 1
    else:
        kept.append(example)
