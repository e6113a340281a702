"""Which experiment is built on: whatever the unit of the metric, never a crash, the best at once and others in time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Node
from autoresearchd.domain.labels import Status
from autoresearchd.policy.turn_rules import Tree


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
