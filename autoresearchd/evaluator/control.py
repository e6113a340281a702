"""Whether a keep rests on the incumbent having done worse than when it was kept, and what the baseline says then.

A kept program that knows that it runs again (by the clock, or by where it runs) can do worse on purpose, and whatever
comes next looks better. A machine that has become slower looks the same. Nobody edits the baseline: run beside the
experiment, as the control of the trial, it tells one from the other. The experiment is then compared with what the
incumbent was kept with, less what the baseline has lost since; no later run of the incumbent counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from autoresearchd.evaluator.keep import KeepRule, Program, Reading, believe, estimate
from autoresearchd.evaluator.ledger import Ledger, Sample
from autoresearchd.evaluator.noise import Noise, mean


class Answer(StrEnum):
    """What follows for an experiment that would be kept."""

    HOLDS = "holds"
    ASK = "ask"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Control:
    """The answer; claimed, since: mean goodness of the incumbent in the runs that it was kept for, and in later ones.

    gain: what is left of the improvement against the former; NaN where the incumbent did not fall, or it is not known.
    """

    answer: Answer
    claimed: float = math.nan
    since: float = math.nan
    gain: float = math.nan


def control(ledger: Ledger, experiment: int, incumbent: int, rule: KeepRule, *, simpler: bool = False) -> Control:
    """Whether an experiment that would be kept may be; ASK: once the baseline has run beside it.

    Args:
        ledger: all runs, those of the experiment among them.
        experiment: its number.
        incumbent: the number of the incumbent.
        rule: the constants (``fallen``, ``beside_at``).
        simpler: whether it would be kept as a simpler tie, which need be no improvement.
    """
    baseline = ledger.baseline
    own, later = _split(ledger.samples(incumbent), incumbent)
    if baseline is None or baseline == incumbent or not own or not later:
        return Control(Answer.HOLDS)
    noise = ledger.without_reruns(incumbent).noise(experiment, incumbent) or ledger.noise(experiment, incumbent)
    if noise is None:
        return Control(Answer.HOLDS)
    claimed, since = _mean(own), _mean(later)
    if claimed - since <= rule.fallen * noise.sigma * math.sqrt(_apart(own, later, noise)):
        return Control(Answer.HOLDS, claimed, since)
    mine = [s for s in ledger.samples(experiment) if s.test == experiment]
    gain = _mean(mine) - claimed
    if _borne_out(gain, _apart(mine, own, noise), noise, rule, simpler):
        return Control(Answer.HOLDS, claimed, since, gain)
    here, before = _split(ledger.samples(baseline), experiment)
    if not here or not before:
        return Control(Answer.ASK if before else Answer.HOLDS, claimed, since)
    # Each against the baseline, by generalised least squares: runs of one test share its drift, whichever test it is.
    now, now_variance = estimate([*_readings(before, baseline), *_readings([*mine, *here], baseline)], noise)
    then, then_variance = estimate(_readings([*before, *own], baseline), noise)
    # The two share the baseline's earlier runs, so that their sum is rather too large.
    gain, variance = now - then, now_variance + then_variance
    held = _borne_out(gain, variance, noise, rule, simpler)
    return Control(Answer.HOLDS if held else Answer.FAILS, claimed, since, gain)


def _borne_out(gain: float, variance: float, noise: Noise, rule: KeepRule, simpler: bool) -> bool:
    if noise.sigma == 0.0:
        return gain >= 0 if simpler else gain > 0
    belief = believe(gain, variance, noise, rule)
    return (belief.bearable if simpler else belief.better) >= rule.beside_at


def _readings(samples: Sequence[Sample], baseline: int) -> list[Reading]:
    """Runs of a program and of the baseline, which stands in the incumbent's place."""
    return [
        Reading(Program.INCUMBENT if s.program == baseline else Program.EXPERIMENT, s.test, s.seed, s.value)
        for s in samples
    ]


def _split(samples: Sequence[Sample], test: int) -> tuple[list[Sample], list[Sample]]:
    """Those that were made for a test, and the others."""
    return [s for s in samples if s.test == test], [s for s in samples if s.test != test]


def _mean(samples: Sequence[Sample]) -> float:
    return mean([s.value for s in samples])


def _tests(samples: Sequence[Sample]) -> int:
    return len({s.test for s in samples})


def _apart(a: Sequence[Sample], b: Sequence[Sample], noise: Noise) -> float:
    """Variance of the difference between means of runs that were made for different tests, in units of σ²."""
    within = (1.0 - noise.test) * (1.0 / len(a) + 1.0 / len(b))
    return within + noise.test * (1.0 / _tests(a) + 1.0 / _tests(b))
