"""Sessions that a tiny model has played: it is shown a state, answers with a few letters, and earns by a rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import torch

from autoresearchd.domain.labels import Label
from autoresearchd.learner.algorithms.learnable import Sample
from autoresearchd.learner.algorithms.train_options import Algo, TrainOptions
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.training.train import StepFigures, Trained, train
from tests.fakes.learnable import LETTERS, TinyLearnable

START = datetime(2026, 11, 1, tzinfo=UTC)
GOOD = "abc"
"""An answer that begins with one of these letters earns something."""

Rule = Callable[[str], float]


def begins_well(text: str) -> float:
    return 1.0 if text[:1] and text[0] in GOOD else -1.0


def messages(state: int) -> tuple[dict[str, str], ...]:
    return ({"role": "user", "content": f"{LETTERS[state % len(LETTERS)] * 3}"},)


def played(
    model: TinyLearnable,
    *,
    rounds: int = 16,
    group: int = 4,
    session: str = "one",
    seed: int = 0,
    rule: Rule = begins_well,
    feedback: str = "",
) -> list[Trajectory]:
    """Answers of the model as it is, with a reward each; those above 0 count as kept."""
    found: list[Trajectory] = []
    for number in range(rounds * group):
        shown = messages(number // group)
        seeds = [seed * 100_003 + number]
        drawn = model.generate([model.encode(shown)], max_tokens=3, temperature=0.8, seeds=seeds)[0]
        reward = rule(drawn.text)
        found.append(
            Trajectory(
                session=session,
                number=number + 1,
                attempt=0,
                group=f"round {number // group}",
                state_id=f"state {number // group}",
                at=START + timedelta(minutes=number),
                policy_version="",
                messages=shown,
                completion=drawn.text,
                token_ids=drawn.ids,
                logprobs=drawn.logprobs,
                reward=reward,
                censored=False,
                label=Label.NONE if reward > 0 else Label.NO_GAIN,
                feedback=feedback,
                temperature=0.8,
            )
        )
    return found


def goodness(model: TinyLearnable, states: Sequence[int] = range(14)) -> float:
    """The probability that an answer begins well, mean over states."""
    chosen = [LETTERS.index(letter) + 2 for letter in GOOD]
    samples = [Sample(model.encode(messages(state)), (token,)) for state in states for token in chosen]
    with torch.no_grad():
        found = model.statistics(samples)
    return float(found.logprobs[found.batch.mask].exp().sum()) / len(states)


def trained(model: TinyLearnable, data: Sequence[Trajectory], options: TrainOptions, **more: Any) -> Trained:
    """Train it. What imitates is a warm-up, and has all steps where GRPO has nothing to compare: equal rewards."""
    if options.algo is Algo.SFT:
        options, data = replace(options, algo=Algo.GRPO), [replace(each, reward=1.0) for each in data]
    steps: list[StepFigures] = more.pop("steps", [])
    return train(model, data, options, on_step=more.pop("on_step", steps.append), **more)
