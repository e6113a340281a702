"""Whose turn is next and what it builds on: roles in turn or by what they pay, and a change after ten failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoresearchd.policy.bandit import choose

INCUMBENT = "incumbent"
PUCT = "puct"
LONG_STREAK = 10
"""So many experiments in a row without a keep change the role, or the parent; so does every tenth after them."""


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

    Args:
        streak: how many of the last experiments in a row were not kept.
        roles: by name; empty where none take turns.
        parents: what is usually built on, ``incumbent`` or ``puct``.
        history: (role, what its turn paid, 0 to 1) of the turns so far, oldest first.
        seed: of the bandit's draw.
        bandit: give turns to roles that pay, else each in its turn.
    """
    if streak <= 0 or streak % LONG_STREAK:
        return Turn(_usual(roles, history, seed, bandit), parents)
    failed = f"{streak} experiments in a row without a keep"
    latest = {role for role, _ in history[-streak:]}
    idle = [role for role in roles if role not in latest]
    if idle:
        role = _longest_idle(idle, history)
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


def _longest_idle(idle: Sequence[str], history: Sequence[tuple[str, float]]) -> str:
    """The one whose last turn is the furthest back; of those that never had one the first."""
    last = {role: at for at, (role, _) in enumerate(history)}
    return min(idle, key=lambda role: last.get(role, -1))
