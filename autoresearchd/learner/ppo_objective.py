"""PPO on stored completions: windows of a session's answers in order, with values of the states they answered.

A step of the research MDP is one answer. Where an experiment has several (a malformed one was asked again, a failed
proposal was given back), each is a step of its own with the reward that it earned itself: it was shown something else
than the one before. Taking the last alone would hide the mistakes that an untrained policy makes most, and their sum
would blame the answer that mended them.

The experiments of a round answer one state side by side. What follows an answer is what its own experiment was asked
next, and after its last answer the next round: none is paid for what its siblings earned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoresearchd.errors import UsageError
from autoresearchd.learner.advantages import gae, normalised
from autoresearchd.learner.examples import Example
from autoresearchd.learner.options import TrainOptions
from autoresearchd.learner.ppo import explained_variance, ppo_loss
from autoresearchd.learner.ratios import Level, log_ratios
from autoresearchd.learner.scoring import Scorer
from autoresearchd.learner.sdpo import TOP
from autoresearchd.learner.updates import Part, of_ratios


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive rounds of a session.

    steps: their answers. following: for each, the places in ``steps`` of what follows it; empty: the window ends there.
    after: the answers to the state that follows the window; none: the record, or the segment, ends.
    """

    steps: tuple[int, ...]
    following: tuple[tuple[int, ...], ...]
    after: tuple[int, ...]


def windows(examples: Sequence[Example], horizon: int) -> list[Window]:
    """The answers of each session in the order in which they were given, in windows of about ``horizon`` at most.

    A round is never cut; one that has more answers is a window of its own.
    """
    sessions: dict[tuple[str, int], list[int]] = {}
    for place, each in enumerate(examples):
        sessions.setdefault((each.trajectory.session, each.trajectory.segment), []).append(place)
    found: list[Window] = []
    for places in sessions.values():
        rounds = _rounds(examples, places)
        start = size = 0
        for at, own in enumerate(rounds):
            count = sum(map(len, own))
            if at > start and size + count > horizon:
                found.append(_window(rounds[start:at], own))
                start, size = at, 0
            size += count
        found.append(_window(rounds[start:], ()))
    return found


def _rounds(examples: Sequence[Example], places: Sequence[int]) -> list[list[list[int]]]:
    """The rounds of a segment in order: for each of their experiments its answers in order."""
    experiments: dict[int, list[int]] = {}
    for place in sorted(places, key=lambda p: (examples[p].trajectory.number, examples[p].trajectory.index, p)):
        experiments.setdefault(examples[place].trajectory.number, []).append(place)
    rounds: dict[str, list[list[int]]] = {}
    for answers in experiments.values():
        rounds.setdefault(examples[answers[0]].trajectory.group, []).append(answers)
    return list(rounds.values())


def _window(rounds: Sequence[Sequence[Sequence[int]]], after: Sequence[Sequence[int]]) -> Window:
    """A window of some rounds, and the round after them."""
    steps = [step for own in rounds for answers in own for step in answers]
    place = {step: at for at, step in enumerate(steps)}
    following: list[tuple[int, ...]] = []
    for own, coming in zip(rounds, [*rounds[1:], []], strict=True):
        first = tuple(place[answers[0]] for answers in coming)
        for answers in own:
            following += [*((place[step],) for step in answers[1:]), first]
    return Window(tuple(steps), tuple(following), tuple(answers[0] for answers in after))


