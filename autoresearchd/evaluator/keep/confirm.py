"""Confirmations: whether the tip truly is better than the confirmed program; which run would tell; when to ask.

Both programs run on fresh seeds, in pairs on one seed, in an order that alternates (steady drift cancels over four
pairs). After each pair, and after the tip's second run, around one of the confirmed program, the probability that the
difference is positive decides. σ of the confirmed program is what the
session believes; that of the tip may be several times larger, which its own runs tell: an edit that only raises the
noise of its program would look certain at first. The difference has a flat prior, so nothing believed before counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import FAILURES, Experiment, Run
from autoresearchd.domain.labels import Label, Outcome
from autoresearchd.domain.quantities import counted
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.decide import (
    broken_constraint,
    failure,
    known,
    mean_metrics,
    sign_of,
    smallest_gain,
    usable,
)
from autoresearchd.evaluator.keep.noise import cumulative, mean
from autoresearchd.evaluator.keep.tip_belief import EFFECTS, REGRET, SIGMAS, TIE, Array, TipBelief, held, regret


@dataclass(frozen=True, slots=True)
class ConfirmRule:
    """The constants of the test; chosen by ``benchmarks/keep.py``.

    at, fall: probabilities of an improvement that confirm, and at which the chain falls. least, limit: pairs of runs
    before which noise decides nothing, and after which nothing is decided; doubted: pairs before which a tip that seems
    far noisier is not confirmed. noisier: how many times larger the tip's σ may be than the confirmed program's, with
    weights. baseline: weight of the baseline's σ, whatever was learned since: experiments run on one seed, on which
    programs that differ little may differ less. tie_at: probability that a simpler program is no worse than a tie;
    gate_at: with which a bound must hold. share, burst: confirmations that are due wait while more runs than this share
    of all, and so many, were spent on them. lasts: share of its variance that a far noisier tip has in the mean of its
    runs, however many: it may have made the machine's drift larger, which outlasts a confirmation. still: pairs before
    which a tip that seems to have a seed of its own is not confirmed, and from which it falls.
    """

    at: float = 0.985
    fall: float = 0.3
    least: int = 2
    doubted: int = 5
    limit: int = 6
    noisier: tuple[tuple[float, float], ...] = (
        (1.0, 0.3), (2.0, 0.15), (4.0, 0.15), (8.0, 0.15), (16.0, 0.15), (32.0, 0.1),
    )  # fmt: skip
    baseline: float = 0.2
    tie_at: float = 0.9
    gate_at: float = 0.95
    share: float = 0.05
    burst: int = 2
    lasts: float = 0.5
    still: int = 4


RULE = ConfirmRule()
ABLATED_RULE = replace(RULE, limit=16)
"""For the program that an ablation has left: what is not decided there makes all of its runs worthless. In simulated
sessions (0 to 5 of ``benchmarks/ablation.py``) 44% do not pass within 6 pairs, 22% within 16, with two runs more each.
"""
FAR_NOISIER = 4.0
"""From so many times the confirmed program's σ on the tip is far noisier."""
STILL, LUCK = 0.2, 8.0
"""A tip whose runs vary by less than this share of the confirmed program's has a seed of its own, where it is better by
no more than so many σ, which a lucky seed may be; one that is ten times as fast may be ten times as steady.
"""
LIMITS = {1.0: (1.0, 100.0), -1.0: (0.0,)}
"""Values that shares and errors cannot exceed, by the metric's sign: near them an honest program varies little, too."""
_FAR_OFF = 1e50
"""Differences are cut at so many σ."""


class Ask(NamedTuple):
    """One more run: of the tip, or of the confirmed program. seed: that of the run it pairs with; None: a fresh one."""

    of_tip: bool
    seed: int | None


class _Pair(NamedTuple):
    tip: Run
    other: Run


