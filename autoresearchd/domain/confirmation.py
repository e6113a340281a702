"""A confirmation: runs of the tip beside the confirmed program, and what they have shown of the chain between them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from autoresearchd.domain.experiment import FAILURES, Run
from autoresearchd.domain.labels import Outcome

ABLATION, ABLATED = "ablation", "ablated"
"""Why a program that is no experiment's runs beside the confirmed one; the name of its tree follows."""


def ablates(why: str) -> str:
    """Which of the two a confirmation is for; empty: neither."""
    kind = why.partition(" ")[0]
    return kind if kind in (ABLATION, ABLATED) else ""


class Improvement(NamedTuple):
    """How much better a program is than the baseline, which would measure ``base`` beside it; percent: None: of 0."""

    base: float
    gain: float
    percent: float | None


def improvement(baseline: float, best: float, gain: float | None, *, minimize: bool) -> Improvement:
    """What a confirmed program has gained. gain: by all confirmations since the baseline, with both sides run in turn.

    The baseline was measured long before, and machines get slower: it counts only where that is not known (None).
    """
    sign = 1 if minimize else -1
    base = baseline if gain is None else best + gain * sign
    gain = (baseline - best) * sign if gain is None else gain
    percent = 100 * gain / abs(base) if base else math.nan
    return Improvement(base, gain, percent if math.isfinite(percent) else None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. gain: mean of the tip's runs against the confirmed program's, positive: better, in its unit.

    error: standard error of the gain; probability: that the tip truly is better; None where there are no figures.
    reason: one sentence with its numbers.
    """

    outcome: Outcome
    gain: float | None
    error: float | None
    probability: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """One test of a chain of keeps, as the store knows it. number: from 0 in its session.

    experiment: whose program is the tip; against: whose is the confirmed one; after: the newest experiment when it
    began, once there is a verdict the last that was decided before that. why: ``gain``, ``limit``, ``stop``,
    ``asked``, ``failures`` or ``doubt``, which has no runs: the tip falls back to what it was kept on (against), by
    what was measured since. pairs: of runs, where so many are asked for; budget: seconds of training, where it is
    another than usual, so that programs are compared only. runs: in order; ``Run.of`` is None where the tip ran,
    else ``against``. moved: the branch, or the tip, went where the verdict wants it.

    In the place of the tip an ``ablation TREE`` has the confirmed program without the improvement that ``experiment``
    is, and without those that were dropped before it; an ``ablated TREE``, where ``experiment`` is ``against``, has it
    without all that were dropped. Neither moves anything.
    """

    session_id: int
    number: int
    segment: int
    experiment: int
    against: int
    after: int
    why: str
    started_at: datetime
    pairs: int | None = None
    budget: float | None = None
    moved: bool = False
    runs: tuple[Run, ...] = ()
    finished_at: datetime | None = None
    verdict: Verdict | None = None

    @property
    def open(self) -> bool:
        return self.finished_at is None

    @property
    def confirmed(self) -> bool:
        """Whether it has moved the branch."""
        return self.moved and self.verdict is not None and self.verdict.outcome is Outcome.CONFIRMED

    @property
    def fell(self) -> bool:
        """Whether its chain has fallen back."""
        return self.moved and self.verdict is not None and self.verdict.outcome is Outcome.FELL

    def leaves_doubt(self, keeps: Iterable[int]) -> bool:
        """Whether it has tested a chain that is open, and its runs do not tell; others compared, or were cut off.

        One of as many pairs as a user asked for leaves none: a whole test may tell.

        keeps: numbers of the chain.
        """
        verdict = self.verdict
        if verdict is None or verdict.outcome is not Outcome.UNDECIDED or (self.pairs, self.budget) != (None, None):
            return False
        failures = [run.of is None for run in self.runs if run.counts and not run.good]
        failed = max(failures.count(True), failures.count(False)) >= FAILURES
        tip = max((number for number in keeps if number <= self.after), default=None)
        return self.experiment == tip and (failed or verdict.gain is not None)

    def program_of(self, run: Run) -> int | None:
        """The experiment whose program ran; None: no experiment's, but one with improvements taken out."""
        return run.of if run.of is not None else None if ablates(self.why) else self.experiment

    @property
    def last_run(self) -> Run | None:
        """The run that was begun last, which may be under way."""
        return self.runs[-1] if self.runs else None
