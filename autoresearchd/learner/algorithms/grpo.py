"""The loss of GRPO and its kin, for stored completions: DAPO's clipping and token mean by default, GSPO by option.

GRPO: Shao et al. 2024 (arXiv:2402.03300), Eq. 3. DAPO: Yu et al. 2025 (arXiv:2503.14476), §3.1 and §3.3. Dr. GRPO: Liu
et al. 2025 (arXiv:2503.20783). GSPO: Zheng et al. 2025 (arXiv:2507.18071).

GRPO on stored completions: advantages within rounds, ratios to the policy that wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.advantages import GroupAdvantages, Neighbours, group_advantages
from autoresearchd.learner.algorithms.ratios import (
    Level,
    Mean,
    RatioFigures,
    check,
    clipped_surrogate,
    figures,
    log_ratios,
    masked_mean,
    per_token,
    share,
    truncated_weights,
)
from autoresearchd.learner.algorithms.scoring import Objective, Part, Scorer, of_ratios
from autoresearchd.learner.algorithms.train_options import TOP, GroupOptions, GrpoOptions, TrainOptions
from autoresearchd.learner.data.examples import Example
from autoresearchd.learner.training.logprobs import k3


@dataclass(frozen=True, slots=True)
class GrpoLoss:
    """The loss, to be minimised, and figures on it, detached.

    surrogate: the loss without the KL term. kl: divergence from the reference (mean over tokens), None without one.
    clipped_dual: share of the tokens at which the dual clip acted. entropy: mean over tokens, None where not given.
    """

    loss: Tensor
    surrogate: float
    ratios: RatioFigures
    clipped_dual: float
    kl: float | None
    entropy: float | None
    tokens: int


def grpo_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    options: GrpoOptions | None = None,
    proximal: Tensor | None = None,
    reference: Tensor | None = None,
    entropy: Tensor | None = None,
    total: float | None = None,
) -> GrpoLoss:
    """The clipped surrogate with importance ratios to the policy that acted.

    Without ``proximal`` the ratio is π_θ/μ, μ being the policy that wrote the completion, as its stored
    log-probabilities have it. With it, the ratio is π_θ/π_proximal, and its truncated weight min(π_proximal/μ, cap)
    stands before the clipped term: stale completions then neither leave the range at once nor count as fresh.

    The divergence from a reference is min(π_θ/μ, cap)·k3: k3 alone estimates it on tokens that π_θ drew, and each
    stored one that it has unlearned would count by the hundred. With the ratio, which is not held constant, the
    gradient is that of the divergence as well (DeepSeek-V3.2, arXiv:2512.02556, §3.1).

    Args:
        logprobs: log-probabilities of the completions' tokens under the policy, [B, T].
        behaviour: those that were stored when the tokens were drawn, at the same temperature.
        advantages: of each completion [B], or of each token [B, T]; constant.
        mask: [B, T], True on tokens that are learned from. Completions of groups without signal are left out of it,
            else they dilute the mean.
        options: the constants.
        proximal: log-probabilities under the policy with which this update began.
        reference: log-probabilities under the policy that ``beta`` holds to.
        entropy: of each token's distribution, for the figures only.
        total: tokens, or completions, of the whole batch where this is a part of it (``masked_mean``).

    Raises:
        UsageError: nothing to learn from, NaN or infinity, or ``beta`` without a reference.
    """
    options = options or GrpoOptions()
    check(mask, logprobs=logprobs, behaviour=behaviour, proximal=proximal, reference=reference, entropy=entropy)
    if options.beta > 0 and reference is None:
        raise UsageError("beta needs a reference policy", hint="give its log-probabilities, or take a beta of 0")
    advantages = per_token(advantages.detach(), mask, "advantages")
    behaviour = behaviour.detach()
    anchor = behaviour if proximal is None else proximal.detach()
    ratio = log_ratios(logprobs, anchor, mask, options.level).exp()
    weights = truncated_weights(proximal, behaviour, mask, options.level, options.weight_cap)
    clipped = clipped_surrogate(ratio, advantages, options.clip_low, options.clip_high, options.dual_clip)

    def mean(values: Tensor) -> Tensor:
        return masked_mean(values, mask, options.mean, length=options.length, total=total)

    surrogate = mean(weights * clipped.losses)
    loss, kl = surrogate, None
    if reference is not None:
        # The tokens are those of the policy that acted, and the divergence is an expectation over the policy's own.
        drawn = log_ratios(logprobs, behaviour, mask, Level.TOKEN).exp().clamp(max=options.weight_cap)
        divergence = drawn * k3(logprobs.where(mask, 0.0), reference.detach().where(mask, 0.0))
        kl = float(masked_mean(divergence.detach(), mask))
        if options.beta > 0:
            loss = surrogate + options.beta * mean(divergence)
    return GrpoLoss(
        loss=loss,
        surrogate=float(surrogate.detach()),
        ratios=figures(ratio, clipped.low, clipped.high, logprobs, behaviour, mask, options.level),
        clipped_dual=share(clipped.dual, mask),
        kl=kl,
        entropy=None if entropy is None else float(masked_mean(entropy.detach(), mask)),
        tokens=int(mask.sum()),
    )


def advantages_of(examples: Sequence[Example], options: GroupOptions) -> GroupAdvantages:
    """The advantages of answers within their rounds; of single ones by their neighbours in the session, if at all."""
    made = [each.trajectory for each in examples]
    near = None
    if options.neighbours is not None:
        sessions, times = [each.session for each in made], [each.at.timestamp() for each in made]
        near = Neighbours(sessions, times, k=options.neighbours, past_only=options.past_only)
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

    scorer: the model with the examples. found: the examples' advantages. options: of the run.
    """

    def __init__(self, scorer: Scorer, found: GroupAdvantages, options: TrainOptions) -> None:
        self._advantages = found.advantages.to(scorer.model.device)
        signal = found.signal.tolist()
        groups: dict[tuple[str, str], list[int]] = {}
        for place, each in enumerate(scorer.examples):
            if signal[place]:
                groups.setdefault((each.trajectory.session, each.trajectory.group), []).append(place)
        # Advantages are constant: a group that is larger than a batch may be cut.
        units = [
            whole[at : at + options.batch] for whole in groups.values() for at in range(0, len(whole), options.batch)
        ]
        super().__init__(scorer, units)
        self._options = options.grpo

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        by_tokens = self._options.mean is Mean.TOKENS
        self._total = float(sum(self.examples[place].tokens for place in batch) if by_tokens else len(batch))
        return {"advantage": float(self._advantages[list(batch)].abs().mean())}

    def loss(self, part: Sequence[int], *, divergence: bool) -> Part:
        found = self._scorer.policy(part, top=TOP if divergence else 0)
        logprobs, mask = found.tokens.logprobs, found.batch.mask
        held = self._options.beta > 0
        result = grpo_loss(
            logprobs,
            found.batch.behaviour.to(logprobs),
            self._advantages[list(part)].to(logprobs),
            mask,
            options=self._options,
            reference=self._scorer.base(part, found) if held else None,
            total=self._total,
        )
        weight = float(result.tokens if self._options.level is Level.TOKEN else len(part))
        figures = of_ratios(result.ratios, weight) | {"clipped_dual": (result.clipped_dual, float(result.tokens))}
        return Part(result.loss, figures | self._scorer.common(part, found, divergence=divergence))
