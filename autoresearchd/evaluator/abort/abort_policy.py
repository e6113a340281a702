"""The early-abort policy: at most 5% of the improvements lost, the rest of the hopeless runs stopped early.

A check aborts only when the loss can no longer drop to the bar (the incumbent less delta) by both answers of
``forecast``: the evidence and the combined forecast. All that a decision rests on is a function of the runs observed so
far, so the same history gives the same decisions, also after a restart.

Two things keep the promise when the past misleads. **Caution** multiplies every threshold: where a good finished run
dropped further than a check would have allowed, it grows by how far off that was, and decays towards 1 with each run
without such a surprise (adaptive conformal inference, Gibbs & Candès 2021, on the logarithm of the bound's width).
**Audits** are runs that are never aborted, chosen before they start: a share at random, and one after so many aborts in
a row that the aborts of the past make it unlikely.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from autoresearchd.domain.randomness import derive_seed
from autoresearchd.evaluator.abort.forecast import (
    GRID,
    MIN_DISTINCT,
    Evidence,
    Pairs,
    References,
    Standing,
    Summary,
    forecast,
    spent,
    standing,
    summarise,
    threshold,
    tolerance,
)
from autoresearchd.evaluator.abort.learning_curve import Curve, Shape, clean_curve


class Reason(StrEnum):
    """Why a look ended as it did."""

    HOPELESS = "the loss cannot drop to the bar any more"
    DEAD = "the loss is no number any more"
    NO_CURVE = "there is no curve to judge"
    ODD_CURVE = "the curve cannot be compared"
    NO_INCUMBENT = "there is no incumbent to beat"
    TOO_EARLY = "it is too early in the run"
    FEW_PROGRAMS = "too few distinct programs have finished"
    AUDIT = "this run is an audit and is never aborted"
    POSSIBLE = "the loss can still drop to the bar"
    FORECAST_DISAGREES = "the forecast still reaches the bar"


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a running curve and everything that its decision rests on. Values have the sign of the metric.

    bar: what must be beaten; score: see ``Evidence``; threshold: what it must exceed, caution included; distinct:
    programs compared with; audit: whether this run is never aborted.
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
        if self.score is not None and self.threshold is not None and math.isfinite(self.threshold):
            text += f"; evidence {self.score:.2f} of {self.threshold:.2f} needed"
        return text + "."


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
        """Learn from a finished run. good: whether it ended in the better half, where improvements come from.

        ratio: its highest score, measured against its own final value, over the threshold at that check.
        """
        self.observed += 1
        if not ratio > 1.0:
            self.factor = max(1.0, self.factor * _DECAY)
        elif good:
            self.surprises += 1
            self.factor = min(MOST_CAUTION, self.factor * min(_SURCHARGE * ratio, _LARGEST_STEP))


@dataclass(slots=True)
class Audits:
    """Which runs are audited. rate: share at random; surprise: how unlikely a row must be.

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


ALPHA = 0.3
"""Nominal error budget of a run; the measured rate is far lower, as its looks are so much alike."""
AUDIT_RATE = 0.01
FIRST_LOOK = 0.05
"""Before this share of the budget there is no evidence."""
STRIDE = 0.15
"""A look spends the error budget of no more of the run than this: one that got most of it would end improvements."""
_LOOKS = tuple(range(9, 99, 10))
_VERSION = 3


