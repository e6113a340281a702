"""PPO over the research MDP: a state is what the policy is shown, an action is one whole completion.

L = L_CLIP − c1·L_VF + c2·H (Schulman et al. 2017, arXiv:1707.06347, Eq. 9), with the constants of AutoResearch-RL
(arXiv:2603.07300): c1 = 0.5, c2 = 0.01. Advantages and returns come from GAE over the sequence of a session's
experiments (``advantages.gae``), so all tokens of a completion share one advantage, and the state has one value.

The ratio of an action is the product of its tokens' ratios (level ``completion``): what Eq. 7 says, but with a thousand
tokens a small step of the policy already leaves the range. ``token``, the default, clips each token by itself, as is
usual for language models: a first-order approximation of it that learns on where the product is clipped away.

Where an experiment has several answers (a malformed one was asked again, a failed proposal was given back), each is a
step of its own with the reward that it earned itself: it was shown something else than the one before. Taking the last
alone would hide the mistakes that an untrained policy makes most, and their sum would blame the answer that fixed them.

The experiments of a round answer one state side by side. What follows an answer is what its own experiment was asked
next, and after its last answer the next round: none is paid for what its siblings earned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.advantages import gae, normalised
from autoresearchd.learner.algorithms.ratios import (
    Level,
    Mean,
    RatioFigures,
    clipped_surrogate,
    estimated_kl,
    figures,
    log_ratios,
    masked_mean,
    truncated_weights,
)
from autoresearchd.learner.algorithms.scoring import Objective, Part, Scorer, of_ratios
from autoresearchd.learner.algorithms.train_options import TOP, PpoOptions, TrainOptions
from autoresearchd.learner.data.examples import Example


@dataclass(frozen=True, slots=True)
class PpoLoss:
    """The loss, to be minimised. value_clipped: share of the values held back by the value clip."""

    loss: Tensor
    value_loss: float
    ratios: RatioFigures
    value_clipped: float


def ppo_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    proximal: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    entropy: Tensor,
    mask: Tensor,
    *,
    options: PpoOptions,
    total: float | None = None,
) -> PpoLoss:
    """−L_CLIP + c1·L_VF − c2·H; each action counts once, however many tokens it has.

    The entropy of an action, a completion, is a sum over more texts than can be counted; H is the mean over its tokens
    of the entropy of each token's distribution, in nats, so that it neither grows with the length nor rewards it.

    logprobs, behaviour, proximal: log-probabilities [B, T] of the completions' tokens under the policy, those that were
    stored when they were drawn, and those under the policy with which this update began: the ratio is π_θ/π_proximal,
    behind the truncated weight π_proximal/μ. advantages, values, old_values (when the update began), returns: of each
    action, [B]. entropy: of each token's distribution, [B, T]. mask: [B, T]; each row has a token. total: actions of
    the whole batch where this is a part of it.
    """
    behaviour, proximal, old_values, returns = (t.detach() for t in (behaviour, proximal, old_values, returns))
    high = options.clip if options.clip_high is None else options.clip_high
    ratio = log_ratios(logprobs, proximal, mask, options.level).exp()
    weights = truncated_weights(proximal, behaviour, mask, options.level, options.weight_cap)
    clipped = clipped_surrogate(ratio, advantages, mask, options.clip, high)
    surrogate = masked_mean(weights * clipped.losses, mask, Mean.SEQUENCES, total=total)
    spread = masked_mean(entropy, mask, Mean.SEQUENCES, total=total)
    errors, limited = _value_errors(values, old_values, returns, options.value_clip)
    value_loss = errors.sum() / (mask.shape[0] if total is None else total)
    return PpoLoss(
        loss=surrogate + options.value_weight * value_loss - options.entropy_weight * spread,
        value_loss=float(value_loss.detach()),
        ratios=figures(ratio, clipped.low, clipped.high, logprobs, behaviour, mask, options.level),
        value_clipped=float(limited.double().mean()),
    )


def _value_errors(values: Tensor, old: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Squared errors, the larger of that of the value and of the clipped one; where the clip acted."""
    plain = (values - returns).square()
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    moved = (values.detach() - old).abs() > clip
    return torch.maximum(plain, bounded), moved & (bounded.detach() > plain.detach())


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


