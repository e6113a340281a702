"""Whose turn is next and what it builds on: roles in turn or by what they pay, and a change after ten failures.

What pays is found by discounted Thompson sampling (Raj and Kalyani 2017, arXiv:1707.07979): a draw from each arm's Beta
posterior, whose evidence fades by a constant factor with every turn. A session has tens of turns and keeps are rare, so
discounted UCB (Garivier and Moulines 2011) would go round-robin for all of it. One departure: the prior is no
Beta(1, 1) but has the mean of all arms (empirical Bayes), for no role pays every second time.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from autoresearchd.domain.experiment import Node
from autoresearchd.domain.labels import Status

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
CONSIDERED = 1000
"""How many nodes are scored at most: the best ones. Any other has a lower value, and a prior below 1 / 7,000."""
_MEASURED = frozenset({Status.KEEP, Status.DISCARD})
_EXPLORATION = 1.0
"""The c of the formula."""


def choose(arms: Sequence[str], history: Sequence[tuple[str, float]], seed: int) -> str:
    """The arm whose turn it is; those without a turn come first.

    history: (arm, what the turn paid, 0 to 1), oldest first; arms that are no longer there are passed over.
    """
    known = {arm: index for index, arm in enumerate(arms)}
    turns = [
        (known[arm], 0.0 if math.isnan(reward) else min(max(reward, 0.0), 1.0))
        for arm, reward in history[-_REMEMBERED:]
        if arm in known
    ]
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


class Turn(NamedTuple):
    """One turn. role: empty where the task has none; reason: why it is out of the ordinary, in words, else empty."""

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

    streak: how many of the last experiments in a row were not kept. parents: what is usually built on. history: as of
    ``choose``. bandit: give turns to roles that pay, else each in its turn.
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
    way = "the tip" if other == INCUMBENT else "an experiment chosen from the whole tree"
    return Turn(_usual(roles, history, seed, bandit), other, f"{failed}: this one builds on {way}")


def _usual(roles: Sequence[str], history: Sequence[tuple[str, float]], seed: int, bandit: bool) -> str:
    if not roles:
        return ""
    if bandit:
        return choose(roles, history, seed)
    last = next((role for role, _ in reversed(history) if role in roles), None)
    return roles[0] if last is None else roles[(roles.index(last) + 1) % len(roles)]


class Tree:
    """The tree of one segment's experiments, from which PUCT chooses what the next edit is made on.

    The score of a node is Q(s) + c·P(s)·√(1+N) / (1+n(s)), as in AlphaZero (Silver et al. 2018): Q is the best value
    among the node and its descendants, P a prior by the rank of the node's own value, n how often the node or a
    descendant was selected, N how often any was. A node with a better descendant has no higher Q, a lower P and at
    least as many visits as that one, and is never chosen: so it is enough to take a node's own value for its Q.

    Values are put on a scale from 0 (the median of the tree, and all that is worse) to 1 (the best): what is chosen
    depends on neither unit nor origin of the metric, and a run that diverged cannot flatten the differences between
    good ones. maximize: whether larger values are better. newest: the highest number known; −1 while there is none.
    """

    def __init__(self, *, maximize: bool) -> None:
        self._sign = -1.0 if maximize else 1.0
        self._parents: dict[int, int | None] = {}  # a parent stands before its children
        self._ranked: list[tuple[float, int]] = []  # (value, smaller for better; number) of all that can be selected
        self._selected: Counter[int] = Counter()
        self.newest = -1

    def add(self, nodes: Iterable[Node]) -> None:
        """Take decided experiments in; those that are known already are passed over."""
        for node in sorted(nodes, key=lambda n: n.number):
            if node.number in self._parents:
                continue
            self._parents[node.number] = node.parent if node.parent in self._parents else None
            self.newest = max(self.newest, node.number)
            if node.status in _MEASURED and math.isfinite(node.value):
                self._ranked.append((self._sign * node.value, node.number))
        self._ranked.sort()

    def visited(self, visits: Mapping[int, int]) -> None:
        """Count earlier selections: how often each node, known or not yet, was itself selected."""
        self._selected.update(visits)

    def select(self) -> int:
        """Number of the node with the highest score; of equal ones the better, then the older. No visit is counted."""
        if not self._ranked:
            raise ValueError("no experiment of this tree has been measured: there is none to build on")
        visits = {number: self._selected[number] for number in self._parents}  # of a node and its descendants
        selections = sum(visits.values())
        for number, parent in reversed(self._parents.items()):
            if parent is not None:
                visits[parent] += visits[number]
        considered = self._ranked[:CONSIDERED]
        floor = self._ranked[len(self._ranked) // 2][0]
        span = floor - self._ranked[0][0]
        prior = sum(1.0 / rank for rank in range(1, len(considered) + 1))
        weight = _EXPLORATION * math.sqrt(1 + selections) / prior

        def score(one: tuple[int, tuple[float, int]]) -> float:
            rank, (value, number) = one
            quality = max(0.0, (floor - value) / span) if span > 0 else 0.0
            return quality + weight / rank / (1 + visits[number])

        _, (_, chosen) = max(enumerate(considered, start=1), key=score)
        return chosen
