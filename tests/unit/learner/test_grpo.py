"""The loss of GRPO is the papers', its gradient is that of the loss, and what is masked never matters."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from autoresearchd.learner.algorithms.grpo import GrpoLoss, grpo_loss
from autoresearchd.learner.algorithms.ratios import Level, Mean
from autoresearchd.learner.algorithms.train_options import GSPO, GrpoOptions
from tests.unit.learner import reference
from tests.unit.learner.reference import assert_same, random_batch, softmax_logs, tensor

COMBINATIONS = [(level, mean) for level in Level for mean in Mean]


def loss_of(batch: dict[str, Any], options: GrpoOptions | None = None, **changed: Any) -> GrpoLoss:
    given = {name: tensor(value) for name, value in batch.items()} | changed
    order = ("logprobs", "behaviour", "advantages", "mask")
    return grpo_loss(*(given[name] for name in order), options=options or GrpoOptions(), reference=given["reference"])


def test_a_case_computed_by_hand() -> None:
    ratios = torch.tensor([[1.5, 1.0], [0.5, 2.0]], dtype=torch.float64)
    found = grpo_loss(
        ratios.log() - 1.0,
        torch.full((2, 2), -1.0, dtype=torch.float64),
        torch.tensor([1.0, -1.0], dtype=torch.float64),
        torch.ones((2, 2), dtype=torch.bool),
        options=GrpoOptions(),
    )
    # gains: min(1.5, 1.28), min(1, 1), min(−0.5, −0.8), min(−2, −1.28); their mean is −0.13
    assert float(found.loss) == pytest.approx(-(1.28 + 1.0 - 0.8 - 2.0) / 4, abs=1e-12)
    assert (found.ratios.clipped_high, found.ratios.clipped_low, found.clipped_dual) == (0.25, 0.25, 0.0)
    assert found.ratios.ratio == pytest.approx(1.25)
    assert found.ratios.effective_samples == pytest.approx(25.0 / (4 * 7.5))
    kl = [r - 1 - math.log(r) for r in (1.5, 1.0, 0.5, 2.0)]
    assert found.ratios.approx_kl == pytest.approx(math.fsum(kl) / 4)
    assert found.tokens == 4


@pytest.mark.parametrize(("level", "mean"), COMBINATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_agree_with_plain_loops(level: Level, mean: Mean, seed: int) -> None:
    batch = random_batch(seed)
    options = GrpoOptions(level=level, mean=mean, beta=0.1)
    others = {name: batch[name] for name in ("behaviour", "advantages", "mask", "reference")}
    assert_same(
        lambda x: loss_of(batch, options, logprobs=x).loss,
        lambda x: reference.grpo(x, **others, mean=mean.value, level=level.value, beta=0.1),
        batch["logprobs"],
    )


def test_gspo_is_the_mean_over_completions_of_their_clipped_geometric_mean_ratio() -> None:
    batch = random_batch(3, noise=1e-3)
    kept = {"low": 3e-4, "high": 4e-4, "dual": None, "level": "sequence", "mean": "sequences"}
    found = loss_of(batch, GSPO)
    assert 0 < found.ratios.clipped_low + found.ratios.clipped_high < 1
    assert_same(
        lambda x: loss_of(batch, GSPO, logprobs=x).loss,
        lambda x: reference.grpo(x, batch["behaviour"], batch["advantages"], batch["mask"], **kept),
        batch["logprobs"],
    )


def test_gradcheck() -> None:
    batch = random_batch(6, rows=3, width=3)
    options = GrpoOptions(beta=0.05)
    at = tensor(batch["logprobs"]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss_of(batch, options, logprobs=x).loss, (at,))


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.279, 1.0, -1.279),  # within the range: the gradient of −r·A with respect to log π is −r·A
        (1.281, 1.0, 0.0),  # above it, and good: pushed no further
        (0.801, -1.0, 0.801),
        (0.799, -1.0, 0.0),  # below it, and bad: pushed no further
        (0.5, 1.0, -0.5),  # below it, but good: brought back
        (2.9, -1.0, 2.9),  # above it, and bad: brought back
        (3.1, -1.0, 0.0),  # so far above that the dual clip bounds the loss
    ],
)
def test_gradients_stop_at_both_ends_of_the_range_and_only_outwards(
    ratio: float, advantage: float, slope: float
) -> None:
    new = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    zero = torch.zeros((1, 1), dtype=torch.float64)
    one = torch.ones((1, 1), dtype=torch.bool)
    grpo_loss(new, zero, torch.tensor([advantage]).double(), one, options=GrpoOptions()).loss.backward()
    assert new.grad is not None
    assert float(new.grad) == pytest.approx(slope, abs=1e-9)


def padded(batch: dict[str, Any], columns: int) -> dict[str, Any]:
    """The same with rubbish wherever the mask is False, and more columns of it."""
    changed: dict[str, Any] = {"advantages": batch["advantages"]}
    wide = np.pad(batch["mask"], ((0, 0), (0, columns)))
    for name in ("logprobs", "behaviour", "reference"):
        changed[name] = np.where(wide, np.pad(batch[name], ((0, 0), (0, columns))), math.nan)
    return changed | {"mask": wide}


@pytest.mark.parametrize(("level", "mean"), COMBINATIONS)
def test_padding_never_matters(level: Level, mean: Mean) -> None:
    batch = random_batch(7)
    options = GrpoOptions(level=level, mean=mean, beta=0.1)
    rubbish = padded(batch, 3)
    x = tensor(rubbish["logprobs"]).requires_grad_()
    y = tensor(batch["logprobs"]).requires_grad_()
    one, other = loss_of(rubbish, options, logprobs=x), loss_of(batch, options, logprobs=y)
    one.loss.backward()
    other.loss.backward()
    assert x.grad is not None
    assert y.grad is not None
    assert float(one.loss.detach()) == pytest.approx(float(other.loss.detach()), abs=1e-12)
    torch.testing.assert_close(x.grad[:, :5], y.grad, rtol=0, atol=1e-12)
    assert not x.grad[~tensor(rubbish["mask"])].any()
    assert asdict(one.ratios) == pytest.approx(asdict(other.ratios))
    assert (one.clipped_dual, one.tokens) == (other.clipped_dual, other.tokens)


def test_no_ratio_overflows() -> None:
    new = torch.tensor([[0.0]], requires_grad=True)
    one = torch.ones((1, 1), dtype=torch.bool)
    found = grpo_loss(new, torch.tensor([[-1000.0]]), torch.tensor([-1.0]), one, options=GrpoOptions(dual_clip=None))
    assert torch.isfinite(found.loss)
    assert math.isfinite(found.ratios.approx_kl)


def test_the_divergence_is_that_of_the_policy_although_another_one_drew_the_tokens() -> None:
    """Over all tokens that can be drawn, as often as the policy that acted draws them, its value and its gradient."""
    draw = np.random.default_rng(3)
    acted, reference_ = (softmax_logs(draw.normal(size=5)) for _ in range(2))
    z = torch.tensor(np.log(np.exp(acted) * draw.uniform(0.6, 1.6, 5)), requires_grad=True)  # no ratio is near the cap
    policy, base = torch.log_softmax(z, 0), torch.tensor(reference_, dtype=torch.float64)
    exact = (policy.exp() * (policy - base)).sum()
    (slope,) = torch.autograd.grad(exact, z, retain_graph=True)
    options, one = GrpoOptions(beta=1.0), torch.ones((1, 1), dtype=torch.bool)
    estimate = torch.zeros((), dtype=torch.float64)
    for token, probability in enumerate(np.exp(acted)):
        of_token = [each[token].reshape(1, 1) for each in (policy, torch.tensor(acted, dtype=torch.float64), base)]
        found = grpo_loss(*of_token[:2], torch.zeros(1).double(), one, options=options, reference=of_token[2])
        estimate = estimate + float(probability) * found.loss
    assert float(estimate.detach()) == pytest.approx(float(exact.detach()), abs=1e-12)
    torch.testing.assert_close(torch.autograd.grad(estimate, z)[0], slope, rtol=0, atol=1e-12)
