"""The cheats on the tiny task, by group. Each is what a model might write, at its worst."""

from __future__ import annotations

from tests.integrity.cheat import Cheat
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
