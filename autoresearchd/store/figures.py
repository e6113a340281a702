"""Small statistics for ``status`` in plain Python: importing ``statistics`` or numpy costs more than the answer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoresearchd.store.inflate import inflate


def median(ordered: Sequence[float]) -> float | None:
    """Median of sorted values; None of none."""
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The value that a share of the sorted values does not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def deviation(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample (n − 1); None of fewer than two."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


def mad_confidence(best: float | None, baseline: float | None, values: Sequence[float]) -> float | None:
    """|best − baseline| / MAD, the advisory figure of pi-autoresearch (MAD unscaled); None where it says nothing."""
    if best is None or baseline is None or len(values) < 3:
        return None
    center = median(sorted(values))
    if center is None:
        return None
    mad = median(sorted(abs(v - center) for v in values))
    return abs(best - baseline) / mad if mad else None


def improvement_pct(best: float | None, baseline: float | None, direction: str) -> float | None:
    """How much better the best is than the baseline, in percent of it (positive: better)."""
    if best is None or baseline is None or baseline == 0:
        return None
    better = best - baseline if direction == "maximize" else baseline - best
    return 100.0 * better / abs(baseline)


def unpack_text(blob: bytes) -> str:
    """Text as ``codec.pack_text`` left it."""
    return inflate(blob).decode("utf-8")
