"""Log-probabilities are those of the whole vocabulary, in whatever pieces they are computed; padding never counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.algorithms.learnable import Sample, collate, token_statistics
from autoresearchd.learner.algorithms.scoring import k3

VOCABULARY = 7
SAMPLES = (
    Sample((1, 2, 3), (2, 3), (-0.1, -0.2)),
    Sample((4,), (1, 5, 6, 2), (-0.3, -0.4, -0.5, -0.6), 0.6),
    Sample((5, 6), (3,), (-0.7,)),
)
BATCH = collate(SAMPLES, padding=0)


def logits(seed: int, count: int = 7) -> Tensor:
    """Of the positions that predict the tokens of the completions."""
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn((count, VOCABULARY), generator=generator, dtype=torch.float64)


def test_log_probability_entropy_and_likeliest_tokens_are_those_of_the_whole_vocabulary() -> None:
    z = logits(0)
    found = token_statistics(z, BATCH, top=3)
    assert found.top_logprobs is not None and found.top_indices is not None
    rows = [(sample, token) for sample in SAMPLES for token in sample.completion]
    for n, (sample, token) in enumerate(rows):
        weights = [math.exp(float(x) / sample.temperature) for x in z[n]]
        logs = [math.log(weight / math.fsum(weights)) for weight in weights]
        best = sorted(range(VOCABULARY), key=lambda v: -logs[v])[:3]
        assert float(found.logprobs[BATCH.mask][n]) == pytest.approx(logs[token], abs=1e-12)
        assert float(found.entropy[BATCH.mask][n]) == pytest.approx(-math.fsum(math.exp(x) * x for x in logs))
        assert found.top_indices[BATCH.mask][n].tolist() == best
        assert found.top_logprobs[BATCH.mask][n].tolist() == pytest.approx([logs[v] for v in best], abs=1e-12)
    assert not found.logprobs[~BATCH.mask].any() and not found.entropy[~BATCH.mask].any()


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_pieces_of_any_size_give_the_same_numbers_and_gradients(rows: int) -> None:
    found = []
    for size in (rows, 7):
        z = logits(1).requires_grad_()
        statistics = token_statistics(z, BATCH, rows=size, top=2)
        assert statistics.top_logprobs is not None
        (statistics.logprobs.sum() + 0.3 * statistics.entropy.sum() + statistics.top_logprobs.square().sum()).backward()
        assert z.grad is not None
        found.append((statistics.logprobs.detach(), z.grad))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_half_precision_is_widened_before_anything_is_summed() -> None:
    half = (20 * logits(9)).to(torch.bfloat16)
    found, exact = token_statistics(half, BATCH), token_statistics(half.double(), BATCH)
    assert found.logprobs.dtype is torch.float32
    torch.testing.assert_close(found.logprobs.double(), exact.logprobs, rtol=0, atol=1e-4)


def test_large_logits_and_forbidden_tokens_do_not_overflow() -> None:
    z = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, -math.inf]], requires_grad=True)
    found = token_statistics(z, collate([Sample((0,), (0, 1))], padding=0))
    (found.logprobs.sum() + found.entropy.sum()).backward()
    assert found.logprobs.tolist()[0] == pytest.approx([0.0, -math.log(2)])
    assert found.entropy.tolist()[0] == pytest.approx([0.0, math.log(2)])
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


def test_what_was_drawn_at_temperature_0_has_no_ratio() -> None:
    with pytest.raises(UsageError, match="temperature is not above 0"):
        token_statistics(logits(0, 1), collate([Sample((1,), (2,), temperature=0.0)], padding=0))


def test_k3_is_never_negative_and_right_on_average() -> None:
    policy, reference = torch.log_softmax(logits(14)[0], -1), torch.log_softmax(logits(15)[0], -1)
    estimates = k3(policy, reference, torch.zeros(()))  # of each token that could have been drawn
    assert (estimates >= 0).all()
    exact = (policy.exp() * (policy - reference)).sum()
    assert float((policy.exp() * estimates).sum()) == pytest.approx(float(exact), abs=1e-12)


def test_a_batch_holds_each_completion_where_it_is_predicted() -> None:
    for row, sample in enumerate(SAMPLES):
        assert BATCH.targets[row][BATCH.mask[row]].tolist() == list(sample.completion)
        assert BATCH.behaviour[row][BATCH.mask[row]].tolist() == pytest.approx(sample.behaviour)
        assert int(BATCH.attention[row].sum()) == len(sample.prompt) + len(sample.completion)
