"""What a search would propose in a state, and what it believes of each constant: for whoever proposes beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = int | float | str | bool

PASSED_BY, UNUSED = "passed_by", "unused"
"""Keys of the side information of a search's proposal in another policy's turn: which answered, and if it did not pass,
why that is not used. The second alone: it could not be asked."""
PASSES = "pass"
"""The form of an answer that passed, as the store has it."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """One constant that may be given another value.

    name: as in ``Proposal.changes``; kind: ``int``, ``float`` or ``choice``; low, high: ends of its range, None for a
    choice. values: others that the search would consider, none of which gives a program that was run before, in order;
    best: the most promising of them; gain, deviation: of the metric, as believed for it (positive: better than now).
    tries: how many of the latest and the best experiments moved it; tried: values that give a program that was run.
    """

    name: str
    value: Value
    kind: str
    low: float | None
    high: float | None
    values: tuple[Value, ...]
    best: Value
    gain: float
    deviation: float
    tries: int = 0
    tried: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a search sees in a state. proposal: constant → value that it would propose; empty: nobody stands by."""

    constants: tuple[Prospect, ...]
    proposal: Mapping[str, Value] = field(default_factory=dict)
