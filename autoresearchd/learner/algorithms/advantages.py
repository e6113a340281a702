"""How much better an answer was than expected: advantages within groups, of single answers, and over a session.

Rewards are refused where they are not finite. All is computed in float64 and given in the rewards' own type.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.data.trajectories import all_equal


class Scale(StrEnum):
    """What group advantages are divided by.

    ``std``: the standard deviation of the group (GRPO). ``none``: nothing (Dr. GRPO): a group that is nearly all right
    or nearly all wrong does not weigh more than others.
    """

    STD = "std"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Neighbours:
    """How single answers get a baseline: from those next to them in time, in the same session.

    An approximation: neighbours answered other states. Later ones have even seen the answer's outcome, which makes the
    baseline depend on what it is a baseline for (a bias); ``past_only`` leaves them out, and the first answer of a
    session without a baseline.

    sessions, times: of each answer, times in seconds. k: how many neighbours.
    """

    sessions: Sequence[Hashable]
    times: Sequence[float]
    k: int = 8
    past_only: bool = False


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

    advantages: Tensor
    returns: Tensor


def group_advantages(
    rewards: Tensor,
    groups: Sequence[Hashable],
    *,
    scale: Scale = Scale.STD,
    leave_one_out: bool = False,
    neighbours: Neighbours | None = None,
) -> GroupAdvantages:
    """Advantages of answers within the groups that answered the same state.

    A_i = (r_i − mean)/(std + ε), std with n − 1 in the denominator: GRPO (Shao et al. 2024, arXiv:2402.03300). Without
    the division: Dr. GRPO (Liu et al. 2025, arXiv:2503.20783). With ``leave_one_out`` the mean is that of the others,
    r_i − Σ_{j≠i} r_j/(n − 1), which does not depend on the answer itself: RLOO (Ahmadian et al. 2024,
    arXiv:2402.14740).

    Args:
        rewards: [N].
        groups: the group of each answer; answers of one group need not stand together.
        scale: what the differences are divided by.
        leave_one_out: the baseline.
        neighbours: how groups of one member get a baseline; None: they have no signal.

    Raises:
        UsageError: there are no rewards, or one is not finite.
    """
    wide = _rewards(rewards)
    _same_length(rewards, groups=groups)
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    advantages = torch.zeros_like(wide)
    signal = torch.zeros(len(wide), dtype=torch.bool)
    zero_variance = approximated = alone = 0
    singles = [where[0] for where in members.values() if len(where) == 1]
    for where in members.values():
        own = wide[where]
        if len(own) == 1:
            continue
        if _equal(own):
            zero_variance += 1
            continue
        difference = own - own.mean()
        if leave_one_out:
            difference = difference * (len(own) / (len(own) - 1))
        advantages[where] = _scaled(difference, own, scale, 1e-6)
        signal[where] = True
    near = _nearest(singles, groups, neighbours) if neighbours is not None else {}
    for index in singles:
        others = near.get(index, [])
        if not others:
            alone += 1
            continue
        approximated += 1
        together = wide[[index, *others]]
        if _equal(together):
            zero_variance += 1
            continue
        advantages[index] = _scaled(wide[index] - wide[others].mean(), together, scale, 1e-6)
        signal[index] = True
    return GroupAdvantages(
        advantages.to(rewards.device, _floating(rewards)),
        signal.to(rewards.device),
        groups=len(members),
        zero_variance=zero_variance,
        singles=len(singles),
        approximated=approximated,
        alone=alone,
    )


def gae(
    rewards: Tensor,
    values: Tensor,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    terminal: Tensor | None = None,
    following: Sequence[Sequence[int]] | None = None,
    bootstrap: float | Tensor = 0.0,
) -> StepAdvantages:
    """Generalised advantage estimation over a sequence of experiments, in the order in which they were proposed.

    δ_t = r_t + γ·V(s_{t+1}) − V(s_t), A_t = Σ_l (γλ)^l δ_{t+l} = δ_t + γλ·A_{t+1} (Schulman et al. 2016,
    arXiv:1506.02438, Eq. 16); the returns are A_t + V(s_t). Where one state is answered several times at once, several
    steps follow a step: V(s_{t+1}) and A_{t+1} are then the means over them, and none is paid for what was answered
    beside it. A *terminal* step ends the research: nothing follows, its next value is 0. At a step that no step
    follows only the record ends (the session goes on, or a new segment begins): its next value is ``bootstrap``.

    Args:
        rewards: [T].
        values: V(s_t), [T].
        gamma: γ, from 0 to 1.
        lam: λ, from 0 (one step) to 1 (Monte Carlo).
        terminal: [T], bool, None: no step is.
        following: the steps that follow each step, all later than it; None: the next one follows each but the last.
        bootstrap: V of the state after a step that no step follows: one number, or [T], read at those steps only.

    Raises:
        UsageError: there are no rewards, a number is not finite, or γ or λ is not between 0 and 1.
        ValueError: a step is followed by one that is not later.
    """
    wide = _rewards(rewards)
    count = len(wide)
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise UsageError(f"γ {gamma} and λ {lam} must be between 0 and 1", hint="take 0.99 and 0.95")
    ends = _flags(terminal, count, "terminal")
    later = [(t + 1,) for t in range(count - 1)] + [()] if following is None else [tuple(each) for each in following]
    if len(later) != count or any(not t < j < count for t, after in enumerate(later) for j in after):
        raise ValueError(f"following: needs later steps for each of {count}, not {later}")
    here = _column(values, count, "values")
    last = [not after and not end for after, end in zip(later, ends, strict=True)]
    beyond = _column(torch.as_tensor(bootstrap, dtype=torch.float64).expand(count), count, "bootstrap", only=last)
    advantages = [0.0] * count
    for t in reversed(range(count)):
        after = () if ends[t] else later[t]
        worth = math.fsum(here[j] for j in after) / len(after) if after else beyond[t]
        flowing = math.fsum(advantages[j] for j in after) / len(after) if after else 0.0
        advantages[t] = float(wide[t]) + gamma * worth - here[t] + gamma * lam * flowing
    returns = [a + v for a, v in zip(advantages, here, strict=True)]
    kind = _floating(rewards)
    return StepAdvantages(
        torch.tensor(advantages, dtype=kind, device=rewards.device),
        torch.tensor(returns, dtype=kind, device=rewards.device),
    )


def normalised(advantages: Tensor, signal: Tensor | None = None, *, scale: Scale = Scale.STD) -> Tensor:
    """Advantages shifted to the mean 0, and to the standard deviation 1 by the scale ``std``, over a whole batch.

    Where there is no signal they stay 0, and count for nothing. A batch of one, or of equal advantages, becomes 0.

    advantages: [N]. signal: [N], bool, None: all. scale: ``none`` shifts only.
    """
    wide = _rewards(advantages, "advantages")
    where = torch.ones_like(wide, dtype=torch.bool) if signal is None else signal.cpu()
    chosen = wide[where]
    result = torch.zeros_like(wide)
    if len(chosen) > 1 and not _equal(chosen):
        result[where] = _scaled(chosen - chosen.mean(), chosen, scale, 1e-8)
    return result.to(advantages.device, _floating(advantages))


def _nearest(singles: Sequence[int], groups: Sequence[Hashable], near: Neighbours) -> dict[int, list[int]]:
    """For each single answer those of its session that are nearest in time; of two as near, the earlier."""
    if near.k < 1:
        raise UsageError(f"{near.k} neighbours are no baseline", hint="take at least 1, 8 is usual")
    if not len(near.sessions) == len(near.times) == len(groups):
        raise ValueError("sessions and times need one entry for each reward")
    orders: dict[Hashable, list[int]] = {}
    for index in sorted(range(len(groups)), key=lambda i: (near.times[i], i)):
        orders.setdefault(near.sessions[index], []).append(index)
    place = {index: spot for order in orders.values() for spot, index in enumerate(order)}
    return {i: _around(orders[near.sessions[i]], place[i], near) for i in singles}


def _around(order: Sequence[int], spot: int, near: Neighbours) -> list[int]:
    """The k nearest to one place of a session's answers, in order of time."""
    time = near.times[order[spot]]
    before, after = spot - 1, spot + 1
    last = spot if near.past_only else len(order) - 1
    found: list[int] = []
    while len(found) < near.k and (before >= 0 or after <= last):
        back = time - near.times[order[before]] if before >= 0 else float("inf")
        ahead = near.times[order[after]] - time if after <= last else float("inf")
        if back <= ahead:
            found.append(order[before])
            before -= 1
        else:
            found.append(order[after])
            after += 1
    return found


