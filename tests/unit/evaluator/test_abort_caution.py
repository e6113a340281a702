"""The error budget, caution and audits by themselves: how the promise is kept and measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.evaluator.abort import Caution, Promise, wilson_upper
from autoresearchd.evaluator.evidence import spent


@given(st.lists(st.floats(-1, 2), min_size=1, max_size=40), st.floats(0.01, 0.5))
def test_the_looks_of_a_run_never_spend_more_than_its_budget(progress: list[float], alpha: float) -> None:
    total, before = 0.0, 0.0
    for share in sorted(progress):
        now = spent(alpha, share)
        assert now >= before
        total, before = total + now - before, now
    assert total <= alpha * (1 + 1e-12)


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


def test_the_promise_counts_what_audits_saw_and_does_not_claim_more() -> None:
    assert Promise().false_abort_rate is None
    assert Promise().false_abort_limit == 1.0
    promise = Promise(audited=20, hopeless=10, lost=0, improved=8)
    assert promise.false_abort_rate == 0
    assert promise.false_abort_limit == pytest.approx(0.324, abs=0.001)
    assert wilson_upper(5, 100) == pytest.approx(0.1118, abs=0.0005)
