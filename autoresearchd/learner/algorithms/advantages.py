"""How much better an answer was than expected: advantages within groups, of single answers, and over a session.

All is computed in float64, from rewards and values that are finite.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from autoresearchd.learner.data.trajectories import all_equal


class Scale(StrEnum):
    """What group advantages are divided by.

    ``std``: the standard deviation of the group (GRPO). ``none``: nothing (Dr. GRPO): a group that is nearly all right
    or nearly all wrong does not weigh more than others.
    """

    STD = "std"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages [N], 0 where there is no signal, and what became of the groups.

    signal: [N], bool: what can be learned from. groups: how many; zero_variance: those whose rewards are all equal (of
    single answers: equal to all neighbours'); singles: those with one member; approximated: single answers with a
    baseline over neighbours; alone: single answers without one.
    """

    advantages: Tensor
    signal: Tensor
    groups: int
    zero_variance: int
    singles: int
    approximated: int
    alone: int


@dataclass(frozen=True, slots=True)
class StepAdvantages:
    """Advantages [T] and the returns [T] that values should foretell."""

    advantages: list[float]
    returns: list[float]


def group_advantages(
    rewards: Tensor,
    groups: Sequence[Hashable],
    *,
    scale: Scale = Scale.STD,
    leave_one_out: bool = False,
    neighbours: Mapping[int, Sequence[int]] | None = None,
) -> GroupAdvantages:
    """Advantages of answers within the groups that answered the same state; those of a group need not stand together.

    A_i = (r_i − mean)/(std + ε), std with n − 1 in the denominator: GRPO (Shao et al. 2024, arXiv:2402.03300). Without
    the division: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783). With ``leave_one_out`` the mean is that of the others,
    r_i − Σ_{j≠i} r_j/(n − 1), which does not depend on the answer itself: RLOO (Ahmadian et al. 2024,
    arXiv:2402.14740). ``neighbours`` (see ``nearest``) are the baseline of groups of one member.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    advantages, signal = torch.zeros_like(rewards), torch.zeros(len(rewards), dtype=torch.bool)
    zero_variance = approximated = alone = 0
    for where in members.values():
        own = rewards[where]
        if len(where) > 1:
            difference = own - own.mean()
            if leave_one_out:
                difference = difference * (len(own) / (len(own) - 1))
        elif others := list((neighbours or {}).get(where[0], ())):
            approximated += 1
            own, difference = rewards[[*where, *others]], own - rewards[others].mean()
        else:
            alone += 1
            continue
        if all_equal(own.tolist()):
            zero_variance += 1
            continue
        advantages[where] = difference if scale is Scale.NONE else difference / (own.std(correction=1) + 1e-6)
        signal[where] = True
    singles = sum(len(where) == 1 for where in members.values())
    return GroupAdvantages(advantages, signal, len(members), zero_variance, singles, approximated, alone)


def nearest(sessions: Sequence[Hashable], times: Sequence[float], k: int) -> dict[int, list[int]]:
    """For each answer the k of its session that are nearest in time; of two as near, the earlier.

    As a baseline an approximation: neighbours answered other states, and later ones have even seen the answer's
    outcome, which makes the baseline depend on what it is a baseline for (a bias).
    """
    orders: dict[Hashable, list[int]] = {}
    for index in sorted(range(len(times)), key=lambda i: (times[i], i)):
        orders.setdefault(sessions[index], []).append(index)
    found: dict[int, list[int]] = {}
    for order in orders.values():
        for spot, index in enumerate(order):
            around = [*order[max(0, spot - k) : spot][::-1], *order[spot + 1 : spot + 1 + k]]
            found[index] = sorted(around, key=lambda i: abs(times[i] - times[index]))[:k]
    return found


def gae(
    rewards: Sequence[float],
    values: Sequence[float],
    *,
    gamma: float,
    lam: float,
    following: Sequence[Sequence[int]],
    bootstrap: Sequence[float],
) -> StepAdvantages:
    """Generalised advantage estimation over a sequence of experiments, in the order in which they were proposed.

    δ_t = r_t + γ·V(s_{t+1}) − V(s_t), A_t = Σ_l (γλ)^l δ_{t+l} = δ_t + γλ·A_{t+1} (Schulman et al. 2016,
    arXiv:1506.02438, Eq. 16); the returns are A_t + V(s_t). Where one state is answered several times at once, several
    steps follow a step: V(s_{t+1}) and A_{t+1} are then the means over them, and none is paid for what was answered
    beside it. At a step that no step follows the record ends: its next value is that of ``bootstrap``.

    following: the steps that follow each step, all later than it. bootstrap: [T], read where no step follows.
    """
    advantages = [0.0] * len(rewards)
    for t in reversed(range(len(rewards))):
        after = following[t]
        worth = math.fsum(values[j] for j in after) / len(after) if after else bootstrap[t]
        flowing = math.fsum(advantages[j] for j in after) / len(after) if after else 0.0
        advantages[t] = rewards[t] + gamma * worth - values[t] + gamma * lam * flowing
    return StepAdvantages(advantages, [a + v for a, v in zip(advantages, values, strict=True)])


def normalised(advantages: Tensor) -> Tensor:
    """Advantages [N] shifted and scaled to the mean 0 and the standard deviation 1; one alone, or equal ones, are 0."""
    if len(advantages) < 2 or all_equal(advantages.tolist()):
        return torch.zeros_like(advantages)
    return (advantages - advantages.mean()) / (advantages.std(correction=1) + 1e-8)
