"""Which role gets the next turn: discounted Thompson sampling over what the turns so far have paid.

Discounted Thompson sampling (Raj and Kalyani 2017, arXiv:1707.07979) draws from each arm's Beta posterior, whose
evidence fades by a constant factor with every turn. It was chosen over discounted UCB (Garivier and Moulines 2011)
because a session has tens of turns and not thousands: keeps are rare, so the confidence bounds of ten arms overlap for
a whole session and UCB goes round-robin, while sampling leans towards what paid from the first keep on. It also does
not give all open slots to one arm while their results are out (Chapelle and Li 2011).

One departure: the prior is no Beta(1, 1) but has the mean of all arms (empirical Bayes). With the uniform prior an arm
that was not heard of lately would be expected to pay every second time, which no role does.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

DISCOUNT = 0.97
"""Of all evidence, with every turn: what is 33 turns old has a third of its weight."""
_PRIOR = 2.0
"""How many turns the prior is worth."""
_REMEMBERED = 400
"""Older turns weigh nothing any more (0.97⁴⁰⁰ < 10⁻⁵)."""


def choose(arms: Sequence[str], history: Sequence[tuple[str, float]], seed: int) -> str:
    """The arm whose turn it is; the same arguments give the same arm.

    Args:
        arms: by name; those without a turn come first, in this order.
        history: (arm, what the turn paid, 0 to 1), oldest first; arms that are no longer there are passed over.
        seed: of the draw.

    Raises:
        ValueError: there are no arms.
    """
    if not arms:
        raise ValueError("no arms to choose from")
    known = {arm: index for index, arm in enumerate(arms)}
    turns = [(known[arm], _share(reward)) for arm, reward in history[-_REMEMBERED:] if arm in known]
    played, paid = [0.0] * len(arms), [0.0] * len(arms)
    means = [0.0] * len(arms)
    counts = [0] * len(arms)
    for age, (arm, reward) in enumerate(reversed(turns)):
        weight = DISCOUNT**age
        played[arm] += weight
        paid[arm] += weight * reward
        means[arm] += reward
        counts[arm] += 1
    if 0 in counts:
        return arms[counts.index(0)]
    usual = sum((total + 0.5) / (count + 1) for total, count in zip(means, counts, strict=True)) / len(arms)
    draw = random.Random(seed)  # noqa: S311  # whose turn it is, is no secret
    samples = [
        draw.betavariate(_PRIOR * usual + won, _PRIOR * (1 - usual) + (of - won))
        for won, of in zip(paid, played, strict=True)
    ]
    return arms[max(range(len(arms)), key=samples.__getitem__)]


def _share(reward: float) -> float:
    """A reward between 0 and 1; what is no number pays nothing."""
    return 0.0 if math.isnan(reward) else min(max(reward, 0.0), 1.0)