class PpoObjective(Objective):
    """Clipped surrogate, value loss and entropy over windows of answers; the model has a value head."""

    def __init__(self, scorer: Scorer, options: TrainOptions) -> None:
        self._options, self._mdp = options.ppo, options.mdp
        split = windows(scorer.examples, min(options.mdp.horizon, options.batch))
        super().__init__(scorer, [window.steps for window in split])
        self._by_step = {step: window for window in split for step in window.steps}
        rewards = [each.reward for each in scorer.examples]
        self._mean = math.fsum(rewards) / len(rewards) if options.mdp.centred else 0.0
        self._advantages: dict[int, float] = {}
        self._returns: dict[int, float] = {}
        self._values: dict[int, float] = {}

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        """Values of the batch's states by the value head as it is now, and from them advantages and returns."""
        self._scorer.begin()
        self._total = float(len(batch))
        chosen = list({window.steps: window for window in (self._by_step[step] for step in batch)}.values())
        self._values, self._returns = self._valued(chosen), {}
        raw: dict[int, float] = {}
        for window in chosen:
            own = [self._values[step] for step in window.steps]
            # Where the record ends, research does not: the state after an answer is taken to be worth what its own is.
            next_ = [self._values[step] for step in window.after]
            found = gae(
                [self.examples[step].reward - self._mean for step in window.steps],
                own,
                gamma=self._mdp.gamma,
                lam=self._mdp.lam,
                following=window.following,
                bootstrap=[math.fsum(next_) / len(next_)] * len(own) if next_ else own,
            )
            raw |= dict(zip(window.steps, found.advantages, strict=True))
            self._returns |= dict(zip(window.steps, found.returns, strict=True))
        scaled = normalised(torch.tensor([raw[step] for step in batch], dtype=torch.float64))
        self._advantages = dict(zip(batch, scaled.tolist(), strict=True))
        told = {"advantage": float(scaled.abs().mean())}
        returns, values = self._column(self._returns, batch), self._column(self._values, batch)
        variance = float(returns.var(correction=0))
        if variance > 0:  # 1: the values foretell the returns
            told["explained_variance"] = 1.0 - float((returns - values).var(correction=0)) / variance
        return told

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0, values=True)
        logprobs, mask, values = found.tokens.logprobs, found.batch.mask, found.values
        if values is None:
            raise _no_head()
        began = self._scorer.began(part, found)
        result = ppo_loss(
            logprobs,
            found.batch.behaviour.to(logprobs),
            began,
            self._column(self._advantages, part).to(logprobs),
            values,
            self._column(self._values, part).to(values),
            self._column(self._returns, part).to(values),
            found.tokens.entropy,
            mask,
            options=self._options,
            total=self._total,
        )
        count, level = float(len(part)), self._options.level
        weight = float(mask.sum()) if level is Level.TOKEN else count
        figures = of_ratios(result.ratios, weight) | {
            "value_loss": (result.value_loss * self._total / count, count),
            "value_clipped": (result.value_clipped, count),
            "kl_update": (estimated_kl(logprobs, began, mask, level), weight),
        }
        return Part(result.loss, figures | self._scorer.common(part, found, divergence=divergence))

    def drifted(self, figures: Mapping[str, float]) -> bool:
        """Whether the policy is farther than 1.5 times the target from the one with which the update began."""
        target = self._mdp.target_kl
        return target is not None and figures.get("kl_update", 0.0) > 1.5 * target

    def _valued(self, chosen: Sequence[Window]) -> dict[int, float]:
        states = list(dict.fromkeys(step for window in chosen for step in (*window.steps, *window.after)))
        values = self._scorer.values([self.examples[step].sample.prompt for step in states])
        if values is None:
            raise _no_head()
        return dict(zip(states, values.double().tolist(), strict=True))

    def _column(self, values: Mapping[int, float], part: Sequence[int]) -> Tensor:
        return torch.tensor([values[step] for step in part], dtype=torch.float64, device=self._scorer.model.device)


def _no_head() -> UsageError:
    return UsageError("PPO needs a model with a value head, and this one has none", hint="load it with one")
