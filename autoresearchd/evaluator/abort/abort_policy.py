"""The early-abort policy: hopeless runs are stopped early, and at most one improvement in twenty is lost.

A look ends a run only when two things hold:

- its curve lies above the ``band`` of the good finished programs: too high for a run that ends at the bar (the
  incumbent less delta). That bounds what is lost;
- to finish is not worth its time: the expected gain of its posterior, given the curve so far, is less than what this
  session has gained in as much time.

The bound holds as long as an improvement is exchangeable with the good programs. Three things watch over that:

- **Records.** Were the runs exchangeable, the t-th would be the best so far with probability 1/t, whatever came before
  (Rényi 1962). A bet against that, e ← e·(1 + X − 1/t), has an expectation of at most 1 at any time (an e-process:
  Ramdas et al., *Statistical Science* 38, 2023); what it wins is evidence that the past does not tell the present, and
  raises the limit. It loses no more than to ``LEAST_EVIDENCE``, so that a later change is seen (Shin et al. 2022).
- **Audits** are runs that are never aborted, chosen before they start: a share at random, and one after so many aborts
  in a row that the aborts of the past make it unlikely.
- What finishes against expectation widens the band at once.

All that a decision rests on is a function of the runs observed so far: the same history gives the same decisions, also
after a restart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from autoresearchd.domain.randomness import derive_seed
from autoresearchd.evaluator.abort.band import GRID, MIN_DISTINCT, Finished, Forecast
from autoresearchd.evaluator.abort.learning_curve import Array, Curve, Shape, clean_curve, levels_at


class Reason(StrEnum):
    """Why a look ended as it did."""

    HOPELESS = "the curve lies too high for a run that reaches the bar"
    DEAD = "the loss is no number any more"
    NO_CURVE = "there is no curve to judge"
    ODD_CURVE = "the curve cannot be compared"
    NO_INCUMBENT = "there is no incumbent to beat"
    TOO_EARLY = "it is too early in the run"
    FEW_PROGRAMS = "too few distinct programs have finished"
    AUDIT = "this run is an audit and is never aborted"
    POSSIBLE = "runs that reached the bar have looked like this"
    WORTH = "what it may gain is worth its time"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a running curve and everything that its decision rests on. Values have the sign of the metric.

    bar: what must be beaten; score, threshold: see ``band``, and what the limit was multiplied by (``caution``); gain:
    the expected one; price: what its time has gained elsewhere; distinct: programs that finished; audit: whether this
    run is never aborted.
    """

    abort: bool
    reason: Reason
    progress: float = 0.0
    level: float | None = None
    bar: float | None = None
    forecast: float | None = None
    low: float | None = None
    high: float | None = None
    score: float | None = None
    threshold: float | None = None
    gain: float | None = None
    price: float | None = None
    caution: float = 1.0
    distinct: int = 0
    audit: bool = False
    shape: str = Shape.REGULAR.value

    def explain(self) -> str:
        """One sentence for ``show`` and for the store."""
        text = f"at {self.progress:.0%} of the budget: {self.reason.value}"
        if self.reason is Reason.ODD_CURVE:
            text += f" ({self.shape})"
        if self.reason is Reason.FEW_PROGRAMS:
            text += f" ({self.distinct} of {MIN_DISTINCT})"
        if self.forecast is not None and self.low is not None and self.high is not None and self.bar is not None:
            text += f"; forecast {self.forecast:.5g} [{self.low:.5g}, {self.high:.5g}], bar {self.bar:.5g}"
        if self.score is not None and self.threshold is not None:
            text += f"; evidence {self.score:.2f} of {self.threshold:.2f} needed"
        return text + "."


_SEEDS = 2**31


@dataclass(slots=True)
class Audits:
    """Which runs are audited. rate: share at random; surprise: how unlikely a row must be.

    aborted, judged: of the rows of aborts that are over; row: aborts in the present one.
    """

    seed: int = 0
    rate: float = 0.0
    surprise: float = 0.02
    aborted: float = 1.0
    judged: float = 1.0
    row: int = 0
    forced: bool = False

    def is_audit(self, number: int) -> bool:
        """Whether the ``number``-th run of the history is never aborted: a pure function of what went before."""
        return self.forced or derive_seed(self.seed, number, "audit") < self.rate * _SEEDS

    def observe(self, number: int, *, aborted: bool, ready: bool) -> None:
        """Learn how a run ended; ready: whether it could have been aborted at all."""
        if ready and aborted:
            self.row += 1
        elif ready:
            self.aborted += self.row
            self.judged += self.row + (not self.is_audit(number))
            self.row = 0
        self.forced = ready and self.row > 0 and (self.aborted / self.judged) ** self.row < self.surprise


