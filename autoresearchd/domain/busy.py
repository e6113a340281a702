"""When a machine is too busy to conclude anything: the σ of decisions beside that of the baseline's first runs.

Imports nothing: ``status`` asks, too.
"""

from __future__ import annotations

TIMES = 5.0
"""How many times the σ of the baseline's first runs is too much."""
CALM = 3.0
"""Below so many times it the machine is quiet again; apart from TIMES, so that a figure at the edge is no news."""


def grown(sigma: float | None, first: float | None, times: float = TIMES) -> bool:
    """Whether σ is so many times what it was at first; never where either is not known, or there was none at first."""
    return sigma is not None and first is not None and first > 0 and sigma >= times * first


def told(sigma: float, first: float) -> str:
    """The fact, and what may be behind it."""
    return (
        f"σ is {sigma:.2g}, {sigma / first:.0f} times the {first:.2g} of when the baseline was first measured: "
        "too much noise to tell most gains. Is the machine busy with something else?"
    )
