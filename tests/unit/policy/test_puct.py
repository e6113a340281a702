"""Which experiment is built on: whatever the unit of the metric, never a crash, the best at once and others in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Node
from autoresearchd.domain.labels import Status
from autoresearchd.policy.puct import Tree


def select(nodes: list[Node], visits: dict[int, int], *, maximize: bool) -> int:
    tree = Tree(maximize=maximize)
    tree.visited(visits)
    tree.add(nodes)
    return tree.select()


def node(number: int, parent: int | None, value: float, status: Status = Status.DISCARD) -> Node:
    return Node(number, parent, f"{number:040x}", value, status)


STATUSES = st.sampled_from([Status.KEEP, Status.DISCARD, Status.DISCARD, Status.CRASH, Status.CHECKS_FAILED])


@st.composite
def trees(draw: st.DrawFn) -> list[Node]:
    """A baseline and experiments on experiments; whole numbers, so that scaling them is exact."""
    nodes = [node(0, None, draw(st.integers(-50, 50)), Status.KEEP)]
    for number in range(1, draw(st.integers(1, 14))):
        usable = [n.number for n in nodes if n.status in (Status.KEEP, Status.DISCARD)]
        nodes.append(node(number, draw(st.sampled_from(usable)), draw(st.integers(-50, 50)), draw(STATUSES)))
    return nodes


VISITS = st.dictionaries(st.integers(0, 13), st.integers(0, 5), max_size=14)


def rescaled(nodes: list[Node], factor: float, shift: float) -> list[Node]:
    return [Node(n.number, n.parent, n.commit, factor * n.value + shift, n.status) for n in nodes]


@given(trees(), VISITS, st.sampled_from([2.0**-20, 0.5, 3.0, 2.0**20]), st.integers(-1000, 1000))
def test_neither_unit_nor_origin_of_the_metric_matters(
    nodes: list[Node], visits: dict[int, int], factor: float, shift: int
) -> None:
    chosen = select(nodes, visits, maximize=False)
    assert select(rescaled(nodes, factor, 0.0), visits, maximize=False) == chosen
    assert select(rescaled(nodes, 1.0, shift), visits, maximize=False) == chosen


@given(trees(), VISITS)
def test_what_crashed_is_never_built_on(nodes: list[Node], visits: dict[int, int]) -> None:
    chosen = select(nodes, visits, maximize=True)
    assert nodes[chosen].status in (Status.KEEP, Status.DISCARD)


def test_visits_of_descendants_count_for_their_ancestors() -> None:
    """A line of research that was followed ten times gives way to another one of the same promise."""
    nodes = [node(0, None, 3.0, Status.KEEP), node(1, 0, 2.0), node(2, 0, 2.1), node(3, 1, 2.9), node(4, 2, 2.9)]
    assert select(nodes, {}, maximize=False) == 1
    assert select(nodes, {3: 10}, maximize=False) == 2


@given(trees(), VISITS)
def test_scoring_nodes_by_their_best_descendant_would_choose_the_same(
    nodes: list[Node], visits: dict[int, int]
) -> None:
    """The formula in its long form, node by node; what the module's docstring says of it."""
    usable = [n for n in nodes if n.status in (Status.KEEP, Status.DISCARD)]
    ranked = sorted(usable, key=lambda n: (n.value, n.number))
    below = {n.number: {n.number} for n in nodes}
    for n in reversed(nodes):
        if n.parent is not None:
            below[n.parent] |= below[n.number]
    floor, best = ranked[len(ranked) // 2].value, ranked[0].value
    total = sum(times for number, times in visits.items() if number < len(nodes))
    prior = sum(1 / rank for rank in range(1, len(ranked) + 1))

    def score(rank: int, n: Node) -> float:
        lowest = min(other.value for other in usable if other.number in below[n.number])
        quality = max(0.0, (floor - lowest) / (floor - best)) if floor > best else 0.0
        seen = sum(visits.get(number, 0) for number in below[n.number])
        return quality + (1 + total) ** 0.5 / rank / prior / (1 + seen)

    scores = {n.number: score(rank, n) for rank, n in enumerate(ranked, start=1)}
    chosen = select(nodes, visits, maximize=False)
    assert scores[chosen] >= max(scores.values()) - 1e-9
