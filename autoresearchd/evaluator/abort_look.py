"""What one look at a running curve found, whether it ends the run or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autoresearchd.evaluator.forecast_curve import Shape

MIN_DISTINCT = 10
"""Nothing is aborted before so many distinct programs have finished."""


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

    bar: what must be beaten; score: how many spreads the needed drop lies beyond the expected one, and threshold, what
    it must exceed, caution included; p_value: of the score; alpha_spent: share of the error budget gone by now;
    caution: see ``abort_caution``; distinct: programs compared with; audit: whether this run may be aborted at all.
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
    p_value: float | None = None
    alpha_spent: float = 0.0
    caution: float = 1.0
    distinct: int = 0
    audit: bool = False
    shape: str = Shape.REGULAR.value
    models: Mapping[str, float] | None = None

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
