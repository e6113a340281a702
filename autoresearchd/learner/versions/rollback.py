"""Whether the version in use earns less than the one before it, told from live rewards without looking too often.

Rewards of a session drift: what is left to improve gets harder. So the version before is not compared as it was, but as
the trend of both lets one expect it to be by now, where that falls. A trend over a few noisy rewards says little, so it
is shrunk (ridge regression: Hastie, Tibshirani & Friedman, *The Elements of Statistical Learning*, 2009, §3.4.1). The
difference is bootstrapped, the trend with it (Efron & Tibshirani, *An Introduction to the Bootstrap*, 1993, ch. 16).
Looks come after 16, 32, 64 and 128 experiments, and each may spend half as much of the error as the one before it.

That a version which is as good is rolled back in one session of twenty at most is measured and not proved
(``benchmarks/rollback.py``): for steady rewards, for rewards that fall by 0.01 with each experiment, and for such as
fall fast and then slowly. A trend that is shrunk falls short of a steeper one, so that ``alpha`` is below that level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RollbackOptions:
    """When a version is taken for worse.

    first: experiments before the first look; looks: how many there are, each after twice as many as the one before, and
    none after the last: by then it is as well known as the one before it. fewest: experiments that must be known of the
    version before. window: experiments of it that are looked at. alpha: how often, by the bootstrap's reckoning, a
    version that is as good may be rolled back. drift: the trend to be reckoned with from the middle of one version to
    the middle of the other, in standard deviations of a reward. least: fall of the mean reward (in its units, σ of the
    metric) below which nothing is done, however sure it is. resamples: of the bootstrap.
    """

    first: int = 16
    looks: int = 4
    fewest: int = 12
    window: int = 128
    alpha: float = 0.03
    drift: float = 0.5
    least: float = 0.1
    resamples: int = 4000


@dataclass(frozen=True, slots=True)
class LiveVerdict:
    """What live rewards say. looked: at how many experiments of the version; 0: too few for a look.

    now: their mean reward; expected: that of the version before, with its trend. p_value: of no fall.
    """

    fell: bool
    looked: int = 0
    now: float = math.nan
    expected: float = math.nan
    p_value: float = 1.0

    @property
    def reason(self) -> str:
        """In words; empty where nothing is to be done."""
        if not self.fell:
            return ""
        return (
            f"live reward fell: {self.now:+.3f} over {self.looked} experiments, {self.expected:+.3f} were to be "
            f"expected after the version before it (p = {self.p_value:.2g})"
        )


def last_look(count: int, options: RollbackOptions | None = None) -> int:
    """Which look is due after ``count`` experiments of a version, from 1; 0: none yet."""
    options = options or RollbackOptions()
    if count < options.first:
        return 0
    return min(options.looks, (count // options.first).bit_length())


def judge(now: Sequence[float], before: Sequence[float], options: RollbackOptions | None = None) -> LiveVerdict:
    """Whether a version fell behind the one before it (or the plain model), from the rewards of both, oldest first.

    The same rewards give the same verdict, so it does no harm to ask again between two looks, or after a restart.
    """
    options = options or RollbackOptions()
    look = last_look(len(now), options)
    if look == 0 or len(before) < max(2, options.fewest):
        return LiveVerdict(False)
    count = options.first << (look - 1)
    new = np.asarray(now[:count], dtype=np.float64)
    old = np.asarray(before[-options.window :], dtype=np.float64)
    # The prior of the trend has ``drift`` standard deviations of a reward over the distance between the two middles, so
    # that the penalty of the squared slope is (distance / drift)², whatever the unit of the reward.
    distance = (len(old) + len(new)) / 2

    def expect(old_places: Places, new_places: Places) -> tuple[Floats, Floats]:
        """By row: the mean to be expected, which is that before with the trend where it falls, and the mean now."""
        old_mean, products, squares = _trend(old, old_places)
        new_mean, more_products, more_squares = _trend(new, new_places)
        slope = (products + more_products) / (squares + more_squares + (distance / options.drift) ** 2)
        return old_mean + np.minimum(slope, 0.0) * distance, new_mean

    stream = np.random.default_rng(0)
    drawn = [stream.integers(len(each), size=(options.resamples, len(each))) for each in (old, new)]
    expected_means, means = expect(drawn[0], drawn[1])
    p_value = (1 + int((expected_means - means <= 0.0).sum())) / (1 + options.resamples)
    expected = float(expect(np.arange(len(old))[None, :], np.arange(len(new))[None, :])[0][0])
    mean = float(new.mean())
    fell = expected - mean >= options.least and p_value <= options.alpha / 2**look
    return LiveVerdict(fell, count, mean, expected, p_value)


def _trend(values: Floats, places: Places) -> tuple[Floats, Floats, Floats]:
    """The mean of the rewards at these places, and the sums of products and squares whose quotient is the slope."""
    rows = values[places]
    mean: Floats = rows.mean(axis=1)
    apart = places - places.mean(axis=1, keepdims=True)
    return mean, (apart * (rows - mean[:, None])).sum(axis=1), (apart**2).sum(axis=1)
