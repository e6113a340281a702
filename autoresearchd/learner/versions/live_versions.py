"""Which version of the local policy answers in a session, and whether it earns less than the one before it.

Rewards of a session drift: what is left to improve gets harder. So the version before is not compared as it was, but as
the trend of both lets one expect it to be by now, where that falls. A trend over a few noisy rewards says little, so it
is shrunk (ridge regression: Hastie, Tibshirani & Friedman, *The Elements of Statistical Learning*, 2009, §3.4.1). The
difference is bootstrapped, the trend with it (Efron & Tibshirani, *An Introduction to the Bootstrap*, 1993, ch. 16).
Looks come after 16, 32, 64 and 128 experiments, and each may spend half as much of the error as the one before it: a
version that is as good is rolled back in one session of twenty at most (measured: ``benchmarks/rollback.py``).
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoresearchd.domain.errors import AdapterDamaged, AutoresearchdError, StoreError, UsageError
from autoresearchd.domain.policy_versions import BaseModel, PolicyVersion, Rewarded, ServedAdapter
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf
from autoresearchd.models.model_files import base_model, cached, described, same_name
from autoresearchd.store.journal.version_records import VersionRecords

_HINT = (  # how a server's model is told by its hash
    ". If that is the same model, serve it from its folder (`autoresearchd serve DIR`), or name the folder in "
    "config.yaml: `learn: {model: DIR}`"
)
_AGAIN = 64  # experiments that are looked at again: of those that run beside each other, the first may be decided last


class LiveVersions:
    """Which version answers in a session (``ports.Adapters``): that which is promoted for the model at hand.

    Where its files are damaged, the nearest of its parents that was in use takes its place, else the plain model. A
    model is known by its hash; a server that tells none, and whose model lies in no folder known here, by its name.

    policy: the session's, as its proposals name it; place: the model's folder, where the user has named it.
    """

    def __init__(
        self,
        shelf: AdapterShelf,
        store: VersionRecords,
        session_id: int,
        policy: str,
        warn: Callable[[str], None],
        *,
        place: Path | None = None,
    ) -> None:
        self._place = place
        self._bases: dict[BaseModel, BaseModel] = {}
        self._shelf, self._store, self._session_id, self._policy = shelf, store, session_id, policy
        self._warn, self._options = warn, RollbackOptions()
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._checked: dict[tuple[str, str], ServedAdapter | None] = {}
        self._rewards: dict[int, Rewarded] = {}
        self._looked: tuple[str, datetime | None, int] | None = None

    def known(self, base: BaseModel) -> BaseModel:
        """The model with its hash, where a folder of it is known here."""
        with self._lock:
            return self._hashed(base)

    def in_use(self, base: BaseModel) -> ServedAdapter | None:
        """The version for this model to answer with from now on; None: the plain model."""
        with self._lock:
            base = self._hashed(base)
            version = self._promoted(base)
            if version is not None and self._rolled_back(version):
                version = self._promoted(base)
            if version is None:
                return None
            key = (version.version, version.digest)
            if key not in self._checked:
                self._checked = {key: self._whole(version, base)}
            return self._checked[key]

    def sweep(self) -> None:
        """Remove what killed learners have left; what they have finished is listed, and told."""
        try:
            if names := ", ".join(self._shelf.sweep()):
                self._warn(f"{names}: learned and not judged, listed as candidates; see `autoresearchd adapters list`")
        except AutoresearchdError as error:  # the session does without
            self._warn(f"the versions of the local policy could not be looked through: {error.what}")

    # -- which
    def _hashed(self, base: BaseModel) -> BaseModel:
        """A model with its hash, where a folder of it is known here; its files are read once."""
        if base.model_hash is not None:
            return base
        if base not in self._bases:
            place = self._place or cached(base.name, os.environ)
            found = base
            if place is not None:
                try:
                    found = replace(base_model(place), name=base.name or str(place))
                except UsageError as error:
                    self._warn_once(f"{error.what}: versions for {described(base)} are told by its name alone")
            self._bases[base] = found
        return self._bases[base]

    def _promoted(self, base: BaseModel) -> PolicyVersion | None:
        promoted = self._store.promoted_versions()
        found = next((version for version in promoted if self._fits(version, base)), None)
        if found is None and promoted:
            self._warn_once(
                f"no version in use was made for {described(base)}, so the plain model answers; those in use were made "
                f"for another model: {self._shelf.in_use()}{'' if base.model_hash else _HINT}"
            )
        return found

    def _fits(self, version: PolicyVersion, base: BaseModel) -> bool:
        """By hash; where nobody knows that of the model, by the names of it and of what the learner trained."""
        if base.model_hash is not None:
            return version.fits(base)
        try:
            return same_name(self._shelf.manifest_of(version).base.name, base.name)
        except AdapterDamaged as error:
            self._warn_once(f"version {version.version} is not used: {error.what}")
            return False

    def _whole(self, version: PolicyVersion, base: BaseModel) -> ServedAdapter | None:
        """The version, or the nearest parent whose files are whole."""
        for each in (version, *(parent for parent in self._shelf.lineage(version) if self._fits(parent, base))):
            try:
                served = ServedAdapter(each.version, self._shelf.folder_of(each))
            except AdapterDamaged as error:
                self._warn_once(f"version {each.version} is not used: {error.what}")
                continue
            if each is not version:
                self._warn_once(f"version {each.version} answers in the place of {version.version}")
            return served
        self._warn_once(f"the plain model answers in the place of {version.version}")
        return None

    # -- whether it earns what it should
    def _rolled_back(self, version: PolicyVersion) -> bool:
        """Look whether the version fell behind what answered before it; whether it was rolled back."""
        newest = max(self._rewards, default=-1)
        for one in self._store.rewards(self._session_id, max(-1, newest - _AGAIN)):
            if one.policy == self._policy:
                self._rewards[one.number] = one
        rewards = sorted(self._rewards.values(), key=lambda one: one.number)
        since = version.promoted_at
        now = [one for one in rewards if one.version == version.version and (since is None or one.started_at >= since)]
        look = last_look(len(now), self._options)
        if look == 0 or self._looked == (version.version, since, look):
            return False
        self._looked = (version.version, since, look)
        earlier = [one for one in rewards if one.number < now[0].number and one.version != version.version]
        before = [one.reward for one in earlier if one.version == earlier[-1].version]
        verdict = judge([one.reward for one in now], before, self._options)
        if not verdict.fell:
            return False
        with contextlib.suppress(StoreError):  # somebody was faster, or the next look at the store says what is wrong
            restored = self._shelf.roll_back(version.version, verdict.reason)
            name = f"version {restored.version}" if restored else "the plain model"
            self._warn_once(f"version {version.version} is rolled back, {name} answers from now on: {verdict.reason}")
        return True

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._warn(text)


# ---------------------------------------------------------------------- rollback
Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RollbackOptions:
    """When a version is taken for worse.

    first: experiments before the first look; looks: each after twice as many as the one before. fewest, window: of the
    version before, that must be known, and are looked at. alpha: how often, by the bootstrap, a version that is as good
    may be rolled back. drift: the trend to be reckoned with from the middle of one version to the middle of
    the other, in standard deviations of a reward. least: fall of the mean reward (in σ of the metric) below which
    nothing is done, however sure it is.
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


def last_look(count: int, options: RollbackOptions = RollbackOptions()) -> int:
    """Which look is due after ``count`` experiments of a version, from 1; 0: none yet."""
    if count < options.first:
        return 0
    return min(options.looks, (count // options.first).bit_length())


def judge(now: Sequence[float], before: Sequence[float], options: RollbackOptions = RollbackOptions()) -> LiveVerdict:
    """Whether a version fell behind the one before it (or the plain model), from the rewards of both, oldest first.

    The same rewards give the same verdict, so it does no harm to ask again between two looks, or after a restart.
    """
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
