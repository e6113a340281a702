"""Log-probabilities are those of the whole vocabulary, in whatever pieces they are computed; padding never counts."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from autoresearchd.domain.errors import UsageError
from autoresearchd.learner.training.logprobs import (
    Batch,
    TokenStatistics,
    batch_statistics,
    collate,
    k3,
    token_statistics,
)
from tests.unit.learner.reference import assert_same, softmax_logs

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


def test_the_teacher_tells_the_log_probabilities_of_the_students_likeliest_tokens() -> None:
    targets, mask = tokens(2)
    student = token_statistics(logits(2), targets, mask, top=3)
    teacher = token_statistics(logits(3), targets, mask, at=student.top_indices)
    everything = torch.log_softmax(logits(3), dim=-1)
    assert student.top_indices is not None
    expected = everything.gather(-1, student.top_indices) * mask.unsqueeze(-1)
    torch.testing.assert_close(teacher.top_logprobs, expected, rtol=0, atol=1e-12)


def test_gradients_of_all_statistics_are_right() -> None:
    targets, mask = tokens(4, 2, 2)

    def told(z: Tensor) -> tuple[Tensor, Tensor]:
        found = token_statistics(z, targets, mask, temperature=0.8, rows=3)
        return found.logprobs, found.entropy

    assert torch.autograd.gradcheck(told, (logits(4, 2, 2).requires_grad_(),))


def test_entropy_against_plain_loops() -> None:
    targets, mask = tokens(6, 2, 2)
    at = logits(6, 2, 2).numpy()

    def plain(z: np.ndarray) -> float:
        rows = [softmax_logs(z[i, t]) for i, t in np.ndindex(2, 2) if mask[i, t]]
        return -math.fsum(math.exp(x) * x for row in rows for x in row)

    assert_same(lambda z: token_statistics(z, targets, mask).entropy.sum(), plain, at)


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


def test_no_more_rows_than_allowed_pass_the_output_layer_at_once_and_its_weights_learn() -> None:
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn((3, 4, 5), generator=generator, dtype=torch.float64)
    weight = torch.randn((5, VOCABULARY), generator=generator, dtype=torch.float64, requires_grad=True)
    targets, mask = tokens(8)
    seen: list[int] = []

    def head(states: Tensor) -> Tensor:
        seen.append(len(states))
        return states @ weight

    pieces = token_statistics(hidden, targets, mask, head=head, rows=5).logprobs
    whole = token_statistics(hidden @ weight, targets, mask).logprobs
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-12)
    gradient = torch.autograd.grad(pieces.sum(), weight, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(whole.sum(), weight), rtol=0, atol=1e-10)
    assert max(seen) <= 5
    assert sum(seen) == 2 * int(mask.sum())  # forwards, and again on the way back


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


def test_each_completion_can_have_its_own_temperature() -> None:
    targets, mask = tokens(10)
    both = token_statistics(logits(10), targets, mask, temperature=torch.tensor([1.0, 0.5, 2.0]))
    for row, temperature in enumerate((1.0, 0.5, 2.0)):
        alone = token_statistics(logits(10), targets, mask, temperature=temperature)
        torch.testing.assert_close(both.logprobs[row], alone.logprobs[row])


def test_tokens_that_were_not_drawn_at_random_are_refused() -> None:
    targets, mask = tokens(11)
    with pytest.raises(UsageError, match="temperature"):
        token_statistics(logits(11), targets, mask, temperature=0.0)


# ------------------------------------------------------------------ KL


def test_k3_is_never_negative_and_right_on_average() -> None:
    policy, reference = torch.log_softmax(logits(14)[0, 0], -1), torch.log_softmax(logits(15)[0, 0], -1)
    estimates = k3(policy, reference)  # of each token that could have been drawn
    assert (estimates >= 0).all()
    exact = (policy.exp() * (policy - reference)).sum()
    assert float((policy.exp() * estimates).sum()) == pytest.approx(float(exact), abs=1e-12)


def test_k3_of_nearly_equal_policies_keeps_its_digits() -> None:
    gap = torch.tensor([1e-3], dtype=torch.float32)
    assert float(k3(torch.zeros(1), gap)) == pytest.approx(5e-7, rel=0.15)


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


def test_likeliest_tokens_of_a_batch_stand_where_they_are_predicted() -> None:
    model = Toy()
    batch = collate(PROMPTS, COMPLETIONS, padding=0)
    student = batch_statistics(model(batch), batch, top=2)
    again = batch_statistics(model(batch), batch, at=student.top_indices)
    torch.testing.assert_close(again.top_logprobs, student.top_logprobs)
    assert again.logprobs.shape == batch.mask.shape


@pytest.mark.parametrize(
    ("prompts", "completions", "behaviour"),
    [
        ([], [], []),
        ([[]], [[1]], [[-1.0]]),
        ([[1]], [[]], [[]]),
        ([[1]], [[1, 2]], [[-1.0]]),
        ([[1], [2]], [[1]], [[-1.0]]),
    ],
)
def test_incomplete_rows_are_refused_before_they_are_learned_from(
    prompts: list[list[int]], completions: list[list[int]], behaviour: list[list[float]]
) -> None:
    with pytest.raises(UsageError) as caught:
        collate(prompts, completions, behaviour, padding=0)
    assert caught.value.hint
