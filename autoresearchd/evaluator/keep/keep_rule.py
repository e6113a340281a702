"""The sequential test behind a keep: how likely is a true improvement, and which run would tell most about it.

Runs of the experiment and of the incumbent are compared by generalised least squares, in which runs made for one test
share the machine's drift and runs on one seed share its luck: pairs and single runs each count for what they are
worth. The estimate is weighed against a prior in which most edits change nothing or do harm (spike and slab); what
remains of "no improvement" is Efron's local false discovery rate (*Large-Scale Inference*, 2010, ch. 5), and the ratio
of the two mixtures is Robbins' mixture sequential probability ratio test (*Ann. Math. Stat.* 41, 1970). Being a
posterior, it may be looked at after every run. σ is known from few runs only and is integrated out (Student's t).

Values are *goodness* here: larger is better, whatever the direction of the metric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from autoresearchd.evaluator.keep.noise import Noise, NoiseData, Reading, Sample, mean, readings_of


class Action(StrEnum):
    """What the test says."""

    KEEP = "keep"
    SIMPLER = "simpler"
    DISCARD = "discard"
    AGAIN = "again"


@dataclass(frozen=True, slots=True)
class KeepRule:
    """The constants of the test; chosen on the frontier that ``benchmarks/keep.py`` plots.

    null, gain: shares of edits that change nothing and that improve, before anything is measured; all others harm.
    scales: of effects, in σ of runs made side by side (half-normal, in equal shares), alike for gains and harms.
    keep_at: probability of an improvement that keeps; beside_at: what the runs made side by side must say of it alone.
    material: gains above so many σ (of runs made side by side) are worth extra runs; start_at, go_on_at: probability of
    such a gain from which a test is begun, and continued. most: extra runs for one experiment; share: per experiment in
    the long run, burst: how many may be spent ahead of that. tie: a simpler program may be worse by so many σ; tie_at:
    probability that it is not. gate_at: probability with which a gate must hold. own: runs of the experiment in this
    test without which nothing is kept: one lucky run of a far noisier program looks certain. fallen: by how many
    standard errors later runs of the incumbent may be worse than those it was kept for and still be believed alone.
    """

    null: float = 0.4
    gain: float = 0.17
    scales: tuple[float, ...] = (0.7, 2.0, 6.0)
    keep_at: float = 0.93
    beside_at: float = 0.5
    material: float = 1.0
    start_at: float = 0.068
    go_on_at: float = 0.2
    most: int = 8
    share: float = 0.25
    burst: int = 8
    tie: float = 0.5
    tie_at: float = 0.9
    gate_at: float = 0.95
    own: int = 2
    fallen: float = 2.0

    def price(self, experiments: int, extra: int) -> float:
        """By how much more a first result must promise, for the extra runs that a session has spent already."""
        left = self.burst + self.share * experiments - extra
        return 1.0 + max(0.0, 0.5 * (1.0 - left / self.burst))


@dataclass(frozen=True, slots=True)
class Belief:
    """Posterior probabilities: of an improvement, of a material one, and of a loss that a tie may have at most."""

    better: float
    material: float
    bearable: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a look.

    gain, error: the improvement and its standard error; better, bearable: see ``Belief``. own, seed: of the next run.
    """

    action: Action
    gain: float
    error: float
    better: float
    own: bool = True
    seed: int | None = None
    bearable: float = 1.0


