"""Is the new policy better than the old one? Their outcomes compared state by state, and a verdict with its reasons.

Both were asked at the same held-out states, so differences are taken per state; the proposals of one state belong
together, and states are what is resampled (cluster bootstrap, Davison & Hinkley 1997, §3.8). They are not stratified by
session: that would take what differs between sessions for known. Limits are percentiles, expanded for small samples by
the ratio of Student's t to the normal quantile (Hesterberg 2015, "What Teachers Should Know About the Bootstrap").
Those are right for many states only; a sign-flip test beside them (Fisher 1935, §21) is exact for any number: policies
that are equal, so that each difference is as likely with either sign, are promoted with at most the stated probability.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit
from scipy.stats import bootstrap, permutation_test

from autoresearchd.domain.labels import Label
from autoresearchd.domain.quantities import counted
from autoresearchd.learner.gate.judge_answers import Outcome
from autoresearchd.learner.gate.promotion_needs import LEAST

Array = NDArray[np.float64]
Tally = Mapping[str, float]
"""What the proposals of one policy for one state amount to, see ``_tally``."""
_BATCH = 1000  # resamples in memory at once
_NOTHING = 1e-9  # a gain that rounding alone may make
SILENT = "what came of the proposals of one of the two policies says nothing about them"
"""Why a state that was asked about is not compared."""
_COLLAPSES = {"novelty": "its edits repeat what was tried", "variety": "it proposes the same again and again"}


@dataclass(frozen=True, slots=True)
class GateOptions:
    """The constants.

    confidence: of the one-sided limits. valid_lost: by how much the share of valid edits may seem to fall; it may not
    surely fall at all. novelty_kept: the share of the old policy's novelty and variety that the new one must keep.
    gain, power: what the number of states is worked out for.
    """

    confidence: float = 0.95
    least: int = LEAST
    valid_lost: float = 0.15
    novelty_kept: float = 0.5
    gain: float = 0.5
    power: float = 0.8
    resamples: int = 9999
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the new policy takes the old one's place.

    reasons: for people, what speaks against it first. figures: by name; ``_old`` and ``_new`` of both policies,
    ``_gain`` their difference, ``_low`` and ``_high`` its one-sided limits. What cannot be told is left out.
    """

    promote: bool
    reasons: tuple[str, ...]
    figures: Mapping[str, float]


def compare(
    old: Iterable[Outcome],
    new: Iterable[Outcome],
    options: GateOptions = GateOptions(),
    *,
    left_out: Mapping[str, int] | None = None,
) -> Verdict:
    """Compare two policies, the one in place and the one that would take it, by their proposals for the same states.

    Promoted is what earns surely more (the lower limit of the gain is above 0, and equal policies show such a gain too
    rarely), as long as its edits are as often valid and not less novel. A state that one of the two has no rewarded
    outcome of is left out, and counted with those that nobody asked about (``left_out``, by the reason in words).
    ValueError: the edits of one policy were run and those of the other were not.
    """
    before, after = _tallies(old), _tallies(new)
    shared = [key for key in before if key in after and before[key]["rewarded"] and after[key]["rewarded"]]
    pairs = [(before[key], after[key]) for key in shared]
    ran = {not t["not_run"] for t in (*before.values(), *after.values()) if t["valid_rewarded"] > t["duplicates"]}
    if len(ran) > 1:
        raise ValueError("some edits were run and some were not: let one judge look at both policies")
    figures: dict[str, float] = {
        "states": len(pairs),
        "left_out": len(before.keys() | after.keys()) - len(pairs),
        "not_asked": sum((left_out or {}).values()),
        "proposals_old": sum(t["proposals"] for t, _ in pairs),
        "proposals_new": sum(t["proposals"] for _, t in pairs),
    }
    if pairs:
        figures |= _figures(pairs, options)
    refusals = _refusals(figures, options)
    words = [*refusals, *(_findings(figures) if pairs else ())]
    if any(t["not_run"] for pair in pairs for t in pair):
        words.append("valid edits were not run: only validity, duplicates and novelty were compared")
    omitted = {**(left_out or {}), SILENT: int(figures["left_out"])}
    ordered = sorted(omitted.items(), key=lambda item: (-item[1], item[0]))
    words += [f"held-out states that were not compared: {count} ({why})" for why, count in ordered if count]
    return Verdict(not refusals, tuple(words), figures)


