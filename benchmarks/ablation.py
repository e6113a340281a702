"""What `finalize --ablate` is worth on what simulated sessions have confirmed, whose truth is known.

The worlds and the sessions are those of ``keep.py`` with programs of equal noise; effects of improvements add up. Of
each confirmed program improvements are taken out from the newest to the oldest, and tested beside the whole by the
function that the daemon calls; at the end the program without all that was dropped is.

    python benchmarks/ablation.py [--sessions 30] [--first 0] [--runs 130]
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from keep import EQUAL_WORLDS, EVERY, NOW, TASK, Ours, Truth, World

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import Run
from autoresearchd.domain.labels import Outcome
from autoresearchd.evaluator.keep.confirm import ABLATED_RULE, RULE, ConfirmRule, next_step


@dataclass
class Found:
    """Sums over sessions. nothing: improvements that bring nothing or harm; lost: worth that went, in σ."""

    sessions: int = 0
    nothing: int = 0
    nothing_dropped: int = 0
    gains: int = 0
    gains_dropped: int = 0
    worth: float = 0.0
    lost: float = 0.0
    refused: int = 0
    runs: int = 0

    def __add__(self, other: Found) -> Found:
        return Found(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def row(self, name: str) -> str:
        tests = max(1, self.nothing + self.gains)
        return (
            f"{name:<44}{self.nothing / tests:>8.0%}{self.nothing_dropped / max(1, self.nothing):>9.0%}"
            f"{self.gains_dropped / max(1, self.gains):>9.0%}{self.worth / self.sessions:>8.1f}"
            f"{self.lost / self.sessions:>8.2f}{self.refused / self.sessions:>9.0%}{self.runs / tests:>7.1f}"
        )


class Ablated(Ours):
    """A session, and the true effects of what it confirmed, oldest first."""

    def __init__(self, world: World, runs: int) -> None:
        super().__init__(world, runs, ConfirmRule(), EVERY)
        self.confirmed = list[float]()

    def _settle(self, verdict: Verdict, runs: Sequence[Run]) -> None:
        worths = [*(worth for _, worth in self._past), self._worth]
        super()._settle(verdict, runs)
        if verdict.outcome is Outcome.CONFIRMED:
            self.confirmed += [after - before for before, after in pairwise(worths)]

    def test(self, without: float, rule: ConfirmRule = RULE) -> tuple[bool, int]:
        """Whether the program that is worth so much less passes beside the whole, and the runs that this took."""
        runs: list[Run] = []
        while True:
            step = next_step(TASK, runs, self._belief, simpler=True, level=False, rule=rule)
            if isinstance(step, Verdict):
                return step.outcome is Outcome.CONFIRMED, len(runs)
            self._seed += step.seed is None
            seed = self._seed if step.seed is None else step.seed
            truth = Truth(self._confirmed.value - without) if step.of_tip else self._confirmed
            value = self._world.run(truth, seed)
            runs.append(Run(0, 1, 0, seed, NOW, NOW, value=value, of=None if step.of_tip else 0))


def ablate(effects: str, noise: str, runs: int, number: int) -> Found:
    session = Ablated(World(effects, noise, number), runs)
    session.session()
    found, out = Found(1, worth=sum(session.confirmed)), 0.0
    for effect in reversed(session.confirmed):
        dropped, made = session.test(out + effect)
        found.runs += made
        out += effect if dropped else 0.0
        found.nothing, found.gains = found.nothing + (effect <= 0), found.gains + (effect > 0)
        found.nothing_dropped += dropped and effect <= 0
        found.gains_dropped += dropped and effect > 0
    if session.confirmed:
        used, made = session.test(out, ABLATED_RULE)
        found.runs, found.refused = found.runs + made, int(not used)
        found.lost = out if used else 0.0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("sessions", 30), ("first", 0), ("runs", 130), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    print(f"{'':<44}{'nothing':>8}{'dropped':>9}{'of gains':>9}{'worth':>8}{'lost':>8}{'refused':>9}{'runs':>7}")
    total = Found()
    with multiprocessing.Pool(options.processes) as pool:
        for effects, noise, _ in EQUAL_WORLDS:
            numbers = range(options.first, options.first + options.sessions)
            found = sum(pool.map(partial(ablate, effects, noise, options.runs), numbers), Found())
            print(found.row(f"{effects}; {noise}"), flush=True)
            total += found
    print(total.row("all"))


if __name__ == "__main__":
    main()
