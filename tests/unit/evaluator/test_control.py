"""A kept program that does worse when it runs again must not make what comes next look better."""

from __future__ import annotations

import random

import pytest

from autoresearchd.evaluator.decide import Answer, control
from autoresearchd.evaluator.keep import KeepRule
from autoresearchd.evaluator.noise_data import NoiseData, Sample

RULE = KeepRule()
BASELINE = [Sample(0, 0, s, v) for s, v in ((1, -0.1), (2, 0.0), (3, 0.1))]
KEPT = [Sample(1, 1, 4, 1.0), Sample(0, 1, 4, 0.0), Sample(1, 1, 5, 1.1)]


def noise_data(*values: float, incumbent: float, baseline: float | None = None) -> NoiseData:
    """Experiment 2 with its runs beside experiment 1, which was kept with 1.05, and perhaps the baseline's."""
    mine = [Sample(2, 2, 6 + k, v) for k, v in enumerate(values)]
    here = [*mine, Sample(1, 2, 6, incumbent)]
    return NoiseData([*BASELINE, *KEPT, *here, *([] if baseline is None else [Sample(0, 2, 6, baseline)])])


def test_nothing_is_asked_where_the_incumbent_did_as_well_as_before() -> None:
    assert control(noise_data(2.0, 2.1, incumbent=0.95), 2, 1, RULE).answer is Answer.HOLDS


def test_the_baseline_tells_a_slower_machine_from_an_incumbent_that_holds_back() -> None:
    assert control(noise_data(1.0, 1.1, incumbent=-3.0), 2, 1, RULE).answer is Answer.ASK
    held_back = control(noise_data(1.0, 1.1, incumbent=-3.0, baseline=0.0), 2, 1, RULE)
    assert held_back.answer is Answer.FAILS and held_back.gain == pytest.approx(0.0, abs=0.01)
    assert control(noise_data(1.0, 1.1, incumbent=-3.0, baseline=-4.0), 2, 1, RULE).answer is Answer.HOLDS
    a_little = control(noise_data(1.0, 1.1, incumbent=-1.0, baseline=-1.0), 2, 1, RULE)
    assert a_little.answer is Answer.HOLDS and a_little.gain == pytest.approx(1.0, abs=0.3)


def test_a_simpler_tie_need_be_no_improvement_but_must_be_a_tie_with_what_was_kept() -> None:
    worse = noise_data(0.2, 0.3, incumbent=0.1, baseline=0.0)
    assert control(worse, 2, 1, RULE, simpler=True).answer is Answer.FAILS
    equal = noise_data(1.0, 1.1, incumbent=-3.0, baseline=0.0)
    assert control(equal, 2, 1, RULE, simpler=True).answer is Answer.HOLDS


def test_no_later_run_of_the_incumbent_hides_its_fall_by_adding_to_the_noise() -> None:
    many = [Sample(1, n, 10 + n, -3.0) for n in range(3, 9)]
    others = [Sample(n, n, 10 + n, -1.0) for n in range(3, 9)]
    turns = [s for pair in zip(others, many, strict=True) for s in pair]
    here = [Sample(9, 9, 30, 1.0), Sample(1, 9, 30, -3.0), Sample(9, 9, 31, 1.1)]
    found = NoiseData([*BASELINE, *KEPT, *turns, *here])
    assert control(found, 9, 1, RULE).answer is Answer.ASK
    assert control(found, 9, 1, KeepRule(fallen=float("inf"))).answer is Answer.HOLDS


def test_equal_programs_of_a_session_are_hardly_ever_kept_though_each_holds_back_when_it_runs_again() -> None:
    source, asked, kept = random.Random(3), 0, 0

    def drawn(centre: float) -> float:
        return source.gauss(centre, 0.1)

    for _ in range(200):
        runs = [*BASELINE, *(Sample(1, 1, 4 + k, drawn(1.0)) for k in range(2)), Sample(0, 1, 4, drawn(0.0))]
        runs += [*(Sample(2, 2, 6 + k, drawn(1.0)) for k in range(2)), Sample(1, 2, 6, drawn(0.0))]
        asked += control(NoiseData(runs), 2, 1, RULE).answer is Answer.ASK
        answer = control(NoiseData([*runs, Sample(0, 2, 6, drawn(0.0))]), 2, 1, RULE).answer
        kept += answer is Answer.HOLDS
    assert asked > 170 and kept < 20
