"""GRPO and its kin on stored completions: DAPO's clipping and token mean by default, GSPO by option.

GRPO: Shao et al. 2024 (arXiv:2402.03300), Eq. 3. DAPO: Yu et al. 2025 (arXiv:2503.14476), §3.1 and §3.3. Dr. GRPO: Liu
et al. 2025 (arXiv:2503.20783). GSPO: Zheng et al. 2025 (arXiv:2507.18071).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoresearchd.learner.algorithms import scoring
from autoresearchd.learner.algorithms.learnable import Learnable
from autoresearchd.learner.algorithms.train_options import GrpoOptions, Mean, Scale, TrainOptions
from autoresearchd.learner.data.examples import Example
from autoresearchd.learner.data.trajectories import all_equal


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages [N] in float64, 0 where there is no signal; signal [N], bool: what can be learned from."""

    advantages: Tensor
    signal: Tensor
    counts: Mapping[str, int]


def group_advantages(
    rewards: Tensor,
    groups: Sequence[Hashable],
    *,
    scale: Scale = Scale.STD,
    leave_one_out: bool = False,
    neighbours: Mapping[int, Sequence[int]] | None = None,
) -> GroupAdvantages:
    """Advantages of answers within the groups that answered the same state; those of a group need not stand together.

    A_i = (r_i − mean)/(std + ε), std with n − 1 in the denominator: GRPO. Without the division: Dr. GRPO. With
    ``leave_one_out`` the mean is that of the others, r_i − Σ_{j≠i} r_j/(n − 1), which does not depend on the answer
    itself: RLOO (Ahmadian et al. 2024, arXiv:2402.14740). ``neighbours`` (see ``nearest``) are the baseline of groups
    of one member.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    advantages, signal = torch.zeros_like(rewards), torch.zeros(len(rewards), dtype=torch.bool)
    singles = sum(len(where) == 1 for where in members.values())
    counts = {"groups": len(members), "zero_variance": 0, "singles": singles, "approximated": 0, "alone": 0}
    for where in members.values():
        own = rewards[where]
        if len(where) > 1:
            difference = own - own.mean()
            if leave_one_out:
                difference = difference * (len(own) / (len(own) - 1))
        elif others := list((neighbours or {}).get(where[0], ())):
            counts["approximated"] += 1
            own, difference = rewards[[*where, *others]], own - rewards[others].mean()
        else:
            counts["alone"] += 1
            continue
        if all_equal(own.tolist()):
            counts["zero_variance"] += 1
            continue
        advantages[where] = difference if scale is Scale.NONE else difference / (own.std(correction=1) + 1e-6)
        signal[where] = True
    return GroupAdvantages(advantages, signal, counts)


def nearest(sessions: Sequence[Hashable], times: Sequence[float], k: int) -> dict[int, list[int]]:
    """For each answer the k of its session that are nearest in time; of two as near, the earlier.

    As a baseline an approximation: later ones have seen the answer's outcome, which is a bias.
    """
    orders: dict[Hashable, list[int]] = {}
    for index in sorted(range(len(times)), key=lambda i: (times[i], i)):
        orders.setdefault(sessions[index], []).append(index)
    near: dict[int, list[int]] = {}
    for order in orders.values():
        for spot, index in enumerate(order):
            around = [*order[max(0, spot - k) : spot][::-1], *order[spot + 1 : spot + 1 + k]]
            near[index] = sorted(around, key=lambda i: abs(times[i] - times[index]))[:k]
    return near


def advantages_of(examples: Sequence[Example], options: GrpoOptions) -> GroupAdvantages:
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


def grpo_loss(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    options: GrpoOptions,
    reference: Tensor | None = None,
    total: float | None = None,
) -> scoring.Part:
    """The clipped surrogate with the ratios π_θ/μ, μ being the policy that wrote the completions.

    The divergence from a reference is min(π_θ/μ, CAP)·k3: k3 alone estimates it on tokens that π_θ drew, and each
    stored one that it has unlearned would count by the hundred. With the ratio, which is not held constant, the
    gradient is that of the divergence as well (DeepSeek-V3.2, arXiv:2512.02556, §3.1).

    logprobs, behaviour, reference: log-probabilities [B, T] of the completions' tokens under π_θ, those that were
    stored when they were drawn, at the same temperature, and those under the policy that ``beta`` holds to. advantages:
    of each completion, [B]. mask: [B, T]; completions of groups without signal are left out of it, else they dilute the
    mean. total: as in ``masked_mean``. Figure ``clipped_dual``: share of the tokens at which the dual clip acted.
    """
    behaviour = behaviour.detach()
    ratio = scoring.log_ratios(logprobs, behaviour, mask, options.level).exp()
    clip = options.clip_low, options.clip_high, options.dual_clip
    losses, low, high, dual = scoring.clipped_surrogate(ratio, advantages, mask, *clip)
    loss = scoring.masked_mean(losses, mask, options.mean, total=total)
    if reference is not None and options.beta > 0:
        own, held, acted = (each.where(mask, 0.0) for each in (logprobs, reference.detach(), behaviour))
        divergence = scoring.k3(own, held, (own - acted).clamp(max=math.log(scoring.CAP)))
        loss = loss + options.beta * scoring.masked_mean(divergence, mask, options.mean, total=total)
    figures = scoring.ratio_figures(ratio, low, high, logprobs, behaviour, mask, options.level)
    return scoring.Part(loss, figures | {"clipped_dual": (scoring.share(dual, mask), float(mask.sum()))})


class GrpoObjective(scoring.Objective):
    """The clipped surrogate over answers whose group has a signal; the others are left out of all batches.

    The ratio is to the policy that wrote an answer: one to where an update began would be 1 again, and bound nothing.
    """

    def __init__(
        self, model: Learnable, examples: Sequence[Example], options: TrainOptions, found: GroupAdvantages
    ) -> None:
        groups: dict[tuple[str, str], list[int]] = {}
        for place, each in enumerate(examples):
            if found.signal[place]:
                groups.setdefault((each.trajectory.session, each.trajectory.group), []).append(place)
        size = options.batch  # advantages are constant: a group that is larger than a batch may be cut
        units = [own[at : at + size] for own in groups.values() for at in range(0, len(own), size)]
        super().__init__(model, examples, options, units)
        self._advantages = found.advantages.to(model.device)

    def begin(self, batch: Sequence[int]) -> Mapping[str, float]:
        super().begin(batch)
        if self.options.grpo.mean is Mean.SEQUENCES:
            self.total = float(len(batch))
        return {"advantage": float(self._advantages[list(batch)].abs().mean())}

    def loss(self, part: Sequence[int], *, divergence: bool) -> scoring.Part:
        said = self.policy(part, divergence=divergence)
        logprobs, options = said.logprobs, self.options.grpo
        loss, figures = grpo_loss(
            logprobs,
            said.batch.behaviour.to(logprobs),
            self._advantages[list(part)].to(logprobs),
            said.batch.mask,
            options=options,
            reference=self.base(part, said) if options.beta > 0 else None,
            total=self.total,
        )
        return scoring.Part(loss, figures | self.common(part, said, divergence=divergence))
