"""The loss of SDPO: the policy that has read the feedback on its answer teaches the policy that has not.

Self-Distillation Policy Optimization (Hübotter et al. 2026), as the project autoresearch-distillation uses it. Student
and teacher score the same tokens, those of the student's own completion; the teacher's prompt holds the feedback as
well. Both distributions are cut to the student's k likeliest tokens and a bucket for all others, so that k + 1 numbers
of each token are compared instead of a vocabulary. The divergence is one of the family of Agarwal et al. 2024
(arXiv:2306.13649).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autoresearchd.errors import UsageError
from autoresearchd.learner.ratios import Level, RatioFigures, check, figures, log_ratios, truncated_weights

TOP = 20
"""k: how many tokens are compared one by one."""


@dataclass(frozen=True, slots=True)
class SdpoOptions:
    """The constants.

    alpha: 0: KL(teacher ‖ student), which covers all that the teacher does; 1: KL(student ‖ teacher), which keeps to
    what it does most; between them the generalised Jensen–Shannon divergence. ratio_cap: of the importance ratio.
    weight_cap: of the truncated importance weights, where the update began with another policy than the one that acted.
    """

    alpha: float = 1.0
    ratio_cap: float = 2.0
    weight_cap: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha {self.alpha} is not between 0 and 1", mend="take 1 (reverse KL) or 0 (forward KL)")
        if self.ratio_cap <= 0 or self.weight_cap <= 0:
            raise UsageError("ratio_cap and weight_cap must be above 0", mend="2 is usual for both")


@dataclass(frozen=True, slots=True)
class SdpoLoss:
    """The loss, to be minimised, and figures on it, detached.

    divergence: from the teacher, mean over the tokens, without ratios and weights. tail: mean probability of the
    student's bucket of all other tokens: where it is large, k is too small. taught: share of the completions with a
    teacher. ratios: ``clipped_high`` is the share above ``ratio_cap``; nothing is clipped below.
    """

    loss: Tensor
    divergence: float
    tail: float
    taught: float
    ratios: RatioFigures
    entropy: float | None
    tokens: int


def sdpo_loss(
    student_top: Tensor,
    teacher_top: Tensor,
    logprobs: Tensor,
    behaviour: Tensor,
    mask: Tensor,
    taught: Tensor,
    *,
    options: SdpoOptions | None = None,
    proximal: Tensor | None = None,
    entropy: Tensor | None = None,
    total: float | None = None,
) -> SdpoLoss:
    """Mean over tokens of ratio · weight · divergence; gradients flow through ``student_top`` alone.

    Args:
        student_top: log-probabilities of the student's k likeliest tokens, [B, T, k], over the whole vocabulary.
        teacher_top: the teacher's of the same tokens (``token_statistics(..., at=indices)``); constant.
        logprobs: of the completions' own tokens under the student, [B, T].
        behaviour: those that were stored when the tokens were drawn.
        mask: [B, T], True on the completions' tokens.
        taught: m_i, [B], bool: whether the teacher knows more than the student (there was feedback to read).
        options: the constants.
        proximal: log-probabilities under the policy with which this update began (as for ``grpo_loss``).
        entropy: of each token's distribution, for the figures only.
        total: tokens of the whole batch, those of taught completions, where this is a part of it.

    Raises:
        UsageError: no completion has a teacher, NaN or infinity.
    """
    options = options or SdpoOptions()
    if taught.shape != mask.shape[:1] or taught.dtype is not torch.bool:
        raise ValueError(
            f"taught: {taught.dtype} of shape {tuple(taught.shape)}, expected one bool for each completion"
        )
    if student_top.shape != teacher_top.shape or student_top.dim() != 3:
        raise ValueError(
            f"student_top of shape {tuple(student_top.shape)} and teacher_top of shape {tuple(teacher_top.shape)} "
            "do not belong together: expected [B, T, k] of both"
        )
    learned = mask & taught.unsqueeze(-1)
    check(
        learned,
        student_top=student_top,
        teacher_top=teacher_top,
        logprobs=logprobs,
        behaviour=behaviour,
        proximal=proximal,
        entropy=entropy,
    )
    logprobs, behaviour = logprobs.detach(), behaviour.detach()
    anchor = behaviour if proximal is None else proximal.detach()
    raw = log_ratios(logprobs, anchor, learned, Level.TOKEN).exp()
    weights = truncated_weights(proximal, behaviour, learned, Level.TOKEN, options.weight_cap)
    student, teacher = with_tail(student_top[learned]), with_tail(teacher_top.detach()[learned])
    each = divergence(student, teacher, options.alpha)
    tokens = int(learned.sum())
    loss = ((raw.clamp(max=options.ratio_cap) * weights)[learned] * each).sum() / (tokens if total is None else total)
    return SdpoLoss(
        loss=loss,
        divergence=float(each.detach().double().mean()),
        tail=float(student.detach()[:, -1].double().exp().mean()),
        taught=float(taught.double().mean()),
        ratios=figures(
            raw, torch.zeros_like(learned), raw > options.ratio_cap, logprobs, behaviour, learned, Level.TOKEN
        ),
        entropy=None if entropy is None else float(entropy.detach()[learned].double().mean()),
        tokens=tokens,
    )


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


def ema_update(teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], rate: float) -> dict[str, Tensor]:
    """The teacher's next parameters: θ_T ← (1 − τ)·θ_T + τ·θ_S, once for each update of the policy.

    A rate of 0 freezes the teacher: what comes back are its own tensors. Whole numbers (buffers) are taken from the
    student. The teacher is kept in float32 where the rate is small: a sum of 8 significant bits does not move by a
    hundredth.

    Args:
        teacher: parameters by name; not changed.
        student: parameters of the same names and shapes.
        rate: τ, from 0 to 1.

    Raises:
        UsageError: the rate is none, the names differ, or a parameter of the student is not finite.
    """
    if not 0 <= rate <= 1:
        raise UsageError(f"the teacher's update rate {rate} is not between 0 and 1", mend="take 0.01, or 0: frozen")
    different = sorted(teacher.keys() ^ student.keys())
    if different:
        raise UsageError(
            f"teacher and student do not have the same parameters: {', '.join(different[:3])}",
            mend="start the teacher from the student's own parameters",
        )
    if rate == 0:
        return dict(teacher)
    return {name: _moved(name, old, student[name].detach(), rate) for name, old in teacher.items()}


def _moved(name: str, old: Tensor, new: Tensor, rate: float) -> Tensor:
    if old.shape != new.shape:
        raise UsageError(
            f"{name}: shape {tuple(old.shape)} in the teacher, {tuple(new.shape)} in the student",
            mend="start the teacher from the student's own parameters",
        )
    if not old.is_floating_point():
        return new.clone()
    if not bool(torch.isfinite(new).all()):
        raise UsageError(
            f"{name}: the student's parameters are NaN or infinite",
            mend="leave the update out, lower the learning rate, and go back to the last checkpoint",
        )
    return torch.lerp(old.detach(), new.to(old), rate)
