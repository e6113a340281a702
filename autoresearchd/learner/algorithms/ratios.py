"""What the losses share: importance ratios, the clipped surrogate, means over tokens, figures, divergences.

Shapes: B completions, padded to T tokens; ``mask`` [B, T] is True on the tokens that are learned from. What stands
elsewhere, NaN included, changes neither a loss nor a gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from autoresearchd.learner.algorithms.train_options import Level, Mean

LOG_LIMIT = 20.0
"""Log-ratios are cut to ± this before they are exponentiated: no ratio overflows; beyond it no gradient flows."""

CAP = 2.0
"""Importance weights are cut to this: a few stale tokens do not outweigh all others."""

Figures = dict[str, tuple[float, float]]
"""By name, each with its weight in the mean over the parts of a batch."""


class Part(NamedTuple):
    """The loss of a part of a batch, to be minimised; the losses of all parts add up to that of the batch."""

    loss: Tensor
    figures: Figures


def log_ratios(new: Tensor, old: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Log-ratios log π_new − log π_old at a level, [B, T], cut to ±LOG_LIMIT; a token has what its completion has."""
    each = torch.where(mask, new, 0.0) - torch.where(mask, old, 0.0)
    if level is not Level.TOKEN:
        whole = each.sum(dim=-1, keepdim=True)
        if level is Level.SEQUENCE:
            whole = whole / mask.sum(dim=-1, keepdim=True).clamp(min=1)
        each = whole.expand(mask.shape)
    return each.clamp(-LOG_LIMIT, LOG_LIMIT)


def truncated_weights(proximal: Tensor, behaviour: Tensor, mask: Tensor, level: Level) -> Tensor:
    """min(π_proximal/π_behaviour, CAP) of each token, detached: stale completions do not count as fresh.

    Truncated importance sampling (Ionides 2008), here beside a ratio that is clipped around the policy with which the
    update began (the decoupled objective of Hilton et al. 2022, arXiv:2110.00641).
    """
    return log_ratios(proximal, behaviour, mask, level).exp().clamp(max=CAP).detach()


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, mask: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """−min(r·A, clip(r, 1−ε_low, 1+ε_high)·A), and for A < 0 at most −c·A; where it was clipped: low, high, dual.

    PPO (Schulman et al. 2017, arXiv:1707.06347, Eq. 7) with the asymmetric range of DAPO (Yu et al. 2025,
    arXiv:2503.14476, §3.1) and the dual clip (Ye et al. 2020, arXiv:1912.09729): without c a single token that the
    policy has made likely, and that turned out badly, has an unbounded loss.

    ratio: [B, T]. advantages: of each completion, [B], constant. dual_clip: c > 1, None for none.
    """
    advantages = torch.where(mask, advantages.detach().unsqueeze(-1), 0.0)
    gain = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    dual = torch.zeros_like(ratio, dtype=torch.bool)
    if dual_clip is not None:
        floor = dual_clip * advantages
        dual = (advantages < 0) & (gain < floor)
        gain = torch.where(dual, floor, gain)
    low = (advantages < 0) & (ratio < 1.0 - clip_low)
    high = (advantages > 0) & (ratio > 1.0 + clip_high)
    return -gain, low, high, dual


def masked_mean(values: Tensor, mask: Tensor, how: Mean = Mean.TOKENS, *, total: float | None = None) -> Tensor:
    """One number of a value for each token.

    total: tokens (``tokens``) or completions (``sequences``) of the whole batch where this is a part of it: the parts'
    means then add up to the batch's.
    """
    kept = torch.where(mask, values, 0.0)
    if how is Mean.TOKENS:
        return kept.sum() / (mask.sum() if total is None else total)
    counts = mask.sum(dim=-1)
    return (kept.sum(dim=-1) / counts.clamp(min=1)).sum() / ((counts > 0).sum() if total is None else total)


def share(where: Tensor, mask: Tensor) -> float:
    """Share of the tokens of the mask that a condition holds for."""
    return float((where & mask).sum() / mask.sum())


def counted(mask: Tensor, level: Level) -> Tensor:
    """Where a ratio counts: at each token, or once for a completion."""
    return mask if level is Level.TOKEN else mask & (mask.cumsum(dim=-1) == 1)


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """The estimate k3 of KL(policy ‖ reference) of each token drawn from the policy: (r − 1) − log r, r = π_ref/π.

    Schulman, "Approximating KL divergence" (2020); GRPO (Shao et al. 2024, arXiv:2402.03300), Eq. 4. Unbiased, never
    negative, of low variance. As a term of a loss its expected gradient is that of KL(reference ‖ policy), which pulls
    to the same place by another way (Tang and Munos 2025).
    """
    difference = reference - logprobs
    return torch.expm1(difference) - difference


def estimated_kl(new: Tensor, old: Tensor, mask: Tensor, level: Level) -> float:
    """The estimate k3 of KL(old ‖ new), for each token or each completion as the ratio is."""
    each = log_ratios(new.detach(), old, mask, level)[counted(mask, level)].double()
    return float((torch.expm1(each) - each).mean())


def ratio_figures(
    ratio: Tensor, low: Tensor, high: Tensor, new: Tensor, behaviour: Tensor, mask: Tensor, level: Level
) -> Figures:
    """How far the policy is from the one that acted.

    ``ratio``: mean of what is clipped [B, T]. ``clipped_low``, ``clipped_high``: share of it beyond the range, with an
    advantage that would push it further. ``effective_samples``: (Σw)²/(n·Σw²) of the ratios to the behaviour policy
    (Kish 1965), 1: as good as fresh samples. ``approx_kl``: k3 of KL(behaviour ‖ policy).
    """
    where = counted(mask, level)
    weights = log_ratios(new.detach(), behaviour, mask, level)[where].double().exp()
    found = {
        "ratio": float(ratio.detach()[where].double().mean()),
        "clipped_low": share(low, where),
        "clipped_high": share(high, where),
        "effective_samples": float(weights.sum().square() / (weights.numel() * weights.square().sum())),
        "approx_kl": estimated_kl(new, behaviour, mask, level),
    }
    return {name: (value, float(where.sum())) for name, value in found.items()}


def with_tail(top: Tensor) -> Tensor:
    """Log-probabilities [..., k] with the bucket of all other tokens beside them, [..., k + 1]: log(1 − Σp).

    As log(−expm1(logsumexp)), which keeps its digits where Σp is near 1. Where rounding has made the sum 1 or more, the
    bucket holds the smallest probability that the number type tells from nothing beside 1.
    """
    together = torch.logsumexp(top, dim=-1, keepdim=True).clamp(max=-torch.finfo(top.dtype).eps)
    return torch.cat([top, torch.log(-torch.expm1(together))], dim=-1)


def divergence(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """Divergence of two distributions given as log-probabilities [..., n]; ``alpha`` as in the options.

    With M = (1 − α)·S + α·T it is (1 − α)·KL(S ‖ M) + α·KL(T ‖ M) between the ends. That vanishes towards both of them:
    0 and 1 are not its limits, but the two KL divergences.
    """
    if alpha == 0:
        return _kl(teacher, student)
    if alpha == 1:
        return _kl(student, teacher)
    mixture = torch.logaddexp(student + math.log1p(-alpha), teacher + math.log(alpha))
    return (1 - alpha) * _kl(student, mixture) + alpha * _kl(teacher, mixture)


def _kl(one: Tensor, other: Tensor) -> Tensor:
    return (one.exp() * (one - other)).sum(dim=-1)
