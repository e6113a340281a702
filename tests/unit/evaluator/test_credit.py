"""Delta and reward agree with the decision: what is discarded as luck is told, and taught, as nothing better."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.task import Direction
from autoresearchd.evaluator.decide import decide, samples_of
from autoresearchd.evaluator.keep import KeepRule
from autoresearchd.evaluator.noise import mean
from autoresearchd.evaluator.noise_data import NoiseData
from autoresearchd.evaluator.reward import reward
from tests.unit.evaluator.builders import experiment, run, scoring, task

TASK = task(scoring(direction=Direction.MAXIMIZE))
ONE = KeepRule(most=0)
"""No more runs: a decision on whatever there is."""


def made(number: int, *runs: tuple[int | None, int, float]) -> Experiment:
    """An experiment with runs (of, seed, value)."""
    found = tuple(replace(run(x), experiment=number, of=of, seed=seed, index=k) for k, (of, seed, x) in enumerate(runs))
    e = experiment(*found, number=number)
    return replace(e, decision=Decision(Status.KEEP, Label.NONE, mean([r.value or 0.0 for r in e.good_runs])))


def judged(earlier: list[Experiment], e: Experiment, incumbent: int) -> Decision:
    runs: list[Run] = [r for past in earlier for r in past.runs]
    found = decide(TASK, replace(e, decision=None), earlier[incumbent], NoiseData(samples_of(TASK, runs)), rule=ONE)
    assert isinstance(found, Decision)
    return found


def part(d: Decision) -> float:
    earned = reward(d.label, d.delta, d.sigma, 1.0, sure=d.sure)
    assert earned is not None
    return earned.parts["improvement"]


BASELINE = made(0, (None, 1, -0.98), (None, 2, -1.0), (None, 3, -1.02))
KEPT = made(1, (None, 4, 0.01), (0, 4, -1.0), (None, 5, -0.01))


def test_an_equal_of_an_incumbent_that_did_worse_beside_it_is_no_better_and_earns_nothing() -> None:
    """Discarded at P = 0.36, it had a delta of 0.037, where the values do not differ, and a reward of 2.2 of 5."""
    d = judged([BASELINE, KEPT], made(2, (None, 6, 0.0), (1, 6, -0.05)), 1)
    assert d.status is Status.DISCARD and d.sure == pytest.approx(0.355, abs=0.01)
    assert d.delta == pytest.approx(0.0, abs=1e-9) and part(d) == 0.0
    assert "is 0.037 better than experiment 1" in d.reason and "counted as 0" in d.reason


def test_a_small_gain_over_an_incumbent_that_holds_back_is_rewarded_as_a_small_one() -> None:
    """Kept, as it was better than what the incumbent had been kept with; the reward was that of the whole fall."""
    d = judged([BASELINE, KEPT], made(2, (None, 6, 0.1), (1, 6, -3.0), (None, 7, 0.1)), 1)
    assert d.status is Status.KEEP and d.delta == pytest.approx(0.1)
    assert "counted as 0.1" in d.reason


values = st.floats(-2.0, 2.0).map(lambda x: round(x, 3))


@st.composite
def comparisons(draw: st.DrawFn) -> Decision:
    """A decision on any runs of an experiment and of an incumbent, beside this one and an earlier one."""
    spread = draw(st.sampled_from([0.01, 0.1, 0.5]))
    baseline = made(0, *((None, 1 + k, spread * draw(values)) for k in range(3)))
    kept = made(1, (None, 4, spread * draw(values)), (0, 4, spread * draw(values)), (None, 5, spread * draw(values)))
    between = made(2, (None, 6, spread * draw(values)), (1, 6, spread * draw(values)))
    own = [(None, 7 + k, spread * draw(values)) for k in range(draw(st.integers(1, 3)))]
    again = [(1, 7 + k, spread * draw(values)) for k in range(draw(st.integers(0, len(own))))]
    d = judged([baseline, kept, between], made(3, *own, *again), 1)
    mine = mean([x for _, _, x in own])
    later = [between.runs[1].value or 0.0, *(x for _, _, x in again)]
    references = [[r.value or 0.0 for r in kept.runs if r.of is None], later, [x for _, _, x in again] or later]
    shown = [mine - mean(group) for group in references]
    assume(d.delta is not None and d.sure is not None)
    assert d.delta is not None and d.sure is not None
    low, high = min(shown), max(shown)
    assert min(0.0, low) - 1e-9 <= d.delta <= max(0.0, high) + 1e-9, "never more than the values show, either way"
    if d.label is Label.NO_GAIN and d.sure < 0.5:
        assert d.delta <= max(0.0, low) + 1e-9, "an improvement that is not believed is the least that they show"
    return d


@given(comparisons())
def test_delta_and_reward_never_say_more_than_the_values_and_the_decision(d: Decision) -> None:
    assert d.delta is not None and d.sure is not None
    if d.label is Label.NO_GAIN and d.sure < 0.5:
        assert part(d) <= 0.0
    if (d.status, d.label) == (Status.KEEP, Label.NONE):
        assert d.delta > 0 and part(d) > 0
    if d.delta > 0 and d.sigma:
        assert part(d) <= d.delta / d.sigma + 1e-9