# ---------------------------------------------------------------------- figures
def _tallies(outcomes: Iterable[Outcome]) -> dict[str, Tally]:
    """Outcomes of one policy counted by state, in the order in which the states first appear."""
    members: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        members[outcome.key].append(outcome)
    return {key: _tally(each) for key, each in members.items()}


def _tally(members: Sequence[Outcome]) -> Tally:
    valid = [o for o in members if o.valid]
    rewards, of_valid = ([o.reward for o in some if o.reward is not None] for some in (members, valid))
    return {
        "proposals": len(members),
        "valid": len(valid),
        "duplicates": sum(o.label is Label.DUPLICATE for o in members),
        "distinct": len({o.files_hash for o in valid}),
        "rewarded": len(rewards),
        "rewards": math.fsum(rewards),
        "valid_rewarded": len(of_valid),
        "valid_rewards": math.fsum(of_valid),
        "novelty": math.fsum(o.novelty for o in valid),
        "not_run": sum(o.not_run for o in members),
    }


def _figures(pairs: Sequence[tuple[Tally, Tally]], options: GateOptions) -> dict[str, float]:
    """All that can be told of two policies over at least one state."""
    found: dict[str, float] = {}

    def column(side: int, name: str) -> Array:
        return np.array([pair[side][name] for pair in pairs], dtype=np.float64)

    def put(name: str, columns: Sequence[Array], statistic: Callable[..., Array]) -> None:
        """A difference and its limits; one state alone has none."""
        found[f"{name}_gain"] = float(statistic(*columns, axis=-1))
        if len(pairs) > 1:
            found[f"{name}_low"], found[f"{name}_high"] = interval(columns, statistic, options)

    def rates(name: str, part: str, whole: str) -> Array:
        """A share within each state: means of both policies, and the interval of the mean difference."""
        first, second = (column(side, part) / column(side, whole) for side in (0, 1))
        found[f"{name}_old"], found[f"{name}_new"] = float(first.mean()), float(second.mean())
        put(name, (second - first,), _mean)
        return second - first

    def shares(name: str, part: str, whole: str, *, limits: bool = False) -> None:
        """A share over all states together; none where a policy has nothing to share."""
        columns = [column(side, of) for side in (0, 1) for of in (part, whole)]
        if not columns[1].sum() or not columns[3].sum():
            return
        found[f"{name}_old"] = float(columns[0].sum() / columns[1].sum())
        found[f"{name}_new"] = float(columns[2].sum() / columns[3].sum())
        if limits:
            put(name, columns, _ratios_apart)

    gains = rates("reward", "rewards", "rewarded")
    if len(pairs) > 1:
        found["reward_chance"] = _chance(gains, options)
    rates("valid", "valid", "proposals")
    shares("reward_of_valid", "valid_rewards", "valid_rewarded", limits=True)
    shares("novelty", "novelty", "valid")
    shares("variety", "distinct", "valid")
    shares("duplicates", "duplicates", "proposals")
    shares("not_run", "not_run", "proposals")
    if len(pairs) > 1:
        found["spread"] = float(gains.std(ddof=1))
        if found["spread"] > _NOTHING:
            quantiles = float(ndtri(options.confidence) + ndtri(options.power))
            needed = math.ceil((quantiles * found["spread"] / options.gain) ** 2)
            found["states_needed"] = max(options.least, needed)
    return found


