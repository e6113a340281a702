"""GRPO and its kin on stored completions: DAPO's clipping and token mean by default, GSPO by option.

GRPO: Shao et al. 2024 (arXiv:2402.03300), Eq. 3. DAPO: Yu et al. 2025 (arXiv:2503.14476), §3.1 and §3.3. Dr. GRPO: Liu
et al. 2025 (arXiv:2503.20783). GSPO: Zheng et al. 2025 (arXiv:2507.18071).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoresearchd.learner.algorithms.advantages import GroupAdvantages, group_advantages, nearest
from autoresearchd.learner.algorithms.ratios import (
    Level,
    Mean,
    RatioFigures,
    clipped_surrogate,
    figures,
    log_ratios,
    masked_mean,
    share,
)
from autoresearchd.learner.algorithms.scoring import Objective, Part, Scorer, of_ratios
from autoresearchd.learner.algorithms.train_options import TOP, GroupOptions, GrpoOptions, TrainOptions
from autoresearchd.learner.data.examples import Example
from autoresearchd.learner.training.logprobs import k3


@dataclass(frozen=True, slots=True)
class GrpoLoss:
    """The loss, to be minimised; clipped_dual: share of the tokens at which the dual clip acted."""

    loss: Tensor
    ratios: RatioFigures
    clipped_dual: float
    tokens: int


def grpo_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    options: GrpoOptions,
    reference: Tensor | None = None,
    total: float | None = None,
) -> GrpoLoss:
    """The clipped surrogate with the ratios π_θ/μ, μ being the policy that wrote the completions.

    The divergence from a reference is min(π_θ/μ, cap)·k3: k3 alone estimates it on tokens that π_θ drew, and each
    stored one that it has unlearned would count by the hundred. With the ratio, which is not held constant, the
    gradient is that of the divergence as well (DeepSeek-V3.2, arXiv:2512.02556, §3.1).

    logprobs, behaviour: log-probabilities [B, T] of the completions' tokens under π_θ, and those that were stored when
    they were drawn, at the same temperature. advantages: of each completion, [B]. mask: [B, T]; completions of groups
    without signal are left out of it, else they dilute the mean. reference: log-probabilities under the policy that
    ``beta`` holds to. total: tokens, or completions, of the whole batch where this is a part of it (``masked_mean``).
    """
    behaviour = behaviour.detach()
    ratio = log_ratios(logprobs, behaviour, mask, options.level).exp()
    clipped = clipped_surrogate(ratio, advantages, mask, options.clip_low, options.clip_high, options.dual_clip)
    loss = masked_mean(clipped.losses, mask, options.mean, total=total)
    if reference is not None and options.beta > 0:
        drawn = log_ratios(logprobs, behaviour, mask, Level.TOKEN).exp().clamp(max=options.weight_cap)
        divergence = drawn * k3(logprobs.where(mask, 0.0), reference.detach().where(mask, 0.0))
        loss = loss + options.beta * masked_mean(divergence, mask, options.mean, total=total)
    return GrpoLoss(
        loss=loss,
        ratios=figures(ratio, clipped.low, clipped.high, logprobs, behaviour, mask, options.level),
        clipped_dual=share(clipped.dual, mask),
        tokens=int(mask.sum()),
    )


def advantages_of(examples: Sequence[Example], options: GroupOptions) -> GroupAdvantages:
    """The advantages of answers within their rounds; of single ones by their neighbours in the session, if at all."""
    made = [each.trajectory for each in examples]
    near = None
    if options.neighbours is not None:
        near = nearest([t.session for t in made], [t.at.timestamp() for t in made], options.neighbours)
    return group_advantages(
        torch.tensor([each.reward for each in made], dtype=torch.float64),
        [(each.session, each.group) for each in made],
        scale=options.scale,
        leave_one_out=options.leave_one_out,
        neighbours=near,
    )


class GrpoObjective(Objective):
    """The clipped surrogate over answers whose group has a signal; the others are left out of all batches.

    What is clipped is the ratio to the policy that wrote an answer, as it is stored. The answers stay the same over all
    passes: a ratio to where an update, or a pass, began would be 1 again each time, and would bound nothing.
    """

    def __init__(self, scorer: Scorer, found: GroupAdvantages, options: TrainOptions) -> None:
        self._advantages = found.advantages.to(scorer.model.device)
        groups: dict[tuple[str, str], list[int]] = {}
        for place, each in enumerate(scorer.examples):
            if found.signal[place]:
                groups.setdefault((each.trajectory.session, each.trajectory.group), []).append(place)
        # Advantages are constant: a group that is larger than a batch may be cut.
        size = options.batch
        super().__init__(scorer, [own[at : at + size] for own in groups.values() for at in range(0, len(own), size)])
        self._options = options.grpo

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        by_tokens = self._options.mean is Mean.TOKENS
        self._total = float(sum(self.examples[place].tokens for place in batch) if by_tokens else len(batch))
        return {"advantage": float(self._advantages[list(batch)].abs().mean())}

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0)
        logprobs, mask = found.tokens.logprobs, found.batch.mask
        result = grpo_loss(
            logprobs,
            found.batch.behaviour.to(logprobs),
            self._advantages[list(part)].to(logprobs),
            mask,
            options=self._options,
            reference=self._scorer.base(part, found) if self._options.beta > 0 else None,
            total=self._total,
        )
        weight = float(result.tokens if self._options.level is Level.TOKEN else len(part))
        figures = of_ratios(result.ratios, weight) | {"clipped_dual": (result.clipped_dual, float(result.tokens))}
        return Part(result.loss, figures | self._scorer.common(part, found, divergence=divergence))
