"""PPO over the research MDP: a state is what the policy is shown, an action is one whole completion.

L = L_CLIP − c1·L_VF + c2·H (Schulman et al. 2017, arXiv:1707.06347, Eq. 9), with the constants of AutoResearch-RL
(arXiv:2603.07300): c1 = 0.5, c2 = 0.01. Advantages and returns come from GAE over the sequence of a session's
experiments (``gae``), so all tokens of a completion share one advantage, and the state has one value.

Where an experiment has several answers (one was asked again, or given back), each is a step of its own with the reward
that it earned itself: their sum would blame the answer that fixed the others. The experiments of a round answer one
state side by side. What follows an answer is what its own experiment was asked next, and after its last answer the next
round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import torch
from torch import Tensor

from autoresearchd.learner.algorithms import scoring
from autoresearchd.learner.algorithms.learnable import Learnable
from autoresearchd.learner.algorithms.train_options import Mean, PpoOptions, TrainOptions
from autoresearchd.learner.data.examples import Example
from autoresearchd.learner.data.trajectories import all_equal


def gae(
    steps: Sequence[int],
    rewards: Mapping[int, float],
    values: Mapping[int, float],
    following: Mapping[int, Sequence[int]],
    *,
    gamma: float,
    lam: float,
) -> dict[int, float]:
    """Generalised advantage estimation over a sequence of experiments, in the order in which they were proposed.

    δ_t = r_t + γ·V(s_{t+1}) − V(s_t), A_t = Σ_l (γλ)^l δ_{t+l} = δ_t + γλ·A_{t+1} (Schulman et al. 2016,
    arXiv:1506.02438, Eq. 16). Where one state is answered several times at once, several steps follow a step:
    V(s_{t+1}) and A_{t+1} are then the means over them, and none is paid for what was answered beside it. Of what
    follows ``steps`` only the value counts. Where nothing follows the record ends, and research does not: the state
    after an answer is taken to be worth what its own is.
    """
    advantages: dict[int, float] = {}
    for t in reversed(steps):
        after = following[t]
        worth = math.fsum(values[j] for j in after) / len(after) if after else values[t]
        inside = bool(after) and after[0] in advantages
        flowing = math.fsum(advantages[j] for j in after) / len(after) if inside else 0.0
        advantages[t] = rewards[t] + gamma * worth - values[t] + gamma * lam * flowing
    return advantages


def normalised(advantages: Tensor) -> Tensor:
    """Advantages [N] shifted and scaled to the mean 0 and the standard deviation 1; one alone, or equal ones, are 0."""
    if len(advantages) < 2 or all_equal(advantages.tolist()):
        return torch.zeros_like(advantages)
    return (advantages - advantages.mean()) / (advantages.std(correction=1) + 1e-8)


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
) -> scoring.Part:
    """−L_CLIP + c1·L_VF − c2·H; each action counts once, however many tokens it has.

    The entropy of an action, a completion, is a sum over more texts than can be counted; H is the mean over its tokens
    of the entropy of each token's distribution, in nats, so that it neither grows with the length nor rewards it.

    logprobs, behaviour, proximal: log-probabilities [B, T] of the completions' tokens under the policy, when they were
    drawn, and when this update began: the ratio is π_θ/π_proximal, behind the truncated weight π_proximal/μ.
    advantages, values, old_values (when the update began), returns: of each action, [B]. entropy: [B, T]. mask: [B, T];
    each row has a token. total: actions of the whole batch where this is a part of it. Figures: ``value_clipped``, the
    share of values held back by the value clip; ``kl_update``, the divergence from where the update began.
    """
    behaviour, proximal, old_values, returns = (t.detach() for t in (behaviour, proximal, old_values, returns))
    high = options.clip if options.clip_high is None else options.clip_high
    ratio = scoring.log_ratios(logprobs, proximal, mask, options.level).exp()
    weights = scoring.truncated_weights(proximal, behaviour, mask, options.level)
    losses, below, above, _ = scoring.clipped_surrogate(ratio, advantages, mask, options.clip, high)
    surrogate = scoring.masked_mean(weights * losses, mask, Mean.SEQUENCES, total=total)
    spread = scoring.masked_mean(entropy, mask, Mean.SEQUENCES, total=total)
    plain = (values - returns).square()
    bounded = (old_values + (values - old_values).clamp(-options.value_clip, options.value_clip) - returns).square()
    limited = ((values - old_values).abs() > options.value_clip) & (bounded > plain)
    count, where = float(mask.shape[0]), scoring.counted(mask, options.level)
    value_loss = torch.maximum(plain, bounded).sum() / (count if total is None else total)
    figures = scoring.ratio_figures(ratio, below, above, logprobs, behaviour, mask, options.level) | {
        "value_loss": (float(value_loss.detach()) * (count if total is None else total) / count, count),
        "value_clipped": (float(limited.double().mean()), count),
        "kl_update": (scoring.estimated_kl(logprobs, proximal, mask, options.level), float(where.sum())),
    }
    return scoring.Part(surrogate + options.value_weight * value_loss - options.entropy_weight * spread, figures)


def windows(examples: Sequence[Example], horizon: int) -> tuple[list[tuple[int, ...]], dict[int, tuple[int, ...]]]:
    """The answers of each session in order, in windows of about ``horizon`` at most; and what follows each of them.

    A round is never cut. Nothing follows where the record, or the segment, ends.
    """
    segments: dict[tuple[str, int], list[int]] = {}
    for place, each in enumerate(examples):
        segments.setdefault((each.trajectory.session, each.trajectory.segment), []).append(place)
    made: list[tuple[int, ...]] = []
    following: dict[int, tuple[int, ...]] = {}
    for places in segments.values():
        rounds = _rounds(examples, places)
        for own, coming in zip(rounds, [*rounds[1:], []], strict=True):
            for answers in own:
                following |= {one: (other,) for one, other in pairwise(answers)}
                following[answers[-1]] = tuple(first for first, *_ in coming)
        steps: list[int] = []
        for own in rounds:
            size = sum(map(len, own))
            if steps and len(steps) + size > horizon:
                made.append(tuple(steps))
                steps = []
            steps += chain.from_iterable(own)
        made.append(tuple(steps))
    return made, following


def _rounds(examples: Sequence[Example], places: Sequence[int]) -> list[list[list[int]]]:
    """The rounds of a segment in order: for each of their experiments its answers in order."""
    experiments: dict[int, list[int]] = {}
    for place in sorted(places, key=lambda p: (examples[p].trajectory.number, examples[p].trajectory.index, p)):
        experiments.setdefault(examples[place].trajectory.number, []).append(place)
    rounds: dict[str, list[list[int]]] = {}
    for answers in experiments.values():
        rounds.setdefault(examples[answers[0]].trajectory.group, []).append(answers)
    return list(rounds.values())


class PpoObjective(scoring.Objective):
    """Clipped surrogate, value loss and entropy over windows of answers; the model has a value head."""

    def __init__(self, model: Learnable, examples: Sequence[Example], options: TrainOptions) -> None:
        split, self._following = windows(examples, min(options.ppo.horizon, options.batch))
        super().__init__(model, examples, options, split)
        self._by_step = {step: window for window in split for step in window}
        rewards = [each.reward for each in examples]
        mean = math.fsum(rewards) / len(rewards) if options.ppo.centred else 0.0
        self._rewards = {place: reward - mean for place, reward in enumerate(rewards)}
        self._advantages: dict[int, float] = {}
        self._returns: dict[int, float] = {}
        self._values: dict[int, float] = {}

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        """Values of the batch's states by the value head as it is now, and from them advantages and returns."""
        super().begin(batch)
        self.total = float(len(batch))
        chosen = list(dict.fromkeys(self._by_step[step] for step in batch))
        after = self._following
        states = list(dict.fromkeys(s for steps in chosen for s in (*steps, *(j for t in steps for j in after[t]))))
        values = self.values([self.examples[step].sample.prompt for step in states])
        self._values = dict(zip(states, values.double().tolist(), strict=True))
        raw: dict[int, float] = {}
        for steps in chosen:
            options = self.options.ppo
            raw |= gae(steps, self._rewards, self._values, after, gamma=options.gamma, lam=options.lam)
        self._returns = {step: advantage + self._values[step] for step, advantage in raw.items()}
        scaled = normalised(torch.tensor([raw[step] for step in batch], dtype=torch.float64))
        self._advantages = dict(zip(batch, scaled.tolist(), strict=True))
        figures = {"advantage": float(scaled.abs().mean())}
        target, foretold = self._column(self._returns, batch), self._column(self._values, batch)
        variance = float(target.var(correction=0))
        if variance > 0:  # 1: the values foretell the returns
            figures["explained_variance"] = 1.0 - float((target - foretold).var(correction=0)) / variance
        return figures

    def loss(self, part: Sequence[int], *, divergence: bool) -> scoring.Part:
        said = self.policy(part, divergence=divergence, values=True)
        logprobs, values = said.logprobs, said.values
        assert values is not None
        loss, figures = ppo_loss(
            logprobs,
            said.batch.behaviour.to(logprobs),
            self.began(part, said),
            self._column(self._advantages, part).to(logprobs),
            values,
            self._column(self._values, part).to(values),
            self._column(self._returns, part).to(values),
            said.entropy,
            said.batch.mask,
            options=self.options.ppo,
            total=self.total,
        )
        return scoring.Part(loss, figures | self.common(part, said, divergence=divergence))

    def drifted(self, figures: Mapping[str, float]) -> bool:
        """Whether the policy is farther than 1.5 times the target from the one with which the update began."""
        target = self.options.ppo.target_kl
        return target is not None and figures.get("kl_update", 0.0) > 1.5 * target

    def _column(self, values: Mapping[int, float], part: Sequence[int]) -> Tensor:
        return torch.tensor([values[step] for step in part], dtype=torch.float64, device=self.model.device)