@dataclass(frozen=True, slots=True)
class _Difference:
    """Mean of the tip less mean of the confirmed program, positive: better; better, bearable: probabilities.

    noisier: probability that the tip is far noisier than the confirmed program. still: it varies far less, as with a
    seed of its own. at_limit: it could hardly be better, which may be why.
    """

    gain: float
    error: float
    better: float
    bearable: float
    exact: bool = False
    noisier: float = 0.0
    still: bool = False
    at_limit: bool = False


# ---------------------------------------------------------------------- the test
def next_step(
    task: Task,
    runs: Sequence[Run],
    belief: TipBelief | None,
    *,
    simpler: bool = False,
    level: bool = True,
    rule: ConfirmRule = RULE,
) -> Ask | Verdict:
    """The run that a confirmation needs next, or what it has shown.

    runs: all of the confirmation, in order of time (``Run.of`` is None where the tip ran). belief: of the tip; None: σ
    is not known. simpler: the tip's program is simpler than the confirmed one: a tie is confirmed. level: it is the tip
    that is tested, at its usual budget, so that the belief knows its level. Pure, so that a restart asks for the same.
    """
    counts = [r for r in runs if r.counts]
    if step := _fails(counts):
        return step
    lost = {r.seed for r in counts if not usable(r)}
    good = [r for r in counts if r.seed not in lost]
    tips, others = ({r.seed: r for r in good if (r.of is None) is own} for own in (True, False))
    pairs = [
        _Pair(tips[seed], others[seed]) for seed in dict.fromkeys(r.seed for r in good) if seed in tips.keys() & others
    ]
    alone = next((r for r in reversed(good) if (r.seed in tips) is not (r.seed in others)), None)
    sign, noisy = sign_of(task.metric), belief is not None and not belief.exact and not task.scoring.constraints
    if alone is not None:
        if noisy and len(pairs) == 1 and alone.of is None and rule.least == 2 < rule.limit:
            early = [*pairs, _Pair(alone, pairs[0].other)]
            found = _compare(sign, early, belief, level, rule)
            verdict = _judge(task, early, found, simpler, rule) if found and found.better >= rule.at else None
            if verdict is not None:
                return verdict
        return Ask(alone.of is not None, alone.seed)
    turn = 2 if noisy else 1
    ask = Ask(len(pairs) % (2 * turn) < turn, None)
    if not pairs:
        return ask
    found = _compare(sign, pairs, belief, level, rule)
    verdict = _judge(task, pairs, found, simpler, rule) if found is not None else None
    if verdict is None and len(pairs) >= rule.limit:
        # Kept as if there were no noise, where there is: that was no reason.
        outcome = Outcome.FELL if belief is not None and belief.exact else Outcome.UNDECIDED
        verdict = _verdict(outcome, pairs, found, "not sure enough either way, and no more runs are made")
    return verdict or ask


def _fails(counts: Sequence[Run]) -> Ask | Verdict | None:
    """What follows where a program failed for good: once may be bad luck, and where both do the machine is to blame."""
    for own in (False, True):
        runs = [r for r in counts if (r.of is None) is own and not usable(r)]
        if own and len(runs) >= FAILURES and not any(usable(r) for r in counts if r.of is not None):
            return Ask(False, None)
        if len(runs) >= FAILURES:
            run = runs[-1]
            who = f"experiment {run.experiment}" if run.of is None else f"experiment {run.of}, beside it,"
            reason = f"{who} failed {counted(len(runs), 'time')} when it ran again: {failure(run)}"
            outcome = Outcome.FELL if own else Outcome.UNDECIDED
            return Verdict(outcome, None, None, None, reason[0].upper() + reason[1:].removesuffix(".") + ".")
    return None


