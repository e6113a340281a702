"""The system's clock, behind the Clock port."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class SystemClock:
    """Wall time in UTC, durations from the monotonic clock (it does not jump when the time is set)."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()