def interval(columns: Sequence[Array], statistic: Callable[..., Array], options: GateOptions) -> tuple[float, float]:
    """The one-sided limits, lower and upper, of a statistic along ``axis`` of columns: figures of states by row."""
    count = len(columns[0])
    # A bootstrap's spread is smaller than the sample's by √((n − 1)/n), and its tails are the normal ones.
    tail = float(ndtr(stdtrit(count - 1, 1.0 - options.confidence) * math.sqrt(count / (count - 1))))
    result = bootstrap(
        tuple(columns),
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=options.resamples,
        batch=_BATCH,
        confidence_level=1.0 - 2.0 * tail,
        method="percentile",
        rng=np.random.default_rng(options.seed),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def _chance(gains: Array, options: GateOptions) -> float:
    """Probability of such a mean gain, or a larger one, where each state's is as likely with either sign."""
    found = permutation_test(
        (gains,),
        _mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=options.resamples,
        batch=_BATCH,
        alternative="greater",
        rng=np.random.default_rng(options.seed),
    )
    return float(found.pvalue)


def _mean(values: Array, *, axis: int) -> Array:
    return np.asarray(values.mean(axis=axis))


def _ratios_apart(part_old: Array, whole_old: Array, part_new: Array, whole_new: Array, *, axis: int) -> Array:
    """Difference of two ratios of sums; 0 in a resample in which one of them is not defined."""
    a, b, c, d = (each.sum(axis=axis) for each in (part_old, whole_old, part_new, whole_new))
    defined = (b > 0) & (d > 0)
    return np.asarray(np.where(defined, c / np.where(d > 0, d, 1.0) - a / np.where(b > 0, b, 1.0), 0.0))


# ---------------------------------------------------------------------- words
def _refusals(f: Mapping[str, float], options: GateOptions) -> list[str]:
    """What speaks against the new policy."""
    found = []
    states, sure = int(f["states"]), f"{options.confidence:.0%}"
    enough = f"find a gain of {options.gain:g} with the spread seen"
    if states < options.least:
        needed = f", and about {int(f['states_needed'])} to {enough}" if "states_needed" in f else ""
        found.append(f"too few held-out states: {states}; at least {options.least} are needed{needed}")
    if "reward_low" not in f:
        return found or ["there is no interval of the gain in reward"]
    if not f["reward_low"] > _NOTHING or f["reward_chance"] > 1.0 - options.confidence:
        needed = f"; {int(f['states_needed'])} states would {enough}" if f.get("states_needed", 0.0) > states else ""
        found.append(
            f"it does not surely earn more: the gain of {f['reward_gain']:+.2f} may be {f['reward_low']:+.2f} "
            f"(lower limit, {sure}), and equal policies show one as large with probability "
            f"{f['reward_chance']:.2g}{needed}"
        )
    if not f["valid_new"] > 0:
        found.append("none of its proposals is a valid edit")
    elif f["valid_gain"] < -options.valid_lost or f["valid_high"] < 0:
        found.append(f"valid edits have become fewer: {f['valid_old']:.0%} → {f['valid_new']:.0%}")
    for name, what in _COLLAPSES.items():
        if f.get(f"{name}_new", 0.0) < options.novelty_kept * f.get(f"{name}_old", 0.0) and f["valid_new"] > 0:
            found.append(f"{name} has collapsed, {what}: {f[f'{name}_old']:.2f} → {f[f'{name}_new']:.2f}")
    return found


def _findings(f: Mapping[str, float]) -> list[str]:
    """What was found, whatever follows from it."""
    limits = f", {f['reward_low']:+.2f} to {f['reward_high']:+.2f}" if "reward_low" in f else ""
    found = [
        f"reward {f['reward_old']:.2f} → {f['reward_new']:.2f} (gain {f['reward_gain']:+.2f}{limits}) over "
        f"{counted(int(f['states']), 'state')}, {int(f['proposals_old'])} and {int(f['proposals_new'])} proposals",
        f"valid edits {f['valid_old']:.0%} → {f['valid_new']:.0%}",
    ]
    if "reward_of_valid_old" in f:
        found[-1] += f", reward of a valid edit {f['reward_of_valid_old']:.2f} → {f['reward_of_valid_new']:.2f}"
    if "novelty_old" in f:
        found.append(
            f"novelty {f['novelty_old']:.2f} → {f['novelty_new']:.2f}, variety {f['variety_old']:.2f} → "
            f"{f['variety_new']:.2f}, duplicates {f['duplicates_old']:.0%} → {f['duplicates_new']:.0%}"
        )
    return found