def _judge(task: Task, pairs: Sequence[_Pair], found: _Difference, simpler: bool, rule: ConfirmRule) -> Verdict | None:
    """The verdict that the difference and the constraints lead to; None: more runs are needed."""
    metrics = mean_metrics([p.tip for p in pairs])
    label, why = broken_constraint(task, metrics, mean_metrics([p.other for p in pairs]))
    if label is not Label.NONE and len(pairs) >= rule.least:
        return _verdict(Outcome.FELL, pairs, found, why)
    if found.exact:
        least = smallest_gain(task, mean([p.other.value for p in pairs if p.other.value is not None]), exact=True)
        if found.gain > 0 and found.gain >= least:
            outcome, words = Outcome.CONFIRMED, "the metric has no noise, and the gain was there again"
        elif simpler and found.gain >= 0:
            outcome, words = Outcome.CONFIRMED, "a tie, confirmed because its program is simpler"
        else:
            outcome, words = Outcome.FELL, "the gain was not there when it ran again"
    elif len(pairs) < (rule.doubted if found.better >= rule.at and found.noisier >= 0.5 else rule.least):
        return None
    elif found.still:
        if len(pairs) < rule.still:
            return None
        outcome, words = Outcome.FELL, "it gives the same on every seed, as if it had one of its own: that is no gain"
        if found.at_limit:
            why = "because it could hardly be better, or because it has one of its own: its program tells"
            outcome, words = Outcome.UNDECIDED, f"it gives the same on every seed, {why}"
    elif found.better >= rule.at:
        outcome, words = Outcome.CONFIRMED, ""
    elif simpler and found.bearable >= rule.tie_at:
        outcome = Outcome.CONFIRMED
        words = f"no worse than a tie with probability {found.bearable:.2g}, and its program is simpler"
    elif (found.bearable if simpler else found.better) <= rule.fall:
        outcome, words = Outcome.FELL, ""
    else:
        return None
    if outcome is Outcome.CONFIRMED:
        if label is not Label.NONE:
            return None
        if doubt := _doubtful_gate(task, pairs, rule):
            return None if len(pairs) < rule.limit else _verdict(Outcome.FELL, pairs, found, doubt)
    return _verdict(outcome, pairs, found, words)


def _compare(
    sign: float, pairs: Sequence[_Pair], belief: TipBelief | None, level: bool, rule: ConfirmRule
) -> _Difference | None:
    """The difference; None while nothing is known of its noise. The confirmed program may have one run in all pairs."""
    once = len({p.other.seed for p in pairs}) < len(pairs)
    tips, others = ([held(sign * v) for r in runs if (v := r.value) is not None] for runs in zip(*pairs, strict=True))
    gains = np.array([a - b for a, b in zip(tips, others, strict=True)])
    gain = float(gains.mean())
    if belief is not None and not belief.exact:
        factors, shares = (np.array(x) for x in zip(*rule.noisier, strict=True))
        weights = (1.0 - rule.baseline) * belief.weights + rule.baseline * _baseline_weights()
        # Of pairs, under each σ of the confirmed program (rows) and of the tip (columns).
        sigmas = belief.sigmas[:, None]
        variances = sigmas**2 * (factors**2 + (not once))
        squares = float(((gains - gain) ** 2).sum())
        logs = -0.5 * (len(gains) - 1) * np.log(variances) - 0.5 * squares / variances
        joint = weights[:, None] * shares * np.exp(logs - logs.max())
        joint /= joint.sum()
        # The luck of one run's seed, which belief does not know, is taken to be as large as that of the tip's runs.
        own = sigmas**2 * factors**2
        shares = np.where(factors >= FAR_NOISIER, max(rule.lasts, 1.0 / len(gains)), 1.0 / len(gains))
        variances = own * shares + (own if once else sigmas**2 / len(gains))
        found = _posterior(gain, variances, joint, sigmas, belief.counts)
        # Where the confirmed program is the noisier one, it is not the tip that raised the noise.
        raised = np.ptp(tips) > np.ptp(others)
        noisier = float(joint[:, factors >= FAR_NOISIER].sum()) if raised else 0.0
        # In a few runs two of the confirmed program may be alike by chance.
        spread = max(float(np.ptp(others)), belief.sigma if once or len(tips) < rule.still else 0.0)
        alike = float(np.ptp(tips)) < STILL * spread and (once or len(set(others)) == len(others))
        still = alike and len(tips) > 1 and 0 < gain < LUCK * belief.sigma
        at_limit = any(max(*tips, *others) <= limit < mean(tips) + spread for limit in LIMITS[sign])
        return replace(found, noisier=noisier, still=still, at_limit=at_limit)
    # σ is not known, or there should be none: what the runs of each program vary among themselves.
    own = [belief.level, *tips] if belief is not None and level else tips
    if len(set(own)) == 1 and len(set(others)) == 1 and len(pairs) >= rule.least:
        return _Difference(gain, 0.0, float(gain > 0), float(gain >= 0), exact=True)
    squares = sum(float(np.sum((np.array(x) - mean(x)) ** 2)) for x in (own, others))
    freedom = sum(len(x) - 1 for x in (own, others) if len(set(x)) > 1)  # one that never varies tells of no noise
    if squares <= 0.0:
        return None
    sigmas = SIGMAS * math.sqrt(squares / freedom)
    logs = -freedom * np.log(sigmas) - 0.5 * squares / sigmas**2
    joint = np.exp(logs - logs.max())
    return _posterior(gain, 2.0 * sigmas**2 / len(gains), joint / joint.sum(), sigmas, None)