class PpoObjective:
    """Clipped surrogate, value loss and entropy over windows of answers.

    Args:
        scorer: the model with the examples; it has a value head.
        options: of the run.
    """

    def __init__(self, scorer: Scorer, options: TrainOptions) -> None:
        self._scorer, self._options, self._mdp = scorer, options.ppo, options.mdp
        self._windows = windows(scorer.examples, min(options.mdp.horizon, options.batch))
        self._by_step = {step: window for window in self._windows for step in window.steps}
        rewards = [each.reward for each in scorer.examples]
        self._mean = math.fsum(rewards) / len(rewards) if options.mdp.centred else 0.0
        self._advantages: dict[int, float] = {}
        self._returns: dict[int, float] = {}
        self._values: dict[int, float] = {}
        self._total = 0.0

    @property
    def examples(self) -> Sequence[Example]:
        return self._scorer.examples

    @property
    def units(self) -> Sequence[Sequence[int]]:
        return [window.steps for window in self._windows]

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        """Values of the batch's states by the value head as it is now, and from them advantages and returns."""
        self._scorer.begin()
        self._total = float(len(batch))
        chosen = list({window.steps: window for window in (self._by_step[step] for step in batch)}.values())
        self._values = self._valued(chosen)
        self._returns = {}
        raw: dict[int, float] = {}
        for window in chosen:
            own = [self._values[step] for step in window.steps]
            # Where the record ends, research does not: the state after an answer is taken to be worth what its own is.
            next_ = [self._values[step] for step in window.after]
            beyond = [math.fsum(next_) / len(next_)] * len(own) if next_ else own
            found = gae(
                torch.tensor([self.examples[step].reward - self._mean for step in window.steps], dtype=torch.float64),
                torch.tensor(own, dtype=torch.float64),
                gamma=self._mdp.gamma,
                lam=self._mdp.lam,
                following=window.following,
                bootstrap=torch.tensor(beyond, dtype=torch.float64),
            )
            raw |= dict(zip(window.steps, found.advantages.tolist(), strict=True))
            self._returns |= dict(zip(window.steps, found.returns.tolist(), strict=True))
        scaled = normalised(torch.tensor([raw[step] for step in batch], dtype=torch.float64))
        self._advantages = dict(zip(batch, scaled.tolist(), strict=True))
        figures = {"advantage": float(scaled.abs().mean())}
        returns, values = self._column(self._returns, batch), self._column(self._values, batch)
        explained = explained_variance(values, returns)
        return figures if explained is None else figures | {"explained_variance": explained}

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0, values=True)
        logprobs, mask, values = found.tokens.logprobs, found.batch.mask, found.values
        if values is None:
            raise _no_head()
        began = self._scorer.began(part, found)
        result = ppo_loss(
            logprobs,
            found.batch.behaviour.to(logprobs),
            self._column(self._advantages, part).to(logprobs),
            values,
            self._column(self._values, part).to(values),
            self._column(self._returns, part).to(values),
            found.tokens.entropy,
            mask,
            options=self._options,
            proximal=began,
            total=self._total,
        )
        count, tokens = float(len(part)), float(mask.sum())
        level = self._options.level
        weight = tokens if level is Level.TOKEN else count
        figures = of_ratios(result.ratios, weight) | {
            "value_loss": (result.value_loss * self._total / count, count),
            "value_clipped": (result.value_clipped, count),
            "kl_update": (_moved(logprobs.detach(), began, mask, level), weight),
        }
        return Part(result.loss, figures | self._scorer.common(part, found, divergence=divergence))

    def drifted(self, figures: Mapping[str, float]) -> bool:
        """Whether the policy is farther than 1.5 times the target from the one with which the update began."""
        target = self._mdp.target_kl
        return target is not None and figures.get("kl_update", 0.0) > 1.5 * target

    def end(self) -> None:
        """Nothing is to be done."""

    def state(self) -> dict[str, Tensor]:
        return self._scorer.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self._scorer.load(state)

    def _valued(self, chosen: Sequence[Window]) -> dict[int, float]:
        steps = [step for window in chosen for step in window.steps]
        steps += [step for window in chosen for step in window.after]
        states = list(dict.fromkeys(steps))
        values = self._scorer.values([self.examples[step].sample.prompt for step in states])
        if values is None:
            raise _no_head()
        return dict(zip(states, values.double().tolist(), strict=True))

    def _column(self, values: Mapping[int, float], part: Sequence[int]) -> Tensor:
        return torch.tensor([values[step] for step in part], dtype=torch.float64, device=self._scorer.model.device)


def _moved(new: Tensor, began: Tensor, mask: Tensor, level: Level) -> float:
    """The estimate k3 of KL(policy at the beginning ‖ policy), for each token or each action as the ratio is."""
    counted = mask if level is Level.TOKEN else mask & (mask.cumsum(dim=-1) == 1)
    each = log_ratios(new, began, mask, level)[counted].double()
    return float((torch.expm1(each) - each).mean())


def _no_head() -> UsageError:
    return UsageError("PPO needs a model with a value head, and this one has none", mend="load it with one")
