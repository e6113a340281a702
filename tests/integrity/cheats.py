"""The cheats on the tiny task, by group. Each is what a model might write, at its worst."""

from __future__ import annotations

from collections.abc import Iterator

from tests.integrity.cheat import WORTHLESS, Cheat, in_one
from tests.integrity.cheats_of_models import ANSWERS, PEEKING, PRIVATE
from tests.integrity.cheats_of_processes import EXHAUSTION, OUTSIDE, TIME
from tests.integrity.cheats_of_programs import HIDDEN, PATCHES, PRINTS, PROTECTED, SEEDS

GROUPS: dict[str, list[Cheat]] = {
    "prints its own score": PRINTS,
    "patches what it shares": PATCHES,
    "edits what is protected": PROTECTED,
    "chooses its luck": SEEDS,
    "hides its program": HIDDEN,
    "takes the private data": PRIVATE,
    "looks at what it may not": PEEKING,
    "lies in its answers": ANSWERS,
    "takes more time": TIME,
    "exhausts the machine": EXHAUSTION,
    "reaches outside": OUTSIDE,
}
ALL = [cheat for group in GROUPS.values() for cheat in group]

_ENDS = "ends the job as if all were well, with a score"
_BY_NIGHT = {
    *(cheat.name for cheat in HIDDEN),
    "looks ahead a little", "looks ahead, and remembers what it said", "smooths over time without padding",
    "normalises by statistics over time", "counts tokens of the whole batch", "answers for fewer rows",
    "answers with text", "trains on past its budget",
    "floods its log with fake metrics", "patches the server's own module", "makes the checkpoint a pipe",
    "writes no checkpoint", "hedges: half of what it sees, half of what it knows, and remembers",
    "uses the first tokens of the other rows", "returns probabilities that do not sum to one",
    "returns infinite logits", "cuts the shared memory short", "puts its own files into the exchange",
    "leaves a process behind from the model process", "opens all the files that it can",
    "looks ahead in what is no probe: the pages of a file that are in memory tell which rows were asked before",
}  # fmt: skip
"""By day test_simplicity.py, test_probes.py and another cheat of the group hold what is to come of these."""
_IN_ONE = {
    "prints its own score", "patches what it shares", "edits what is protected", "takes the private data",
    "takes more time", "reaches outside",
}  # fmt: skip
"""Groups in which those that are worth nothing are so in one program as well: none disturbs another."""


def _by_day(group: str) -> Iterator[Cheat]:
    worthless = [c for c in GROUPS[group] if c.expected == WORTHLESS and c.name != _ENDS] if group in _IN_ONE else []
    if worthless:
        yield in_one(f"{group}, in every way", worthless)
    yield from (c for c in GROUPS[group] if c not in worthless and c.name not in _BY_NIGHT)


BY_DAY = [cheat for group in GROUPS for cheat in _by_day(group)]
"""What is tried at each test run."""
