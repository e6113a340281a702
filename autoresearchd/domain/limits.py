"""When a session ends by itself, and when its machine is too busy to conclude anything. ``status`` asks both."""

from __future__ import annotations

from typing import NamedTuple

from autoresearchd.domain.quantities import counted, format_duration

TIMES = 5.0
"""How many times the σ of the baseline's first runs is too much."""
CALM = 3.0
"""Below so many times it the machine is quiet again; apart from TIMES, so that a figure at the edge is no news."""


def noise_has_grown(sigma: float | None, first: float | None, times: float = TIMES) -> bool:
    """Whether σ is so many times what it was at first; never where either is not known, or there was none at first."""
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


def limit_reached(
    *,
    max_experiments: int | None,
    max_seconds: float | None,
    max_usd: float | None,
    experiments: int,
    seconds: float,
    usd: float,
) -> Reached | None:
    """The first limit of a session that is reached; limits and counts are those of the whole session.

    experiments: decided ones, baselines not counted; seconds: of all daemons together.
    """
    if max_experiments is not None and experiments >= max_experiments:
        done = f"{counted(experiments, 'experiment')} done, "
        done += "as asked" if experiments == max_experiments else f"more than the {max_experiments} asked for"
        return Reached(done, f"--max-experiments {max(1, 2 * experiments)}")
    if max_seconds is not None and seconds >= max_seconds:
        twice = format_duration(max(1.0, 2 * max(max_seconds, seconds))).replace(" ", "")
        return Reached(f"the time limit of {format_duration(max_seconds)} is reached", f"--max-time {twice}")
    if max_usd is not None and usd >= max_usd:
        return Reached(f"the spend limit of {max_usd:g} USD is reached", f"--max-cost {2 * max(max_usd, usd):.2f}")
    return None
