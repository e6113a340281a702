"""The probes of the bundled evaluation, asked directly: what an honest model gets through, and what no model does."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest

from autoresearchd.resources import bundled

np = pytest.importorskip("numpy")
VOCAB = 64


def _load() -> ModuleType:
    path = bundled("templates") / "autoresearch" / "evaluate.py"
    spec = importlib.util.spec_from_file_location("bundled_evaluate_for_probes", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


evaluate = _load()


def windows(rng: Any, count: int = 12, rows: int = 32, width: int = 64) -> Any:
    odds = rng.dirichlet(np.full(VOCAB, 0.3))
    return rng.choice(VOCAB, size=(count, rows, width + 1), p=odds).astype(np.int32)


@pytest.mark.parametrize(("count", "rows", "probes"), [(12, 32, 1), (256, 4, 16), (1, 4, 1), (2, 1, 1), (3, 2, 2)])
def test_every_batch_is_scored_once_and_a_probe_is_answered_before_its_original(
    count: int, rows: int, probes: int
) -> None:
    rng = np.random.default_rng(1)
    text = windows(rng, count, rows)
    for _ in range(20):
        jobs = list(evaluate.schedule(text, VOCAB, probes, rng))
        assert [job.batch for job in jobs if job.probe is None] == list(range(count))
        assert sum(job.probe is not None for job in jobs) == probes
        for at, job in enumerate(jobs):
            if job.probe is None:
                assert (job.inputs == text[job.batch, :, :-1]).all()
                continue
            original = next(i for i, other in enumerate(jobs) if other.batch == job.batch and other.probe is None)
            assert original >= at + (2 if count > 1 else 1)
            for row, cut in enumerate(job.probe.cuts):
                same = job.inputs[row] == text[job.batch, row, :-1]
                assert same[:cut].all()
                assert not same[cut + 1 :].any()
            assert (job.inputs >= 0).all() and (job.inputs < VOCAB).all()


def wealth_of(q: Any, probes: int, rng: Any) -> float:
    """Logarithm of what betting on a model gives; q(token before, token at the cut) are its logits there."""
    scorer = evaluate.Scorer.__new__(evaluate.Scorer)
    scorer.wealth = 0.0
    text = windows(rng, count=3)
    for job in evaluate.schedule(text, VOCAB, probes, rng):
        if job.probe is not None:
            logits = q(job.inputs)
            scorer.bet(job.probe, logits)
    return float(scorer.wealth)


@pytest.mark.parametrize("model", ["uniform", "frequencies", "confident"])
def test_a_model_that_cannot_see_the_drawn_tokens_does_not_win(model: str) -> None:
    rng = np.random.default_rng(2)
    table = {
        "uniform": np.zeros((VOCAB, VOCAB)),
        "frequencies": np.tile(rng.normal(size=VOCAB), (VOCAB, 1)),
        "confident": 20 * np.eye(VOCAB)[rng.permutation(VOCAB)],
    }[model]
    for _ in range(100):
        assert wealth_of(lambda idx: table[idx], 2, rng) < np.log(evaluate.MAX_WEALTH)


@pytest.mark.parametrize("weight", [1.0, 0.5, 0.2])
def test_a_model_that_sees_them_is_caught_even_if_it_hedges(weight: float) -> None:
    rng = np.random.default_rng(3)

    def peeking(idx: Any) -> Any:
        ahead = np.eye(VOCAB)[np.roll(idx, -1, axis=1)]
        return np.log(weight * ahead + (1 - weight) / VOCAB + 1e-9)

    for _ in range(20):
        with pytest.raises(evaluate.ProbeFailed) as caught:
            wealth_of(peeking, 2, rng)
        assert (caught.value.metric, caught.value.label) == ("causal", "not_causal")


@pytest.mark.parametrize("offset", [0.0, 1e30, -1e30, 3e38])
def test_no_offset_of_the_logits_makes_a_token_more_likely(offset: float) -> None:
    targets, weights = np.arange(VOCAB, dtype=np.int32), np.ones(VOCAB)
    logits = np.full((VOCAB, VOCAB), offset, dtype=np.float32)
    assert evaluate.nll_sum(logits, targets, weights) == pytest.approx(VOCAB * np.log(VOCAB))


def test_probabilities_sum_to_one_whatever_the_logits() -> None:
    rng = np.random.default_rng(4)
    for scale in (1e-3, 1.0, 1e4, 1e30):
        row = (scale * rng.normal(size=VOCAB)).astype(np.float32)
        losses = [evaluate.nll_sum(row[None], np.array([t], dtype=np.int32), np.ones(1)) for t in range(VOCAB)]
        assert sum(np.exp(-np.array(losses))) == pytest.approx(1.0)
