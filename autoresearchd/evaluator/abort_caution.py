"""What keeps the promise when the past misleads: caution that grows with each surprise, and audits that look for one.

**Caution** multiplies every threshold. When a good finished run turns out to have dropped further than a look at its
curve would have allowed, caution is multiplied by how far off that look was; each run without such a surprise lets it
decay towards 1. That is adaptive conformal inference (Gibbs & Candès 2021) on the logarithm of the bound's width, and
needs no exchangeable history: drift, a new scale of the loss, a new kind of curve are surprises, whatever their cause.

**Audits** are runs that are never aborted, chosen before they start: a share at random, and one after so many aborts in
a row that the aborts of the past make it unlikely. An unbroken row of aborts is either well earned or the sign that the
comparison broke (after a change of unit every run looks hopeless), and only a finished run can tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from autoresearchd.domain.randomness import derive_seed

MOST_CAUTION = 8.0
"""At this caution hardly anything is ever aborted: the fail-safe."""

_SURCHARGE = 1.2
_LARGEST_STEP = 4.0
_DECAY = 0.95
_SEEDS = 2**31


@dataclass(slots=True)
class Caution:
    """factor: what every threshold is multiplied by, at least 1; surprises: how often it had to grow."""

    factor: float = 1.0
    surprises: int = 0
    observed: int = 0

    def observe(self, ratio: float, good: bool) -> None:
        """Learn from a finished run.

        Args:
            ratio: its highest score, measured against its own final value, over the threshold at that look.
            good: whether it ended in the better half, where improvements come from.
        """
        self.observed += 1
        if not ratio > 1.0:
            self.factor = max(1.0, self.factor * _DECAY)
        elif good:
            self.surprises += 1
            self.factor = min(MOST_CAUTION, self.factor * min(_SURCHARGE * ratio, _LARGEST_STEP))


@dataclass(slots=True)
class Audits:
    """Which runs are audited. seed: of the session; rate: share at random; surprise: how unlikely a row must be.

    aborted, judged: of the rows of aborts that are over; row: aborts in the present one.
    """

    seed: int = 0
    rate: float = 0.0
    surprise: float = 0.01
    aborted: float = 1.0
    judged: float = 1.0
    row: int = 0
    forced: bool = False

    def is_audit(self, number: int) -> bool:
        """Whether the ``number``-th run of the history is never aborted: a pure function of what went before."""
        return self.forced or derive_seed(self.seed, number, "audit") < self.rate * _SEEDS

    def observe(self, number: int, *, aborted: bool, ready: bool) -> None:
        """Learn how a run ended; ready: whether it could have been aborted at all."""
        if not ready:
            self.forced = False
            return
        if aborted:
            self.row += 1
        else:
            self.aborted += self.row
            self.judged += self.row + (0 if self.is_audit(number) else 1)
            self.row = 0
        self.forced = self.row > 0 and (self.aborted / self.judged) ** self.row < self.surprise


@dataclass(slots=True)
class Promise:
    """The promise as audits measured it.

    audited: audit runs that ended; hopeless: those that would have been aborted; lost: of these, the ones that improved
    by more than delta after all; improved: improvements of more than delta among all audits; aborted: runs aborted;
    finished: runs that ended; spared: sum over aborted runs of the share of the budget that was not spent.
    """

    audited: int = 0
    hopeless: int = 0
    lost: int = 0
    improved: int = 0
    aborted: int = 0
    finished: int = 0
    spared: float = 0.0

    @property
    def false_abort_rate(self) -> float | None:
        """Share of the audited improvements that would have been lost; None without one."""
        return self.lost / self.improved if self.improved else None

    @property
    def false_abort_limit(self) -> float:
        """Upper 95% Wilson limit of ``false_abort_rate``; 1 without an audited improvement."""
        return wilson_upper(self.lost, self.improved)

    @property
    def throughput_gain(self) -> float:
        """Full time of all runs over the time that they took."""
        runs = self.aborted + self.finished
        return runs / (runs - self.spared) if runs > self.spared else 1.0


def wilson_upper(hits: int, trials: int, z: float = 1.96) -> float:
    """Upper Wilson limit of a share; 1 for no trials."""
    if trials <= 0:
        return 1.0
    share, extra = hits / trials, z * z / trials
    return (share + extra / 2 + z * math.sqrt(share * (1 - share) / trials + extra / (4 * trials))) / (1 + extra)


@dataclass(slots=True)
class Guard:
    """Caution, audits and the promise together: everything that outlives a run besides the curves."""

    caution: Caution = field(default_factory=Caution)
    audits: Audits = field(default_factory=Audits)
    promise: Promise = field(default_factory=Promise)

    def to_state(self) -> dict[str, Any]:
        """As JSON-able values."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Guard:
        """Read back what ``to_state`` gave."""
        return cls(Caution(**state["caution"]), Audits(**state["audits"]), Promise(**state["promise"]))