def _scaled(difference: Tensor, among: Tensor, scale: Scale, epsilon: float) -> Tensor:
    return difference if scale is Scale.NONE else difference / (among.std(correction=1) + epsilon)


def _equal(rewards: Tensor) -> bool:
    return all_equal(rewards.tolist())


def _rewards(rewards: Tensor, name: str = "rewards") -> Tensor:
    """In float64 on the CPU, checked."""
    if rewards.dim() != 1:
        raise ValueError(f"{name}: shape {tuple(rewards.shape)}, expected [N]")
    if not len(rewards):
        raise UsageError(
            f"there are no {name} to learn from", hint="run experiments with a policy that asks a model first"
        )
    wide = rewards.detach().to("cpu", torch.float64)
    bad = torch.nonzero(~torch.isfinite(wide)).flatten().tolist()
    if bad:
        shown = ", ".join(f"{name}[{i}] = {float(wide[i])}" for i in bad[:3])
        raise UsageError(
            f"{len(bad)} of {len(wide)} {name} are not finite: {shown}",
            hint="leave these trajectories out; no experiment is judged by NaN or infinity",
        )
    return wide


def _column(values: Tensor, count: int, name: str, only: Sequence[bool] | None = None) -> list[float]:
    if values.shape != (count,):
        raise ValueError(f"{name}: shape {tuple(values.shape)}, expected [{count}]")
    column = [float(v) for v in values.detach().to("cpu", torch.float64).tolist()]
    if only is not None:
        column = [v if wanted else 0.0 for v, wanted in zip(column, only, strict=True)]
    _rewards(torch.tensor(column, dtype=torch.float64), name)
    return column


def _flags(flags: Tensor | None, count: int, name: str) -> list[bool]:
    if flags is None:
        return [False] * count
    if flags.shape != (count,) or flags.dtype is not torch.bool:
        raise ValueError(f"{name}: {flags.dtype} of shape {tuple(flags.shape)}, expected bool of shape [{count}]")
    return [bool(flag) for flag in flags.tolist()]


def _floating(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.float32


def _same_length(rewards: Tensor, **columns: Sequence[Hashable]) -> None:
    for name, column in columns.items():
        if len(column) != len(rewards):
            raise ValueError(f"{name}: {len(column)} entries for {len(rewards)} rewards")