def look(
    readings: Sequence[Reading],
    noise: Noise,
    rule: KeepRule,
    *,
    spent: int = 0,
    price: float = 1.0,
    simpler: bool = False,
    recheck: bool = False,
    least: float = 0.0,
) -> Verdict:
    """Look at what has been measured so far.

    readings: all runs of both programs that can be compared, at least one of each, those of this test last. spent:
    extra runs made for this experiment. price: factor on what a test must promise that has not begun. simpler: a tie is
    kept. recheck: the incumbent is to be run again (``NoiseData.unchecked``). least: a smaller gain is none.
    """
    gain, variance = estimate(readings, noise)
    recheck = recheck and spent < min(rule.most, 1)
    if noise.sigma == 0.0:
        action = Action.SIMPLER if simpler and gain >= 0 else Action.DISCARD
        action = Action.KEEP if gain > 0 and gain >= least else action
        verdict = Verdict(action, gain, 0.0, 1.0 if gain > 0 else 0.0)
        own = sum(r.own and r.test == readings[-1].test for r in readings)
        if action is Action.KEEP:  # a new program may draw lots
            return replace(verdict, action=Action.AGAIN) if own < rule.own and spent < rule.most else verdict
        # A coarse metric may have agreed three times by luck.
        return replace(verdict, action=Action.AGAIN, own=False, seed=readings[-1].seed) if recheck else verdict
    belief = believe(gain, variance, noise, rule)
    verdict = Verdict(Action.DISCARD, gain, noise.sigma * math.sqrt(variance), belief.better, bearable=belief.bearable)
    if belief.better >= rule.keep_at and gain < least:
        return replace(verdict, action=Action.SIMPLER) if simpler else verdict
    if belief.better >= rule.keep_at:
        return _confirmed(verdict, readings, noise, rule, spent)
    promising = belief.material >= (rule.go_on_at if spent else rule.start_at * price)
    if simpler and belief.bearable >= rule.tie_at and not promising:
        return replace(verdict, action=Action.SIMPLER)
    promising = promising or (simpler and belief.bearable >= (0.5 if spent else 0.5 * price))
    if promising and spent < rule.most:
        of_own, seed = next_run(readings, noise)
        return replace(verdict, action=Action.AGAIN, own=of_own, seed=seed)
    if recheck:
        return replace(verdict, action=Action.AGAIN, own=False, seed=readings[-1].seed)
    return replace(verdict, action=Action.SIMPLER) if simpler and belief.bearable >= rule.tie_at else verdict


def _confirmed(verdict: Verdict, readings: Sequence[Reading], noise: Noise, rule: KeepRule, spent: int) -> Verdict:
    """A keep, once runs side by side say so too: the machine may have been slower when the incumbent ran before."""
    here = [r for r in readings if r.test == readings[-1].test]
    paired = any(not r.own for r in here)
    if paired and believe(*estimate(here, noise), noise, rule).better >= rule.beside_at:
        enough = sum(r.own for r in here) >= rule.own or spent >= rule.most
        return replace(verdict, action=Action.KEEP if enough else Action.AGAIN)
    if spent >= rule.most:
        return verdict
    of_own, seed = next_run(here, noise) if paired else (False, here[-1].seed)
    return replace(verdict, action=Action.AGAIN, own=of_own, seed=seed)


# ---------------------------------------------------------------------- the estimate
def estimate(readings: Sequence[Reading], noise: Noise) -> tuple[float, float]:
    """Improvement over the incumbent, and its variance in units of σ². ValueError when one has no run."""
    tests: dict[int, list[Reading]] = {}
    for r in readings:
        centre = readings[0].value  # differences of large values lose digits otherwise
        tests.setdefault(r.test, []).append(replace(r, value=r.value - centre))
    sums = [0.0] * 5
    for block in tests.values():
        sums = [total + part for total, part in zip(sums, _information(block, noise), strict=True)]
    ee, ei, ii, e, i = sums
    determinant = ee * ii - ei * ei
    if not (ee > 0 and ii > 0 and determinant > 0):
        raise ValueError("a comparison needs a run of each program")
    return ((ii + ei) * e - (ee + ei) * i) / determinant, (ee + ii + 2.0 * ei) / determinant


