"""Parent selection by PUCT over the tree of experiments: which measured program the next edit is made on.

The score of a node is Q(s) + c·P(s)·√(1+N) / (1+n(s)), as in AlphaZero (Silver et al. 2018): Q is the best value among
the node and its descendants, P a prior by the rank of the node's own value, n how often the node or a descendant was
selected, N how often any was. A node with a better descendant has no higher Q, a lower P and at least as many visits as
that one, and is never chosen: so it is enough to take a node's own value for its Q.

Values are put on a scale from 0 (the median of the tree, and all that is worse) to 1 (the best): what is chosen depends
on neither unit nor origin of the metric, and a run that diverged cannot flatten the differences between good ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from autoresearchd.domain.experiment import Node
from autoresearchd.domain.labels import Status

CONSIDERED = 1000
"""How many nodes are scored at most: the best ones. Any other has a lower value, and a prior below 1 / 7,000."""

_MEASURED = frozenset({Status.KEEP, Status.DISCARD})
_TIE = 1e-12
_EXPLORATION = 1.0
"""The c of the formula."""


class Tree:
    """The tree of one segment's experiments. maximize: whether larger values are better."""

    def __init__(self, *, maximize: bool) -> None:
        self._sign = -1.0 if maximize else 1.0
        self._parents: dict[int, int | None] = {}
        self._ranked: list[tuple[float, int]] = []  # (value, smaller for better; number) of all that can be selected
        self._visits: dict[int, int] = {}  # of a node and its descendants
        self._selections = 0
        self._awaited: dict[int, int] = {}  # visits of nodes that are not known yet
        self.newest = -1
        """The highest number known; −1 while there is none."""

    def add(self, nodes: Iterable[Node]) -> None:
        """Take decided experiments in; those that are known already are passed over."""
        found: list[tuple[float, int]] = []
        for node in sorted(nodes, key=lambda n: n.number):
            if node.number in self._parents:
                continue
            self._parents[node.number] = node.parent if node.parent in self._parents else None
            self.newest = max(self.newest, node.number)
            if node.status in _MEASURED and math.isfinite(node.value):
                found.append((self._sign * node.value, node.number))
            self._count(node.number, self._awaited.pop(node.number, 0))
        self._ranked = sorted([*self._ranked, *found])

    def visited(self, visits: Mapping[int, int]) -> None:
        """Count earlier selections: how often each node was itself selected."""
        for number, times in visits.items():
            if number in self._parents:
                self._count(number, times)
            else:
                self._awaited[number] = self._awaited.get(number, 0) + times

    def visit(self, number: int) -> None:
        """Count one selection."""
        self.visited({number: 1})

    def _count(self, number: int, times: int) -> None:
        """Visits of a node count for its ancestors, too."""
        at: int | None = number if times > 0 else None
        self._selections += max(times, 0)
        while at is not None:
            self._visits[at] = self._visits.get(at, 0) + times
            at = self._parents[at]

    def select(self) -> int:
        """Number of the node with the highest score; of equal ones the better, then the older.

        The visit is not counted here: ``visit`` is told once the experiment is opened.
        """
        if not self._ranked:
            raise ValueError("no experiment of this tree has been measured: there is none to build on")
        considered = self._ranked[:CONSIDERED]
        floor = self._ranked[len(self._ranked) // 2][0]
        span = floor - self._ranked[0][0]
        prior = sum(1.0 / rank for rank in range(1, len(considered) + 1))
        weight = _EXPLORATION * math.sqrt(1 + self._selections) / prior
        chosen, highest = -1, -math.inf
        for rank, (value, number) in enumerate(considered, start=1):
            quality = max(0.0, (floor - value) / span) if span > 0 else 0.0
            score = quality + weight / rank / (1 + self._visits.get(number, 0))
            if score > highest + _TIE:
                chosen, highest = number, score
        return chosen