@dataclass(slots=True)
class Promise:
    """The promise as audits measured it.

    audited: audit runs that ended; hopeless: would have been aborted; improved: better by more than delta; lost: both.
    spared: sum over aborted runs of the share of the budget that was not spent.
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


def wilson_upper(hits: int, trials: int) -> float:
    """Upper Wilson limit of a share at 95%; 1 for no trials."""
    z = 1.96
    if trials <= 0:
        return 1.0
    share, extra = hits / trials, z * z / trials
    return (share + extra / 2 + z * math.sqrt(share * (1 - share) / trials + extra / (4 * trials))) / (1 + extra)


AUDIT_RATE = 0.02
LEAST_EVIDENCE = 0.1
"""The bet on records starts anew from here when it has lost so much."""
CAUTION_POWER, MOST_CAUTION = 0.2, 1.6
"""The limit is multiplied by this power of the evidence, but by no more than this."""
_HALF = 0.0251
"""A share of ``GRID`` counts as reached from half a step before."""
_HUGE = 1e100
_VERSION = 4


class AbortPolicy:
    """Decides at each look whether a run goes on.

    maximize: whether a larger metric is better; maximize_curve: the same for what the curve logs. delta: improvements
    no larger than this do not count. ``observe`` takes each ended run in order, ``look`` judges the running one.
    """

    def __init__(
        self,
        *,
        maximize: bool = False,
        maximize_curve: bool | None = None,
        delta: float = 0.0,
        seed: int = 0,
        audit_rate: float = AUDIT_RATE,
    ) -> None:
        self.delta = delta
        self._sign = -1.0 if maximize else 1.0
        self._curve_sign = self._sign if maximize_curve is None else (-1.0 if maximize_curve else 1.0)
        self._seed, self._rate = seed, audit_rate
        self.reset()

    def reset(self) -> None:
        """Forget everything observed: a new stream, or a new segment."""
        self._finished = Finished()
        self._audits = Audits(self._seed, self._rate)
        self.promise = Promise()
        """Aborts, audits and what they say about false aborts."""
        self._observed = 0
        self._first = self._best = math.inf
        self._evidence = 1.0

    @property
    def caution(self) -> float:
        """What the limit is multiplied by at present."""
        return min(MOST_CAUTION, math.pow(max(1.0, self._evidence), CAUTION_POWER))

    @property
    def is_audit(self) -> bool:
        """Whether the run that is observed next is an audit."""
        return self._audits.is_audit(self._observed)

    # ------------------------------------------------------------------ a run under way
    def look(
        self, steps: Sequence[float], losses: Sequence[float], budget: float, incumbent: float | None, ahead: int = 0
    ) -> Look:
        """Judge a run by its curve so far: losses at steps in the units of its whole ``budget``.

        ahead: runs under way that will be observed before it.
        """
        distinct, is_audit = self._finished.distinct, self._audits.is_audit(self._observed + ahead)
        known: dict[str, Any] = {"distinct": distinct, "audit": is_audit, "caution": self.caution}
        if incumbent is None or not math.isfinite(incumbent):
            return Look(False, Reason.NO_INCUMBENT, **known)
        curve = self._curve(steps, losses, budget)
        if curve is None:
            return Look(False, Reason.NO_CURVE, **known)
        best, progress = self._sign * incumbent, curve.last
        bar = best - self._given()
        known |= {"progress": progress, "bar": self._sign * bar, "shape": curve.shape.value}
        known["level"] = self._curve_sign * float(curve.losses[-1])
        enough = distinct >= MIN_DISTINCT
        if curve.shape is Shape.DEAD:
            return Look(enough and not is_audit, Reason.DEAD if enough else Reason.FEW_PROGRAMS, **known)
        if curve.shape is not Shape.REGULAR:
            return Look(False, Reason.ODD_CURVE, **known)
        levels = levels_at(curve, GRID)
        cell = int(np.searchsorted(GRID, progress + _HALF)) - 1
        if cell < 0 or not math.isfinite(levels[cell]):
            return Look(False, Reason.TOO_EARLY, **known)
        band = self._finished.band()
        if band is None or not band.known[cell]:
            return Look(False, Reason.FEW_PROGRAMS, **known)
        level = float(levels[cell])
        expected = band.forecast(cell, level)
        gain, price = expected.gain(best), self._price(best, 1 - progress)
        known |= self._described(expected) | {"level": self._curve_sign * level, "gain": gain, "price": price}
        if not enough:
            return Look(False, Reason.FEW_PROGRAMS, **known)
        score, limit = float(band.scores(levels, bar, self._noise())[cell]), band.limit * self.caution
        if not (math.isfinite(score) and math.isfinite(limit)):
            return Look(False, Reason.POSSIBLE, **known)
        known |= {"score": score, "threshold": limit}
        if not score > limit:
            return Look(False, Reason.POSSIBLE, **known)
        if not gain < price:
            return Look(False, Reason.WORTH, **known)
        return Look(not is_audit, Reason.AUDIT if is_audit else Reason.HOPELESS, **known)

    def _described(self, forecast: Forecast) -> dict[str, float]:
        low, high = sorted((self._sign * forecast.low, self._sign * forecast.high))
        return {"forecast": self._sign * forecast.mean, "low": low, "high": high}

    def _price(self, best: float, left: float) -> float:
        """What so much of a budget has gained in this session, as if one improvement were about to come (Laplace)."""
        spent = self.promise.aborted + self.promise.finished - self.promise.spared
        least = self._finished.tolerance(self._given())
        gained = max(0.0, self._first - best) if math.isfinite(self._first) else 0.0
        return float((gained + least) / (spent + 1) * left)

    def _curve(self, steps: Any, losses: Any, budget: float) -> Curve | None:
        curve = clean_curve(steps, losses, budget)
        if curve is None or self._curve_sign > 0:
            return curve
        return Curve(curve.progress, -curve.losses, curve.shape)

    def _given(self) -> float:
        """Delta as given, which alone moves the bar: without noise every improvement counts."""
        return max(0.0, self.delta) if math.isfinite(self.delta) else 0.0

    def _noise(self) -> float:
        """Half a standard deviation between seeds, of which delta is two."""
        return self._given() / 4

    # ------------------------------------------------------------------ a run that ended
    def observe(
        self,
        steps: Sequence[float],
        losses: Sequence[float],
        budget: float,
        final: float | None,
        *,
        aborted: bool = False,
        spared: bool = False,
        another: bool = False,
    ) -> None:
        """Learn from a run that ended, ``final`` None where it was aborted or crashed; runs come in order, each once.

        spared: a check would have ended it, were it no audit. another: it is known to be no program of before.
        """
        aborted = aborted or final is None
        ready = self._finished.distinct >= MIN_DISTINCT
        curve = self._curve(steps, losses, budget)
        self.promise.aborted += aborted
        self.promise.finished += not aborted
        if aborted and curve is not None:
            self.promise.spared += max(0.0, 1.0 - curve.last)
        end = math.inf if final is None or aborted or not math.isfinite(final) else self._sign * final
        if abs(end) < _HUGE and curve is not None and curve.shape is Shape.REGULAR:
            self._learn(levels_at(curve, GRID), end, spared, another)
        if self._observed:
            self._evidence *= 1 + float(end < self._best) - 1 / (self._observed + 1)
            self._evidence = min(max(self._evidence, LEAST_EVIDENCE), _HUGE)
        self._first = end if self._first == math.inf else self._first
        self._best = min(self._best, end)
        self._audits.observe(self._observed, aborted=aborted, ready=ready)
        self._observed += 1

    def _learn(self, levels: Array, final: float, spared: bool, another: bool) -> None:
        if self.is_audit:
            bar, band = self._best - self._given(), self._finished.band()
            improved = math.isfinite(bar) and final < bar
            above = (
                band is not None and float(band.scores(levels, bar, self._noise()).max()) > band.limit * self.caution
            )
            hopeless = spared or (above and self._finished.distinct >= MIN_DISTINCT)
            self.promise.audited += 1
            self.promise.hopeless += hopeless
            self.promise.improved += improved
            self.promise.lost += improved and hopeless
        self._finished.add(levels, final, self._observed, self._given(), another=another)

    # ------------------------------------------------------------------ state
    def to_state(self) -> dict[str, Any]:
        """Everything learned, as JSON-able values: a new policy with the same arguments goes on from here."""
        return {
            "version": _VERSION,
            "observed": self._observed,
            "best": self._best if math.isfinite(self._best) else None,
            "first": self._first if math.isfinite(self._first) else None,
            "evidence": self._evidence,
            "delta": self.delta,
            "audits": asdict(self._audits),
            "promise": asdict(self.promise),
            "finished": self._finished.to_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go on from what ``to_state`` gave; False, and nothing changes, for a state of another version."""
        if state.get("version") != _VERSION:
            return False
        self._finished = Finished.from_state(state["finished"])
        self._audits, self.promise = Audits(**state["audits"]), Promise(**state["promise"])
        self._observed = int(state["observed"])
        self._best = math.inf if state["best"] is None else float(state["best"])
        self._first = math.inf if state["first"] is None else float(state["first"])
        self._evidence, self.delta = float(state["evidence"]), float(state["delta"])
        return True