def _posterior(gain: float, variances: Array, weights: Array, sigmas: Array, counts: Array | None) -> _Difference:
    """variances: of the mean difference, with weights, broadcast against sigmas. counts: of effects, for a tie."""
    error = math.sqrt(float((weights * variances).sum()))
    better = float((weights * _cumulative(gain / np.sqrt(variances))).sum())
    if counts is None:
        bearable = float((weights * _cumulative((gain + TIE * sigmas) / np.sqrt(variances))).sum())
        return _Difference(gain, error, better, bearable)
    # Most edits change nothing: no affordable number of runs could show it without that.
    off = np.clip(gain / sigmas, -_FAR_OFF, _FAR_OFF)[..., None] - EFFECTS
    logs = -0.5 * off**2 * (sigmas**2 / variances)[..., None]
    density = weights[..., None] * counts * np.exp(logs - logs.max())
    return _Difference(gain, error, better, float(density[..., EFFECTS >= -TIE].sum() / density.sum()))


def _cumulative(z: Array) -> Array:
    values: Array = np.array([cumulative(x) for x in z.ravel().tolist()]).reshape(z.shape)
    return values


def _baseline_weights() -> Array:
    """Weights of σ (``SIGMAS``) as three runs of a baseline leave them."""
    logs = -2.0 * np.log(SIGMAS) - 1.0 / SIGMAS**2
    weights: Array = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    return weights


def _doubtful_gate(task: Task, pairs: Sequence[_Pair], rule: ConfirmRule) -> str:
    """The first bound that the tip's mean holds, perhaps by luck, with its words; empty when there is none."""
    for c in task.scoring.constraints:
        mine, its = ([r.metrics[c.metric] for r in runs if c.metric in r.metrics] for runs in zip(*pairs, strict=True))
        for bound, sign in ((c.min, 1.0), (c.max, -1.0)):
            if bound is None or not mine:
                continue
            sure = _passes(sign * (mean(mine) - bound), mine, its)
            if sure < rule.gate_at:
                value = f"{c.metric} {mean(mine):.6g} over {counted(len(mine), 'run')}"
                return f"but {value} holds its limit of {bound:.6g} with probability {sure:.2g} only"
    return ""


