"""The loss of PPO over the research MDP: a state is what the policy is shown, an action is one whole completion.

L = L_CLIP − c1·L_VF + c2·H (Schulman et al. 2017, arXiv:1707.06347, Eq. 9), with the constants of AutoResearch-RL
(arXiv:2603.07300): c1 = 0.5, c2 = 0.01. Advantages and returns come from GAE over the sequence of a session's
experiments (``advantages.gae``), so all tokens of a completion share one advantage, and the state has one value.

The ratio of an action is the product of its tokens' ratios (level ``completion``, the default): what Eq. 7 says, but
with a thousand tokens a small step of the policy already leaves the range. ``token`` clips each token by itself, as
is usual for language models: a first-order approximation of it that learns on where the product is clipped away.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from autoresearchd.errors import UsageError
from autoresearchd.learner.ratios import (
    Level,
    Mean,
    RatioFigures,
    check,
    check_finite,
    clipped_surrogate,
    figures,
    log_ratios,
    masked_mean,
    per_token,
    truncated_weights,
)


@dataclass(frozen=True, slots=True)
class PpoOptions:
    """The constants.

    clip: ε of the ratio; clip_high: above 1, None: the same. value_clip: how far a value may move from the old one
    before the loss stops to reward it, None: any. value_weight: c1. entropy_weight: c2. level: what the ratio is of.
    dual_clip: as in GRPO. weight_cap: of the truncated importance weights.
    """

    clip: float = 0.2
    clip_high: float | None = None
    value_clip: float | None = 0.2
    value_weight: float = 0.5
    entropy_weight: float = 0.01
    level: Level = Level.COMPLETION
    dual_clip: float | None = None
    weight_cap: float = 2.0

    def __post_init__(self) -> None:
        high = self.clip if self.clip_high is None else self.clip_high
        if not 0 <= self.clip < 1 or high < 0 or (self.dual_clip is not None and self.dual_clip <= 1 + high):
            raise UsageError(
                f"clip {self.clip}, clip_high {high} and dual_clip {self.dual_clip} do not go together",
                mend="take a clip from 0 to below 1, and a dual_clip above 1 + clip_high or none",
            )
        if min(self.value_weight, self.entropy_weight) < 0 or self.weight_cap <= 0:
            raise UsageError(
                "value_weight and entropy_weight may not be below 0, weight_cap must be above it",
                mend="0.5, 0.01 and 2 are usual",
            )
        if self.value_clip is not None and self.value_clip <= 0:
            raise UsageError(f"value_clip {self.value_clip} is not above 0", mend="take 0.2, or none")


@dataclass(frozen=True, slots=True)
class PpoLoss:
    """The loss, to be minimised, and figures on it, detached.

    surrogate: −L_CLIP. value_loss: L_VF. entropy: H. value_clipped: share of the values held back by the value clip.
    explained_variance: 1 − Var(R − V)/Var(R), 1: the values foretell the returns; None where all returns are the same.
    """

    loss: Tensor
    surrogate: float
    value_loss: float
    entropy: float
    ratios: RatioFigures
    value_clipped: float
    explained_variance: float | None
    actions: int


def ppo_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    entropy: Tensor,
    mask: Tensor,
    *,
    options: PpoOptions | None = None,
    proximal: Tensor | None = None,
    total: float | None = None,
) -> PpoLoss:
    """−L_CLIP + c1·L_VF − c2·H; each action counts once, however many tokens it has.

    The entropy of an action, a completion, is a sum over more texts than can be counted; H is the mean over its tokens
    of the entropy of each token's distribution, in nats, so that it neither grows with the length nor rewards it.

    Args:
        logprobs: log-probabilities of the completions' tokens under the policy, [B, T].
        behaviour: those that were stored when the tokens were drawn, at the same temperature.
        advantages: of each action, [B]; constant.
        values: V(s) of each action's state, [B].
        old_values: V(s) when the update began, [B]; constant.
        returns: what V(s) should be, [B]; constant.
        entropy: of each token's distribution, [B, T].
        mask: [B, T]; each row has a token.
        options: the constants.
        proximal: log-probabilities under the policy with which this update began (as for ``grpo_loss``).
        total: actions of the whole batch where this is a part of it.

    Raises:
        UsageError: nothing to learn from, an action without a token, NaN or infinity.
    """
    options = options or PpoOptions()
    check(mask, logprobs=logprobs, behaviour=behaviour, entropy=entropy, proximal=proximal)
    if not bool(mask.any(dim=-1).all()):
        raise UsageError("an action of the batch has no token", mend="leave empty completions out of the batch")
    for name, each in (("values", values), ("old_values", old_values), ("returns", returns)):
        if each.shape != mask.shape[:1]:
            raise ValueError(f"{name}: shape {tuple(each.shape)}, expected one for each of {mask.shape[0]} actions")
        check_finite(name, each.detach())
    if advantages.shape != mask.shape[:1]:
        raise ValueError(f"advantages: shape {tuple(advantages.shape)}, expected one for each action")
    behaviour, old_values, returns = behaviour.detach(), old_values.detach(), returns.detach()
    anchor = behaviour if proximal is None else proximal.detach()
    high = options.clip if options.clip_high is None else options.clip_high
    ratio = log_ratios(logprobs, anchor, mask, options.level).exp()
    weights = truncated_weights(proximal, behaviour, mask, options.level, options.weight_cap)
    constant = per_token(advantages.detach(), mask, "advantages")
    clipped = clipped_surrogate(ratio, constant, options.clip, high, options.dual_clip)
    actions = mask.shape[0] if total is None else total

    surrogate = masked_mean(weights * clipped.losses, mask, Mean.SEQUENCES, total=total)
    spread = masked_mean(entropy, mask, Mean.SEQUENCES, total=total)
    errors, held = _value_errors(values, old_values, returns, options.value_clip)
    value_loss = errors.sum() / actions
    return PpoLoss(
        loss=surrogate + options.value_weight * value_loss - options.entropy_weight * spread,
        surrogate=float(surrogate.detach()),
        value_loss=float(value_loss.detach()),
        entropy=float(spread.detach()),
        ratios=figures(ratio, clipped.low, clipped.high, logprobs, behaviour, mask, options.level),
        value_clipped=float(held.double().mean()),
        explained_variance=explained_variance(values, returns),
        actions=mask.shape[0],
    )


def explained_variance(values: Tensor, returns: Tensor) -> float | None:
    """1 − Var(returns − values)/Var(returns); None where all returns are the same."""
    wide = returns.detach().double()
    variance = float(wide.var(correction=0))
    if variance <= 0:
        return None
    return 1.0 - float((wide - values.detach().double()).var(correction=0)) / variance


def _value_errors(values: Tensor, old: Tensor, returns: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Squared errors, the larger of that of the value and of the clipped one; where the clip acted."""
    plain = (values - returns).square()
    if clip is None:
        return plain, torch.zeros_like(plain, dtype=torch.bool)
    bounded = (old + (values - old).clamp(-clip, clip) - returns).square()
    moved = (values.detach() - old).abs() > clip
    return torch.maximum(plain, bounded), moved & (bounded.detach() > plain.detach())
