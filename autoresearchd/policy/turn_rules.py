"""Whose turn is next and what it builds on: roles in turn or by what they pay, and a change after ten failures.

What pays is found by discounted Thompson sampling (Raj and Kalyani 2017, arXiv:1707.07979): a draw from each arm's Beta
posterior, whose evidence fades by a constant factor with every turn. A session has tens of turns and keeps are rare, so
discounted UCB (Garivier and Moulines 2011) would go round-robin for all of it. One departure: the prior is no
Beta(1, 1) but has the mean of all arms (empirical Bayes), for no role pays every second time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

INCUMBENT = "incumbent"
PUCT = "puct"
LONG_STREAK = 10
"""So many experiments in a row without a keep change the role, or the parent; so does every tenth after them."""
DISCOUNT = 0.97
"""Of all evidence, with every turn: what is 33 turns old has a third of its weight."""
_PRIOR = 2.0
"""How many turns the prior is worth."""
_REMEMBERED = 400
"""Older turns weigh nothing any more (0.97⁴⁰⁰ < 10⁻⁵)."""


def choose(arms: Sequence[str], history: Sequence[tuple[str, float]], seed: int) -> str:
    """The arm whose turn it is; those without a turn come first.

    history: (arm, what the turn paid, 0 to 1), oldest first; arms that are no longer there are passed over.
    """
    known = {arm: index for index, arm in enumerate(arms)}
    turns = [(known[arm], _share(reward)) for arm, reward in history[-_REMEMBERED:] if arm in known]
    rewards = [[reward for arm, reward in turns if arm == index] for index in range(len(arms))]
    if [] in rewards:
        return arms[rewards.index([])]
    played, paid = [0.0] * len(arms), [0.0] * len(arms)
    for age, (arm, reward) in enumerate(reversed(turns)):
        played[arm] += DISCOUNT**age
        paid[arm] += DISCOUNT**age * reward
    usual = sum((sum(own) + 0.5) / (len(own) + 1) for own in rewards) / len(arms)
    draw = random.Random(seed)  # noqa: S311  # whose turn it is, is no secret
    samples = [
        draw.betavariate(_PRIOR * usual + won, _PRIOR * (1 - usual) + (of - won))
        for won, of in zip(paid, played, strict=True)
    ]
    return arms[max(range(len(arms)), key=samples.__getitem__)]


def _share(reward: float) -> float:
    """A reward between 0 and 1; what is no number pays nothing."""
    return 0.0 if math.isnan(reward) else min(max(reward, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. role: empty where the task has none; parent: ``incumbent`` or ``puct``.

    reason: why it is out of the ordinary, in words; empty where it is not.
    """

    role: str
    parent: str
    reason: str = ""


def next_turn(
    streak: int,
    roles: Sequence[str],
    parents: str,
    history: Sequence[tuple[str, float]],
    seed: int,
    *,
    bandit: bool = False,
) -> Turn:
    """The next turn, a pure function of its arguments.

    streak: how many of the last experiments in a row were not kept. parents: what is usually built on, ``incumbent`` or
    ``puct``. history: (role, what its turn paid, 0 to 1), oldest first. bandit: give turns to roles that pay, else each
    in its turn.
    """
    if streak <= 0 or streak % LONG_STREAK:
        return Turn(_usual(roles, history, seed, bandit), parents)
    failed = f"{streak} experiments in a row without a keep"
    latest = {role for role, _ in history[-streak:]}
    idle = [role for role in roles if role not in latest]
    if idle:  # the one whose last turn is the furthest back
        last = {role: at for at, (role, _) in enumerate(history)}
        role = min(idle, key=lambda role: last.get(role, -1))
        return Turn(role, parents, f"{failed}: the turn goes to {role}, which has had none in that time")
    other = INCUMBENT if parents == PUCT else PUCT
    way = "the best so far" if other == INCUMBENT else "an experiment chosen from the whole tree"
    return Turn(_usual(roles, history, seed, bandit), other, f"{failed}: this one builds on {way}")


def _usual(roles: Sequence[str], history: Sequence[tuple[str, float]], seed: int, bandit: bool) -> str:
    if not roles:
        return ""
    if bandit:
        return choose(roles, history, seed)
    last = next((role for role, _ in reversed(history) if role in roles), None)
    return roles[0] if last is None else roles[(roles.index(last) + 1) % len(roles)]
