"""Log-probabilities are those of the whole vocabulary, in whatever pieces they are computed; padding never counts."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from autoresearchd.learner.training.logprobs import (
    Batch,
    TokenStatistics,
    batch_statistics,
    collate,
    k3,
    token_statistics,
)
from tests.unit.learner.reference import softmax_logs

VOCABULARY = 7


def logits(seed: int, rows: int = 3, width: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 * torch.randn((rows, width, VOCABULARY), generator=generator, dtype=torch.float64)


def tokens(seed: int, rows: int = 3, width: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, VOCABULARY, (rows, width), generator=generator)
    mask = torch.rand((rows, width), generator=generator) < 0.7
    mask[0, 0] = True
    return targets, mask


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probability_entropy_and_likeliest_tokens_are_those_of_the_whole_vocabulary(temperature: float) -> None:
    z, (targets, mask) = logits(0), tokens(0)
    found = token_statistics(z, targets, mask, temperature=temperature, top=3)
    assert found.top_logprobs is not None
    assert found.top_indices is not None
    for i, t in np.ndindex(3, 4):
        logs = softmax_logs(z[i, t].numpy() / temperature) if mask[i, t] else [0.0] * VOCABULARY
        assert float(found.logprobs[i, t]) == pytest.approx(logs[int(targets[i, t])], abs=1e-12)
        if mask[i, t]:
            assert float(found.entropy[i, t]) == pytest.approx(-math.fsum(math.exp(x) * x for x in logs), abs=1e-12)
            best = sorted(range(VOCABULARY), key=lambda v: -logs[v])[:3]
            assert found.top_indices[i, t].tolist() == best
            assert found.top_logprobs[i, t].tolist() == pytest.approx([logs[v] for v in best], abs=1e-12)


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_pieces_of_any_size_give_the_same_numbers_and_gradients(rows: int) -> None:
    targets, mask = tokens(1)
    found = []
    for size in (rows, 12):
        z = logits(1).requires_grad_()
        statistics = token_statistics(z, targets, mask, rows=size, top=2)
        assert statistics.top_logprobs is not None
        (statistics.logprobs.sum() + 0.3 * statistics.entropy.sum() + statistics.top_logprobs.square().sum()).backward()
        assert z.grad is not None
        found.append((statistics.logprobs.detach(), z.grad))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-12)


def test_gradients_of_all_statistics_are_right() -> None:
    targets, mask = tokens(4, 2, 2)

    def told(z: Tensor) -> tuple[Tensor, Tensor]:
        found = token_statistics(z, targets, mask, temperature=0.8, rows=3)
        return found.logprobs, found.entropy

    assert torch.autograd.gradcheck(told, (logits(4, 2, 2).requires_grad_(),))


def test_what_is_masked_is_not_even_computed() -> None:
    targets, mask = tokens(7)
    z = logits(7)
    z[~mask] = math.nan
    z.requires_grad_()
    found = token_statistics(z, targets, mask)
    (found.logprobs.sum() + found.entropy.sum()).backward()
    assert z.grad is not None
    assert torch.isfinite(found.logprobs).all()
    assert torch.isfinite(z.grad).all()
    assert not z.grad[~mask].any()


def test_half_precision_is_widened_before_anything_is_summed() -> None:
    targets, mask = tokens(9)
    half = (20 * logits(9)).to(torch.bfloat16)
    found = token_statistics(half, targets, mask)
    exact = token_statistics(half.double(), targets, mask)
    assert found.logprobs.dtype is torch.float32
    torch.testing.assert_close(found.logprobs.double(), exact.logprobs, rtol=0, atol=1e-4)


def test_large_logits_and_forbidden_tokens_do_not_overflow() -> None:
    z = torch.tensor([[[1e4, 0.0, -1e4], [0.0, 0.0, -math.inf]]], requires_grad=True)
    found = token_statistics(z, torch.tensor([[0, 1]]), torch.ones((1, 2), dtype=torch.bool))
    (found.logprobs.sum() + found.entropy.sum()).backward()
    assert found.logprobs.tolist()[0] == pytest.approx([0.0, -math.log(2)])
    assert found.entropy.tolist()[0] == pytest.approx([0.0, math.log(2)])
    assert z.grad is not None
    assert torch.isfinite(z.grad).all()


# ------------------------------------------------------------------ KL
def test_k3_is_never_negative_and_right_on_average() -> None:
    policy, reference = torch.log_softmax(logits(14)[0, 0], -1), torch.log_softmax(logits(15)[0, 0], -1)
    estimates = k3(policy, reference)  # of each token that could have been drawn
    assert (estimates >= 0).all()
    exact = (policy.exp() * (policy - reference)).sum()
    assert float((policy.exp() * estimates).sum()) == pytest.approx(float(exact), abs=1e-12)


# ------------------------------------------------------------------ batches
PROMPTS = [[1, 2, 3], [4], [5, 6]]
COMPLETIONS = [[2, 3], [1, 5, 6, 2], [3]]
BEHAVIOUR = [[-0.1, -0.2], [-0.3, -0.4, -0.5, -0.6], [-0.7]]


class Toy:
    """A causal model: the sum of what was attended to so far, and the place."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randn((VOCABULARY, 5), generator=generator, dtype=torch.float64)
        self.places = torch.randn((32, 5), generator=generator, dtype=torch.float64)
        self.out = torch.randn((5, VOCABULARY), generator=generator, dtype=torch.float64)

    def __call__(self, batch: Batch) -> Tensor:
        sums = (self.words[batch.ids] * batch.attention.unsqueeze(-1)).cumsum(dim=1)
        return (torch.tanh(sums + self.places[batch.positions]) @ self.out)[:, :-1][batch.mask]


def completions_of(found: TokenStatistics, batch: Batch) -> list[list[float]]:
    return [found.logprobs[i][batch.mask[i]].tolist() for i in range(len(batch.ids))]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(side: Literal["left", "right"]) -> None:
    model = Toy()
    batch = collate(PROMPTS, COMPLETIONS, BEHAVIOUR, padding=0, side=side)
    together = completions_of(batch_statistics(model(batch), batch), batch)
    for number in range(3):
        alone = collate([PROMPTS[number]], [COMPLETIONS[number]], padding=6, side="right")
        assert completions_of(batch_statistics(model(alone), alone), alone)[0] == pytest.approx(together[number])
        assert batch.targets[number][batch.mask[number]].tolist() == COMPLETIONS[number]
        assert batch.behaviour[number][batch.mask[number]].tolist() == pytest.approx(BEHAVIOUR[number])
