"""The advisory confidence figure that users of pi-autoresearch know: |best − baseline| / MAD of a segment's values.

It compares the gain with the spread of *ideas*, not with measurement noise, so it grows with any long session and
decides nothing here. pi-autoresearch reads ≥ 2 as likely real, 1 to 2 as marginal, < 1 as within noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median


def mad_confidence(values: Sequence[float], baseline: float | None, best: float | None) -> float | None:
    """|best − baseline| / MAD, where MAD is the unscaled median of |value − median|.

    None where pi-autoresearch gives none: fewer than three values, a MAD of zero, no baseline, no keep better than it.
    """
    finite = [v for v in values if math.isfinite(v)]
    if len(finite) < 3 or baseline is None or best is None or best == baseline:
        return None
    centre = median(finite)
    spread = median(abs(v - centre) for v in finite)
    if not spread > 0:
        return None
    confidence = abs(best - baseline) / spread
    return confidence if math.isfinite(confidence) else None
