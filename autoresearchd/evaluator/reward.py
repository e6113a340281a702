"""The reward of a proposal, for every policy and every learner the same: one formula, its constants in one place.

r = clip(−Δ/σ · p) + λ·η + ν·novelty, or the penalty of the label: the reward of AutoResearch-RL (arXiv:2603.07300) with
the improvement over the incumbent in units of the noise σ. p is the share of it that the decision believes in: 2P − 1
for the probability P of one, nothing below even odds, so that luck earns nothing. The clip is narrow below, so that an
honest failure never costs more than a crash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rapidfuzz.distance import Levenshtein

from autoresearchd.domain.labels import FORBIDDEN, RULES, Label, Status

MAX_CHARACTERS = 4000
"""Of one diff that are compared: enough to tell ideas apart, and a bound on the time (quadratic in the length)."""
FORMULA = "2"
"""Version of the formula and its constants: rewards of different versions must not be mixed."""
WORST, BEST = -1.0, 5.0
"""Bounds of the improvement in σ."""
EFFICIENCY, NOVELTY, NOVEL_FROM = 0.2, 0.1, 0.3
"""λ, ν, and the least distance that counts as novel."""
FLOOR = 1e-4
"""The smallest σ, as a share of the incumbent's value."""
PENALTIES: Mapping[Label, float] = {
    **{label: -2.0 for label, rule in RULES.items() if rule.status is Status.CRASH},
    Label.METRIC_TAMPERING: -5.0,
    Label.NOT_CAUSAL: -5.0,
    Label.CHECK_FAILED: -2.0,
    Label.DUPLICATE: -0.5,
    Label.NO_OP: -0.5,
}
"""By label, in place of everything else."""
_NONE = frozenset({Label.STALE_PARENT, *(label for label, rule in RULES.items() if rule.status is None)})
"""Labels that say nothing about the proposal."""


def changed_lines(diff: str) -> str:
    """The lines that a unified diff adds and removes, signs kept, without its headers and its context."""
    kept = (line for line in diff.split("\n") if line.startswith(("+", "-")) and not line.startswith(("+++ ", "--- ")))
    return "\n".join(kept)[:MAX_CHARACTERS]


def novelty(diff: str, earlier: Iterable[str]) -> float:
    """Distance to the nearest earlier diff: 0 for one that was tried before, 1 for one that shares nothing."""
    own = changed_lines(diff)
    nearest = 1.0
    for other in earlier:
        nearest = min(nearest, Levenshtein.normalized_distance(own, changed_lines(other), score_cutoff=nearest))
    return nearest


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward with its components. formula: version; censored: it rests on a forecast."""

    total: float
    parts: Mapping[str, float]
    formula: str = FORMULA
    censored: bool = False


def reward(
    label: Label,
    improvement: float | None,
    sigma: float | None,
    reference: float | None,
    *,
    sure: float | None = None,
    saved: float = 0.0,
    distance: float = 0.0,
) -> Reward | None:
    """The reward of one experiment; None where its outcome says nothing about the proposal.

    improvement: over the incumbent, positive when better; of an aborted run the forecast's. reference: the incumbent's
    value. sure: probability of an improvement; None where the decision rests on none. saved: η, the share of the
    incumbent's resources that was not needed. distance: novelty of the diff, 0 to 1.
    """
    if label in _NONE:
        return None
    if label in PENALTIES:
        return Reward(PENALTIES[label], {"penalty": PENALTIES[label]})
    if improvement is None or not math.isfinite(improvement):
        return None
    unit = max(sigma or 0.0, FLOOR * abs(reference or 0.0)) or 1.0
    share = max(0.0, 2.0 * sure - 1.0) if improvement > 0 and sure is not None else 1.0
    gain = min(BEST, max(WORST, share * improvement / unit))
    if label in FORBIDDEN:  # no improvement makes it good
        gain = min(gain, 0.0)
    # Thrift is worth something only where nothing was lost by it: doing nothing at all is the most thrifty program.
    thrift = EFFICIENCY * min(1.0, max(-1.0, saved)) if gain > 0 else 0.0
    novel = NOVELTY * min(1.0, distance) if distance >= NOVEL_FROM else 0.0
    parts = {"improvement": gain, "efficiency": thrift, "novelty": novel}
    return Reward(gain + thrift + novel, parts, censored=label is Label.ABORTED_EARLY)


def resources_saved(used: Mapping[str, float], incumbent: Mapping[str, float]) -> float:
    """η: mean share of each resource that the experiment needed less of, −1 to 1; 0 where both report none."""
    shares = [
        min(1.0, max(-1.0, 1.0 - used[name] / incumbent[name]))
        for name in used
        if name in incumbent and math.isfinite(used[name]) and math.isfinite(incumbent[name]) and incumbent[name] > 0
    ]
    return math.fsum(shares) / len(shares) if shares else 0.0
