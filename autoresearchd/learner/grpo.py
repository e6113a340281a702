"""The loss of GRPO and its kin, for stored completions: DAPO's clipping and token mean by default, GSPO by option.

GRPO: Shao et al. 2024 (arXiv:2402.03300), Eq. 3. DAPO: Yu et al. 2025 (arXiv:2503.14476), §3.1 and §3.3. Dr. GRPO: Liu
et al. 2025 (arXiv:2503.20783). GSPO: Zheng et al. 2025 (arXiv:2507.18071).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from autoresearchd.errors import UsageError
from autoresearchd.learner.logprobs import k3
from autoresearchd.learner.ratios import (
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


@dataclass(frozen=True, slots=True)
class GrpoOptions:
    """The constants.

    clip_low, clip_high: ε below and above a ratio of 1. dual_clip: c, bounds the loss of what turned out badly; None:
    not. level: what the ratio is of. mean: how tokens weigh. length: the constant length of the mean ``fixed``.
    weight_cap: of the truncated importance weights. beta: weight of KL(policy ‖ reference policy), at each token.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = 3.0
    level: Level = Level.TOKEN
    mean: Mean = Mean.TOKENS
    length: int | None = None
    weight_cap: float = 2.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1 or self.clip_high < 0:
            raise UsageError(
                f"the range of the ratio from 1 − {self.clip_low} to 1 + {self.clip_high} is none",
                mend="take a clip_low from 0 to below 1, and a clip_high of at least 0",
            )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise UsageError(
                f"dual_clip {self.dual_clip} is not above the range of the ratio",
                mend=f"take more than {1 + self.clip_high}, 3 is usual, or none",
            )
        if self.weight_cap <= 0 or self.beta < 0:
            raise UsageError("weight_cap must be above 0, and beta not below it", mend="2 and 0 are usual")
        if (self.mean is Mean.FIXED) != (self.length is not None) or (self.length is not None and self.length < 1):
            raise UsageError(
                "the mean 'fixed' goes with a length, and no other does",
                mend="give the largest number of tokens that a completion may have",
            )


GSPO = GrpoOptions(
    clip_low=3e-4, clip_high=4e-4, dual_clip=None, level=Level.SEQUENCE, mean=Mean.SEQUENCES, weight_cap=2.0
)
"""As in its paper: the geometric mean of many tokens' ratios moves little, so the range is narrow."""


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
        raise UsageError("beta needs a reference policy", mend="give its log-probabilities, or take a beta of 0")
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
