"""How values spread, and how likely a spread makes a difference."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; exact for equal values. ValueError when empty."""
    return float(statistics.mean(values))


def estimate_sigma(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n − 1); None for fewer than two finite values; zero for a deterministic metric."""
    finite = [v for v in values if math.isfinite(v)]
    return statistics.stdev(finite) if len(finite) > 1 else None


def mad_confidence(values: Sequence[float], baseline: float | None, best: float | None) -> float | None:
    """The advisory figure of pi-autoresearch: |best − baseline| / MAD, the unscaled median of |value − median|.

    It compares the gain with the spread of *ideas*, not with noise, so it decides nothing. None where they give none.
    """
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 3 or baseline is None or best is None or best == baseline:
        return None
    centre = statistics.median(finite)
    spread = statistics.median(abs(v - centre) for v in finite)
    confidence = abs(best - baseline) / spread if spread > 0 else math.inf
    return confidence if math.isfinite(confidence) else None


def cumulative(z: float) -> float:
    """The standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))
