"""When a session ends by itself, and when its machine is too busy to conclude anything. ``status`` asks both."""

from __future__ import annotations

from typing import NamedTuple

from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.quantities import counted, format_duration

TIMES = 5.0
"""How many times the σ of the baseline's first runs is too much."""
CALM = 3.0
"""Below so many times it the machine is quiet again; apart from TIMES, so that a figure at the edge is no news."""


def noise_has_grown(sigma: float | None, first: float | None, times: float = TIMES) -> bool:
    """Whether σ is so many times what it was at first; never where either is not known or 0."""
    return bool(sigma and first and sigma >= times * first)


def explain_noise(sigma: float, first: float) -> str:
    """The fact, and what may be behind it."""
    return (
        f"σ is {sigma:.2g}, {sigma / first:.0f} times the {first:.2g} of when the baseline was first measured: "
        "too much noise to tell most gains. Is the machine busy with something else?"
    )


class Reached(NamedTuple):
    """A limit that a session has reached. more: the option of ``resume`` that extends it, twice as far."""

    reason: str
    more: str


def limit_reached(limits: Limits, *, experiments: int, seconds: float, usd: float) -> Reached | None:
    """The first limit that a session reached; experiments: without baselines; seconds: of all its daemons together."""
    most, longest, dearest = limits.max_experiments, limits.max_seconds, limits.max_usd
    if most is not None and experiments >= most:
        so_many = "as asked" if experiments == most else f"more than the {most} asked for"
        more = f"--max-experiments {max(1, 2 * experiments)}"
        return Reached(f"{counted(experiments, 'experiment')} done, {so_many}", more)
    if longest is not None and seconds >= longest:
        twice = format_duration(max(1.0, 2 * max(longest, seconds))).replace(" ", "")
        return Reached(f"the time limit of {format_duration(longest)} is reached", f"--max-time {twice}")
    if dearest is not None and usd >= dearest:
        return Reached(f"the spend limit of {dearest:g} USD is reached", f"--max-cost {2 * max(dearest, usd):.2f}")
    return None
