"""What an estimated gain may be reported and rewarded as: no more than the values themselves show.

The estimate weighs a run beside the incumbent most (``keep``), so one that happened to be bad, or that held back, makes
a large gain of equal values. The decision knows that by its prior and its spread; a difference in units of σ does not.
"""

from __future__ import annotations

import math

from autoresearchd.evaluator.ledger import Ledger
from autoresearchd.evaluator.noise import mean

EVEN = 0.5
"""Below this probability an improvement is not believed."""


def bounded(gain: float, better: float, ledger: Ledger, experiment: int, incumbent: int) -> float:
    """The estimated gain, held to what the experiment's mean shows against the incumbent's.

    These are the means of the runs that it was kept for, of all later ones, and of those made beside the experiment.
    A gain lies between the differences; where it is not believed, it is at most the least of them, and not below 0.

    Args:
        gain: as estimated, positive when better.
        better: probability of an improvement.
        ledger: with the runs of the experiment.
        experiment: its number.
        incumbent: the number of what it was compared with.
    """
    mine = mean([s.value for s in ledger.samples(experiment) if s.test == experiment])
    its = ledger.samples(incumbent)
    groups = (
        [s.value for s in its if s.test == incumbent],
        [s.value for s in its if s.test != incumbent],
        [s.value for s in its if s.test == experiment],
    )
    shown = [gap for gap in (mine - mean(values) for values in groups if values) if math.isfinite(gap)]
    if not shown:
        return gain
    if better >= EVEN:
        return min(max(shown), max(min(shown), gain))
    return max(0.0, min(gain, *shown)) if gain > 0 else min(0.0, max(gain, min(shown)))


def believed(better: float) -> float:
    """The share of an improvement that is rewarded: none where it is as likely as not, all of it where it is sure."""
    return max(0.0, 2.0 * better - 1.0)