def _information(block: Sequence[Reading], noise: Noise) -> tuple[float, ...]:
    """What one test adds to the normal equations of the two means: matrix (ee, ei, ii) and right side (e, i).

    Covariance: (1 − t − s)·I + s·J within a seed + t·J, inverted by Woodbury's identity.
    """
    own = 1.0 - noise.test - noise.seed
    seeds: dict[int, list[Reading]] = {}
    for r in block:
        seeds.setdefault(r.seed, []).append(r)
    ee = ei = ii = e = i = e1 = i1 = y1 = 0.0
    for same in seeds.values():
        joint = noise.seed / (own + len(same) * noise.seed)
        mine = [r.value for r in same if r.own]
        theirs = [r.value for r in same if not r.own]
        a, b, ya, yb = len(mine), len(theirs), math.fsum(mine), math.fsum(theirs)
        ee += (a - joint * a * a) / own
        ii += (b - joint * b * b) / own
        ei -= joint * a * b / own
        e += (ya - joint * a * (ya + yb)) / own
        i += (yb - joint * b * (ya + yb)) / own
        e1 += a * (1.0 - joint * (a + b)) / own
        i1 += b * (1.0 - joint * (a + b)) / own
        y1 += (ya + yb) * (1.0 - joint * (a + b)) / own
    shared = noise.test / (1.0 + noise.test * (e1 + i1))
    terms = ((ee, e1, e1), (ei, e1, i1), (ii, i1, i1), (e, e1, y1), (i, i1, y1))
    return tuple(of - shared * one * other for of, one, other in terms)


def next_run(readings: Sequence[Reading], noise: Noise) -> tuple[bool, int | None]:
    """The run after which the improvement is known best: whether of the experiment, and its seed (None: fresh)."""
    last = readings[-1]
    alone = sum(r.seed == last.seed and r.test == last.test for r in readings) == 1
    fresh = 1 + max(r.seed for r in readings)
    # After a pair the program that ran last goes first, so that steady drift cancels over two pairs.
    options = [Reading(not last.own, last.test, last.seed, 0.0)] if alone else []
    options += [Reading(own, last.test, fresh, 0.0) for own in (last.own, not last.own)]
    best = min(options, key=lambda option: round(estimate([*readings, option], noise)[1], 9))
    return best.own, None if best.seed == fresh else best.seed


# ---------------------------------------------------------------------- the posterior
def believe(gain: float, variance: float, noise: Noise, rule: KeepRule) -> Belief:
    """Posterior probabilities, given an estimated gain and its variance in units of σ²."""
    harm = 1.0 - rule.null - rule.gain
    calm, unit = noise.calm, noise.sigma * noise.calm
    better = material = bearable = total = 0.0
    for sigma, weight in noise.weighted():
        spread = sigma * math.sqrt(variance)
        null = rule.null * _density(gain, spread)
        up = down = large = near = 0.0
        for scale in rule.scales:
            tau = sigma * scale * calm
            wide = math.hypot(spread, tau)
            slab = 2.0 * _density(gain, wide) / len(rule.scales)
            centre, width = gain * (tau / wide) ** 2, spread * tau / wide
            positive = cumulative(centre / width)
            up += slab * positive
            down += slab * (1.0 - positive)
            large += slab * cumulative((centre - rule.material * unit) / width)
            near += slab * (cumulative((centre + rule.tie * unit) / width) - positive)
        better += weight * rule.gain * up
        material += weight * rule.gain * large
        bearable += weight * (rule.gain * up + null + harm * near)
        total += weight * (rule.gain * up + null + harm * down)
    if total <= 0.0:  # so far out that all densities underflow: the sign is all there is to say
        return Belief(1.0, 1.0, 1.0) if gain > 0 else Belief(0.0, 0.0, 0.0)
    return Belief(better / total, material / total, bearable / total)


def passes(slack: float, runs: int, noise: Noise) -> float:
    """Probability that a mean of ``runs`` runs, better than a bound by ``slack``, is truly on its good side."""
    if noise.sigma == 0.0:
        return 1.0 if slack >= 0 else 0.0
    weights = noise.weighted()
    total = math.fsum(w for _, w in weights)
    return math.fsum(w * cumulative(slack * math.sqrt(runs) / sigma) for sigma, w in weights) / total


