"""The error budget, caution and audits by themselves: how the promise is kept and measured."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.evaluator.abort import MOST_CAUTION, Audits, Caution, Guard, Promise, wilson_upper
from autoresearchd.evaluator.evidence import expectation, p_value, spent, threshold
from autoresearchd.evaluator.forecast import Programs


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=40), st.floats(0.01, 0.5))
def test_the_looks_of_a_run_never_spend_more_than_its_budget(progress: list[float], alpha: float) -> None:
    total, before = 0.0, 0.0
    for share in sorted(progress):
        now = spent(alpha, share)
        assert now >= before
        total, before = total + now - before, now
    assert total <= alpha * (1 + 1e-12)


def test_early_looks_may_spend_most_because_they_save_most() -> None:
    assert spent(1.0, 0.1) > spent(1.0, 0.9) - spent(1.0, 0.8)


def test_few_programs_ask_for_more_evidence() -> None:
    assert threshold(0.02, 4, 40) > threshold(0.02, 8, 40) > threshold(0.02, 20, 40) > 2
    assert threshold(0.02, 8, 10) > threshold(0.02, 8, 40)
    assert threshold(0.02, 1, 40) == math.inf
    assert threshold(0.0, 20, 40) == math.inf


def test_seed_noise_that_single_runs_show_already_is_not_counted_twice() -> None:
    rng = np.random.default_rng(3)
    drops, rows = 0.5 + rng.normal(0, 0.01, 12), np.arange(12)
    single, averaged = (
        Programs(drops, drops, drops, drops, rows.astype(np.float64), rows, np.full(12, runs)) for runs in (1.0, 20.0)
    )
    sd = [expectation(good, 0.5, 12, 0.02)[1] for good in (single, averaged)]
    assert 0.01 < sd[0] < 0.85 * sd[1]


def test_the_p_value_belongs_to_the_threshold_where_many_programs_are_known() -> None:
    assert p_value(threshold(0.03, 12, 10**9), 12) == pytest.approx(0.03)
    assert p_value(math.nan, 12) == 1.0


def test_a_surprise_makes_cautious_and_calm_lets_it_fade() -> None:
    caution = Caution()
    caution.observe(0.9, good=True)
    assert caution.factor == 1.0
    caution.observe(2.0, good=True)
    assert caution.factor == pytest.approx(2.4)
    for _ in range(60):
        caution.observe(0.1, good=True)
    assert caution.factor == 1.0
    assert caution.surprises == 1


def test_a_bad_run_that_dropped_far_is_no_surprise_about_improvements() -> None:
    caution = Caution()
    caution.observe(50.0, good=False)
    assert caution.factor == 1.0


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.booleans()), max_size=60))
def test_caution_stays_between_one_and_its_most(seen: list[tuple[float, bool]]) -> None:
    caution = Caution()
    for ratio, good in seen:
        caution.observe(ratio, good)
        assert 1.0 <= caution.factor <= MOST_CAUTION


def test_the_share_of_audits_is_as_asked_and_depends_on_seed_and_number_alone() -> None:
    audits = [Audits(seed=4, rate=0.1).is_audit(number) for number in range(2000)]
    assert 150 < sum(audits) < 250
    assert audits == [Audits(seed=4, rate=0.1).is_audit(number) for number in range(2000)]
    assert audits != [Audits(seed=5, rate=0.1).is_audit(number) for number in range(2000)]


def test_rows_of_aborts_as_long_as_usual_force_no_audit() -> None:
    audits = Audits()
    for number in range(200):
        audits.observe(number, aborted=number % 4 != 3, ready=True)
        assert not audits.is_audit(number + 1)


def test_a_row_of_aborts_much_longer_than_usual_forces_one_audit() -> None:
    audits = Audits()
    for number in range(40):
        audits.observe(number, aborted=number % 2 == 0, ready=True)
    row = 0
    while not audits.is_audit(row):
        audits.observe(row, aborted=True, ready=True)
        row += 1
        assert row < 30
    audits.observe(row, aborted=False, ready=True)
    assert not audits.is_audit(row + 1)


def test_the_promise_counts_what_audits_saw_and_does_not_claim_more() -> None:
    assert Promise().false_abort_rate is None
    assert Promise().false_abort_limit == 1.0
    promise = Promise(audited=20, hopeless=10, lost=0, improved=8)
    assert promise.false_abort_rate == 0
    assert promise.false_abort_limit == pytest.approx(0.324, abs=0.001)
    assert wilson_upper(5, 100) == pytest.approx(0.1118, abs=0.0005)


def test_throughput_gain_is_full_time_over_time_spent() -> None:
    assert Promise(aborted=5, finished=5, spared=4.0).throughput_gain == pytest.approx(10 / 6)
    assert Promise().throughput_gain == 1.0


def test_a_guard_is_the_same_after_a_restart() -> None:
    guard = Guard(Caution(2.5, 3, 9), Audits(7, 0.1, 0.02, 3.0, 9.0, 4, True), Promise(1, 1, 0, 1, 5, 9, 3.5))
    assert Guard.from_state(json.loads(json.dumps(guard.to_state()))) == guard
