"""What the look at the flow of a program keeps of a value: which constants are in it, and whether it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import NamedTuple


class Way(StrEnum):
    """How a constant reaches what is measured."""

    READS = "reads"
    SPLITS = "splits"
    SEEDS = "seeds"
    MAKES = "makes"
    METRIC = "metric"


class Strength(IntEnum):
    """How a constant is in a value. NUMBER: as a number; MIXED: in numbers of data; DATA: the data is of its making."""

    NUMBER = 0
    MIXED = 1
    DATA = 2


class Constant(NamedTuple):
    """A literal of the program. name: as the search space has it; start, end: its bytes; inline: it has no name."""

    name: str
    start: int
    end: int
    text: str
    inline: bool = False


class Reached(NamedTuple):
    """A constant that reaches what is measured."""

    constant: Constant
    way: Way


class Value(NamedTuple):
    """What a variable may hold, as far as it matters where that came from.

    taints: constants in it; model: it is trained; seen: it came out of something trained; kinds: of objects, by name.
    data: made by a call that makes data.
    """

    taints: Mapping[int, Strength] = {}
    model: bool = False
    seen: bool = False
    data: bool = False
    kinds: frozenset[str] = frozenset()


NOTHING = Value()


def join(*values: Value) -> Value:
    """One value of several: a constant in it counts where it is strongest."""
    if len(values) == 1:
        return values[0]
    taints: dict[int, Strength] = {}
    for value in values:
        for source, strength in value.taints.items():
            if taints.get(source, -1) < strength:
                taints[source] = strength
    return Value(
        taints,
        any(v.model for v in values),
        any(v.seen for v in values),
        any(v.data for v in values),
        frozenset().union(*(v.kinds for v in values)),
    )


def at_least(taints: Mapping[int, Strength], least: Strength) -> dict[int, Strength]:
    """Those constants that are that strong in a value."""
    return {s: x for s, x in taints.items() if x >= least}


def mixed(value: Value) -> Value:
    """The value where its numbers have become part of others."""
    return value._replace(taints={s: max(Strength.MIXED, x) for s, x in value.taints.items()})