def _passes(slack: float, mine: Sequence[float], its: Sequence[float]) -> float:
    """Probability that a mean, better than a bound by ``slack``, truly holds it: σ is pooled, flat prior of its log."""
    squares = sum(float(np.sum((np.array(x) - mean(x)) ** 2)) for x in (mine, its) if x)
    freedom = max(0, len(mine) - 1) + max(0, len(its) - 1)
    if squares <= 0.0 or not freedom:
        return float(slack >= 0)
    sigmas = SIGMAS * math.sqrt(squares / freedom)
    logs = -freedom * np.log(sigmas) - 0.5 * squares / sigmas**2
    weights = np.exp(logs - logs.max())
    return float((weights * _cumulative(slack * math.sqrt(len(mine)) / sigmas)).sum() / weights.sum())


def _verdict(outcome: Outcome, pairs: Sequence[_Pair], found: _Difference | None, why: str) -> Verdict:
    tip, other = pairs[0]
    over = f"over {counted(len(pairs), 'pair')} of runs on fresh seeds"
    if pairs[-1].other is other and len(pairs) > 1:
        over = f"over {counted(len(pairs), 'run')} on fresh seeds beside one of its own"
    if found is None:
        words = f"Experiment {tip.experiment} was compared with experiment {other.of} {over}"
        return Verdict(outcome, None, None, None, f"{words}: {why}.")
    gain = found.gain
    how = f"{known(abs(gain), found.error)} {'better' if gain > 0 else 'worse'} than" if gain else "equal to"
    words = f"Experiment {tip.experiment} is {how} experiment {other.of} {over}"
    if not found.exact:
        words += f" (± {found.error:.2g}): an improvement with probability {found.better:.3g}"
    return Verdict(outcome, gain, found.error, found.better, f"{words}; {why}." if why else f"{words}.")


# ---------------------------------------------------------------------- without a run
def doubt(tip: Experiment, before: Experiment, belief: TipBelief | None) -> Verdict | None:
    """The verdict that takes the last keep back where later readings tell that it was none; None: they do not.

    tip: that keep; before: what it was kept on. One that was kept for its simplicity may lose what a tie may.
    """
    simpler = tip.decision is not None and tip.decision.label is Label.SIMPLER
    found = regret(belief, TIE if simpler else REGRET) if belief is not None else None
    if found is None:
        return None
    loss, error = found
    better = cumulative(-loss / error) if error else 0.0
    # In units of σ it is a loss; where σ is hardly known, that need not be one in those of the metric.
    how = f"{known(loss, error)} worse" if loss > 0 else "no better"
    reason = (
        f"By what was measured since, experiment {tip.number} is believed to be {how} than experiment {before.number} "
        f"± {error:.2g}: no run was spent on it."
    )
    return Verdict(Outcome.FELL, -loss, error, better, reason)


# ---------------------------------------------------------------------- when
def believed_gain(kept: Sequence[Experiment], undecided: Sequence[int]) -> float:
    """What is believed to have been gained since the confirmed program, in σ; infinite where σ is 0 or not known.

    kept: the keeps since, oldest first. undecided: ``Confirmation.after`` of those since then that decided nothing:
    each halves what was believed by then, so that the same doubt is not tested over and over.
    """
    total = 0.0
    for e in kept:
        decision = e.decision
        if decision is None or decision.delta is None:
            continue
        gain = max(0.0, decision.delta)
        halved = sum(after >= e.number for after in undecided)
        total += (gain / decision.sigma if decision.sigma else math.inf if gain else 0.0) / 2**halved
    return total


def due(
    kept: Sequence[Experiment],
    undecided: Sequence[int],
    *,
    every: float,
    runs: int,
    extra: int,
    rule: ConfirmRule = RULE,
) -> bool:
    """Whether a confirmation is due between two experiments. kept, undecided: see ``believed_gain``.

    every: ``scoring.confirm_every``, in σ; 0: each keep is confirmed at once, whatever it costs. runs, extra: of the
    session so far, all of them and those of confirmations.
    """
    if not kept or (undecided and undecided[-1] >= kept[-1].number):
        return False
    if every == 0:
        return True
    return believed_gain(kept, undecided) > every and extra <= rule.burst + rule.share * runs