class AbortPolicy:
    """Decides at each look whether a run goes on.

    maximize: whether a larger metric is better; maximize_curve: the same for what the curve logs. delta: improvements
    no larger than this do not count. ``observe`` takes each ended run in order, ``look`` judges the running one,
    ``succeed`` and ``rerun`` tell of the incumbent's own runs.
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
        self._references = References()
        self._pairs = Pairs()
        self._caution, self._audits = Caution(), Audits(self._seed, self._rate)
        self.promise = Promise()
        """Aborts, audits and what they say about false aborts."""
        self._observed = 0
        self._best = math.inf
        self.begin()

    @property
    def caution(self) -> float:
        """What thresholds are multiplied by at present."""
        return self._caution.factor

    @property
    def is_audit(self) -> bool:
        """Whether the run that comes next, or is under way, is an audit."""
        return self._audits.is_audit(self._observed)

    # ------------------------------------------------------------------ a run under way
    def begin(self) -> None:
        """Another run starts, and nothing of its error budget is spent; ``observe`` implies it."""
        self._looked = 0.0

    def look(self, steps: Sequence[float], losses: Sequence[float], budget: float, incumbent: float | None) -> Look:
        """Judge a run by its curve so far: losses at steps in the units of its whole ``budget``."""
        look = self._look(steps, losses, budget, incumbent)
        self._looked = max(self._looked, look.progress)
        return look

    def _look(self, steps: Sequence[float], losses: Sequence[float], budget: float, incumbent: float | None) -> Look:
        audit, distinct = self.is_audit, self._references.distinct
        if incumbent is None or not math.isfinite(incumbent):
            return Look(False, Reason.NO_INCUMBENT, distinct=distinct, audit=audit)
        curve = self._curve(steps, losses, budget)
        if curve is None:
            return Look(False, Reason.NO_CURVE, distinct=distinct, audit=audit)
        bar = self._sign * incumbent - self._given()
        here = standing(curve)
        known = self._describe(curve, here, bar, audit)
        enough = distinct >= MIN_DISTINCT
        if curve.shape is Shape.DEAD:
            return Look(enough and not audit, Reason.DEAD if enough else Reason.FEW_PROGRAMS, **known)
        if curve.shape is not Shape.REGULAR:
            return Look(False, Reason.ODD_CURVE, **known)
        if here.progress < FIRST_LOOK:
            return Look(False, Reason.TOO_EARLY, **known)
        delta = tolerance(self._references, self._given())
        evidence = self._pairs.weigh(here, bar, self._references, delta) if enough else None
        if evidence is None or evidence.distinct < MIN_DISTINCT:
            return Look(False, Reason.FEW_PROGRAMS, **known)
        allowance = self._allowance(self._looked, curve.last)
        limit = threshold(allowance, evidence.programs, evidence.distinct) * self.caution
        known |= {"score": evidence.score, "threshold": limit, "distinct": evidence.distinct}
        if not evidence.score > limit:
            return Look(False, Reason.POSSIBLE, **known)
        mean = known.get("forecast")
        if mean is None or not self._sign * mean > bar:
            return Look(False, Reason.FORECAST_DISAGREES, **known)
        return Look(not audit, Reason.AUDIT if audit else Reason.HOPELESS, **known)

    def _describe(self, curve: Curve, here: Standing, bar: float, audit: bool) -> dict[str, Any]:
        """What every look records, whatever its outcome."""
        expected, values = forecast(curve, self._references), {}
        if expected is not None:
            low, high = sorted((self._sign * expected.low, self._sign * expected.high))
            values = {"forecast": self._sign * expected.mean, "low": low, "high": high}
        return {
            "progress": here.progress,
            "level": self._curve_sign * here.level,
            "bar": self._sign * bar,
            "caution": self.caution,
            "distinct": self._references.distinct,
            "audit": audit,
            "shape": curve.shape.value,
            **values,
        }

    def _allowance(self, before: float, now: float) -> float:
        """What a look may spend of the error budget, ``before`` being the progress at the last one."""
        return spent(ALPHA, now) - spent(ALPHA, max(before, now - STRIDE))

    def _curve(self, steps: Any, losses: Any, budget: float) -> Curve | None:
        curve = clean_curve(steps, losses, budget)
        if curve is None or self._curve_sign > 0:
            return curve
        return Curve(curve.progress, -curve.losses, curve.shape)

    def _given(self) -> float:
        """Delta as given, which alone moves the bar: without noise every improvement counts."""
        return max(0.0, self.delta) if math.isfinite(self.delta) else 0.0

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
        ready = self._references.distinct >= MIN_DISTINCT
        curve = self._curve(steps, losses, budget)
        self.promise.aborted += aborted
        self.promise.finished += not aborted
        if aborted and curve is not None:
            self.promise.spared += max(0.0, 1.0 - curve.last)
        run = None if aborted else self._summary(curve, final)
        if run is not None:
            self._learn(run, spared, another)
        self._audits.observe(self._observed, aborted=aborted, ready=ready)
        self._observed += 1
        self.begin()

    def succeed(self) -> None:
        """Another program is the incumbent from here on; ``rerun`` takes its runs, the one it was kept for included."""
        self._pairs.succeed()

    def rerun(self, steps: Sequence[float], losses: Sequence[float], budget: float, final: float | None) -> None:
        """Learn from a finished run of the incumbent; it counts as no run of the history and as no further program."""
        run = self._summary(self._curve(steps, losses, budget), final)
        if run is not None:
            self._pairs.add(run)

    def _summary(self, curve: Curve | None, final: float | None) -> Summary | None:
        if curve is None or final is None or not math.isfinite(final) or len(curve.losses) < 2:
            return None
        return summarise(curve, self._sign * final)

    def _learn(self, run: Summary, spared: bool, another: bool) -> None:
        """Compare what looks at a finished run would have said with how it ended; then it becomes a reference."""
        delta = tolerance(self._references, self._given())
        ratios = [evidence.score / limit for evidence, limit in self._in_hindsight(run, run.final, delta)]
        if self.is_audit:
            self._audit(run, spared, delta)
        if ratios:
            self._caution.observe(max(ratios), run.final <= self._references.typical_final())
        self._references.add(run, delta, another=another)
        self._pairs.learn(run)
        self._best = min(self._best, run.final)

    def _audit(self, run: Summary, spared: bool, delta: float) -> None:
        """Count what an audit run says about the promise: against the incumbent, not the luckiest single run."""
        incumbent, promise = self._pairs.final, self.promise
        bar = (self._best if incumbent is None else incumbent) - self._given()
        improved = math.isfinite(bar) and run.final < bar
        hopeless = spared or any(
            evidence.distinct >= MIN_DISTINCT and evidence.score > limit * self.caution
            for evidence, limit in self._in_hindsight(run, bar, delta)
        )
        promise.audited += 1
        promise.hopeless += hopeless
        promise.improved += improved
        promise.lost += improved and hopeless

    def _in_hindsight(self, run: Summary, bar: float, delta: float) -> Iterator[tuple[Evidence, float]]:
        """Looks at every tenth of a finished run against a bar: the evidence, and the score needed without caution."""
        if self._references.distinct < MIN_DISTINCT - 3:
            return
        before = 0.0
        for cell in _LOOKS:
            progress = float(GRID[cell])
            here = Standing(progress, float(run.drops[cell]) + run.final, float(run.slopes[cell]))
            evidence = self._pairs.weigh(here, bar, self._references, delta) if math.isfinite(here.level) else None
            if evidence is not None:
                allowance = self._allowance(before, progress)
                yield evidence, threshold(allowance, evidence.programs, evidence.distinct)
                before = progress

    # ------------------------------------------------------------------ state
    def to_state(self) -> dict[str, Any]:
        """Everything learned, as JSON-able values: a new policy with the same arguments goes on from here."""
        guard: dict[str, Any] = {"caution": self._caution, "audits": self._audits, "promise": self.promise}
        return {
            "version": _VERSION,
            "observed": self._observed,
            "best": self._best if math.isfinite(self._best) else None,
            "looked": self._looked,
            "delta": self.delta,
            "guard": {name: asdict(part) for name, part in guard.items()},
            "references": self._references.to_state(),
            "pairs": self._pairs.to_state(),
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Go on from what ``to_state`` gave; False, and nothing changes, for a state of another version."""
        if state.get("version") != _VERSION:
            return False
        self._references = References.from_state(state["references"])
        self._pairs = Pairs.from_state(state["pairs"])
        guard = state["guard"]
        self._caution, self._audits = Caution(**guard["caution"]), Audits(**guard["audits"])
        self.promise = Promise(**guard["promise"])
        self._observed = int(state["observed"])
        self._best = math.inf if state["best"] is None else float(state["best"])
        self._looked = float(state["looked"])
        self.delta = float(state["delta"])
        return True