def cumulative(z: float) -> float:
    """The standard normal distribution function."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _density(x: float, spread: float) -> float:
    z = x / spread
    return math.exp(-0.5 * z * z) / spread  # z * z may be infinite, z**2 would raise


# ---------------------------------------------------------------------- guards around the estimate
@dataclass(frozen=True, slots=True)
class Control:
    """Whether a keep holds; None: the baseline has to run beside it first.

    claimed, since: mean goodness of the incumbent in the runs that it was kept for, and in later ones. gain: what is
    left of the improvement against the former; NaN where the incumbent did not fall, or it is not known.
    """

    holds: bool | None = True
    claimed: float = math.nan
    since: float = math.nan
    gain: float = math.nan


def control(
    noise_data: NoiseData, experiment: int, incumbent: int, rule: KeepRule, *, simpler: bool = False
) -> Control:
    """Whether an experiment that would be kept may be. simpler: as a tie, which need be no improvement.

    A kept program that knows that it runs again can do worse on purpose, and what comes next looks better; a slower
    machine looks the same: the baseline, run beside the experiment, tells one from the other.
    """
    baseline = noise_data.baseline
    own, later = _split(noise_data.samples(incumbent), incumbent)
    if baseline is None or baseline == incumbent or not own or not later:
        return Control()
    noise = noise_data.without_reruns(incumbent).noise(experiment, incumbent) or noise_data.noise(experiment, incumbent)
    if noise is None:
        return Control()
    claimed, since = _mean(own), _mean(later)
    if claimed - since <= rule.fallen * noise.sigma * math.sqrt(_apart(own, later, noise)):
        return Control(True, claimed, since)
    mine = [s for s in noise_data.samples(experiment) if s.test == experiment]
    gain = _mean(mine) - claimed
    if _borne_out(gain, _apart(mine, own, noise), noise, rule, simpler):
        return Control(True, claimed, since, gain)
    here, before = _split(noise_data.samples(baseline), experiment)
    if not here or not before:
        return Control(None if before else True, claimed, since)
    # Each against the baseline, by generalised least squares: runs of one test share its drift, whichever test it is.
    now, now_variance = estimate(readings_of([*before, *mine, *here], baseline), noise)
    then, then_variance = estimate(readings_of([*before, *own], baseline), noise)
    # The two share the baseline's earlier runs, so that the sum of their variances is rather too large.
    held = _borne_out(now - then, now_variance + then_variance, noise, rule, simpler)
    return Control(held, claimed, since, now - then)


def _borne_out(gain: float, variance: float, noise: Noise, rule: KeepRule, simpler: bool) -> bool:
    if noise.sigma == 0.0:
        return gain >= 0 if simpler else gain > 0
    belief = believe(gain, variance, noise, rule)
    return (belief.bearable if simpler else belief.better) >= rule.beside_at


def _split(samples: Sequence[Sample], test: int) -> tuple[list[Sample], list[Sample]]:
    """Those that were made for a test, and the others."""
    return [s for s in samples if s.test == test], [s for s in samples if s.test != test]


def _mean(samples: Sequence[Sample]) -> float:
    return mean([s.value for s in samples])


def _apart(a: Sequence[Sample], b: Sequence[Sample], noise: Noise) -> float:
    """Variance of the difference between means of runs that were made for different tests, in units of σ²."""
    tests = 1.0 / len({s.test for s in a}) + 1.0 / len({s.test for s in b})
    return (1.0 - noise.test) * (1.0 / len(a) + 1.0 / len(b)) + noise.test * tests


def bounded(gain: float, better: float, noise_data: NoiseData, experiment: int, incumbent: int) -> float:
    """The estimated gain, held to what the experiment's mean shows against the incumbent's.

    These are the means of the runs that it was kept for, of all later ones, and of those made beside the experiment.
    A gain lies between the differences; where it is not believed (``better``: the probability of an improvement), it is
    at most the least of them, and not below 0.
    """
    mine = _mean(_split(noise_data.samples(experiment), experiment)[0])
    its = noise_data.samples(incumbent)
    groups = (*_split(its, incumbent), _split(its, experiment)[0])
    shown = [gap for gap in (mine - _mean(runs) for runs in groups if runs) if math.isfinite(gap)]
    if not shown:
        return gain
    if better >= 0.5:
        return min(max(shown), max(min(shown), gain))
    return max(0.0, min(gain, *shown)) if gain > 0 else min(0.0, max(gain, min(shown)))
