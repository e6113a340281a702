"""The loss of SDPO is the source's: the student's likeliest tokens, a bucket for the rest, the divergence asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from autoresearchd.learner.algorithms.sdpo import SdpoLoss, ema_update, sdpo_loss
from autoresearchd.learner.algorithms.train_options import SdpoOptions
from tests.unit.learner import reference
from tests.unit.learner.reference import Array, assert_same, random_batch, softmax_logs, tensor

ORDER = ("student_top", "teacher_top", "logprobs", "behaviour", "proximal", "mask")
ALPHAS = [0.0, 0.3, 0.5, 1.0]


def tops(draw: np.random.Generator, rows: int, width: int, k: int = 3, vocabulary: int = 9) -> Array:
    logs = [[softmax_logs(2 * draw.normal(size=vocabulary))[:k] for _ in range(width)] for _ in range(rows)]
    return np.array(logs)


def batch_of(seed: int, rows: int = 4, width: int = 3) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    batch = random_batch(seed, rows, width)
    return {name: batch[name] for name in ("logprobs", "behaviour", "proximal", "mask")} | {
        "student_top": tops(draw, rows, width),
        "teacher_top": tops(draw, rows, width),
    }


def loss_of(batch: dict[str, Any], alpha: float = 1.0, **changed: Any) -> SdpoLoss:
    given = {name: tensor(value) for name, value in batch.items()} | changed
    return sdpo_loss(*(given[name] for name in ORDER), options=SdpoOptions(alpha=alpha))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("seed", range(2))
def test_loss_and_gradient_agree_with_plain_loops(alpha: float, seed: int) -> None:
    batch = batch_of(seed)
    rest = {name: batch[name] for name in ORDER[1:]}
    assert_same(
        lambda x: loss_of(batch, alpha, student_top=x).loss,
        lambda x: reference.sdpo(x, **rest, alpha=alpha),
        batch["student_top"],
    )


def test_a_case_computed_by_hand() -> None:
    s, t = [0.6, 0.3], [0.2, 0.5]
    found = sdpo_loss(
        torch.tensor([[s]], dtype=torch.float64).log(),
        torch.tensor([[t]], dtype=torch.float64).log(),
        torch.tensor([[math.log(0.9)]], dtype=torch.float64),
        torch.tensor([[math.log(0.6)]], dtype=torch.float64),
        torch.tensor([[math.log(0.6)]], dtype=torch.float64),
        torch.ones((1, 1), dtype=torch.bool),
        options=SdpoOptions(),
    )
    exact = 0.6 * math.log(0.6 / 0.2) + 0.3 * math.log(0.3 / 0.5) + 0.1 * math.log(0.1 / 0.3)
    assert found.divergence == pytest.approx(exact)
    assert float(found.loss) == pytest.approx(1.5 * exact)
    assert found.tail == pytest.approx(0.1)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradcheck(alpha: float) -> None:
    batch = batch_of(4)
    at = tensor(batch["student_top"]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss_of(batch, alpha, student_top=x).loss, (at,))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_policy_does_not_diverge_from_itself_and_is_not_moved(alpha: float) -> None:
    batch = batch_of(5)
    at = tensor(batch["student_top"]).requires_grad_()
    found = loss_of(batch, alpha, student_top=at, teacher_top=at)
    found.loss.backward()
    assert float(found.loss.detach()) == pytest.approx(0.0, abs=1e-12)
    assert at.grad is not None
    assert float(at.grad.abs().max()) < 1e-10


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_certain_student_has_a_finite_loss_and_gradient(kind: torch.dtype) -> None:
    sure = torch.tensor([[[0.0, -60.0]]], dtype=kind, requires_grad=True)
    teacher = torch.tensor([[[math.log(0.5), math.log(0.25)]]], dtype=kind)
    zero, one = torch.zeros((1, 1), dtype=kind), torch.ones((1, 1), dtype=torch.bool)
    for alpha in ALPHAS:
        found = sdpo_loss(sure, teacher, zero, zero, zero, one, options=SdpoOptions(alpha=alpha))
        (gradient,) = torch.autograd.grad(found.loss, sure)
        assert torch.isfinite(found.loss)
        assert torch.isfinite(gradient).all()


def test_gradients_flow_neither_into_the_teacher_nor_through_the_ratio() -> None:
    batch = batch_of(7)
    given = {name: tensor(batch[name]).requires_grad_() for name in ("student_top", "teacher_top", "logprobs")}
    loss_of(batch, **given).loss.backward()
    assert given["student_top"].grad is not None
    assert given["teacher_top"].grad is None
    assert given["logprobs"].grad is None


def test_the_importance_ratio_is_cut_at_its_cap_from_above_only() -> None:
    batch = batch_of(8)
    fresh = tensor(batch["behaviour"])  # the update began with the policy that acted
    far, near, small = (loss_of(batch, logprobs=fresh + apart, proximal=fresh) for apart in (5.0, math.log(2.0), -5.0))
    assert float(far.loss) == pytest.approx(float(near.loss))
    assert far.ratios.clipped_high == 1.0
    assert float(small.loss) == pytest.approx(float(near.loss) * math.exp(-5.0) / 2)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_padding_and_order_never_matter(alpha: float) -> None:
    batch = batch_of(9)
    plain = loss_of(batch, alpha)
    rubbish = {name: value.copy() for name, value in batch.items()}
    off = ~batch["mask"]
    for name in ("student_top", "teacher_top", "logprobs", "behaviour", "proximal"):
        rubbish[name][off] = math.nan
    at = tensor(rubbish["student_top"]).requires_grad_()
    found = loss_of(rubbish, alpha, student_top=at)
    found.loss.backward()
    assert float(found.loss.detach()) == pytest.approx(float(plain.loss), abs=1e-12)
    assert at.grad is not None
    assert torch.isfinite(at.grad).all()
    order = np.random.default_rng(9).permutation(4)
    shuffled = {name: value[order] for name, value in batch.items()}
    assert float(loss_of(shuffled, alpha).loss) == pytest.approx(float(plain.loss), abs=1e-12)


def test_the_teacher_moves_a_share_of_the_way_and_nothing_is_changed_in_place() -> None:
    teacher, student = {"weight": torch.ones((2, 2))}, {"weight": torch.full((2, 2), 3.0)}
    torch.testing.assert_close(ema_update(teacher, student, 0.25)["weight"], torch.full((2, 2), 1.5))
    torch.testing.assert_close(teacher["weight"], torch.ones((2, 2)))
    torch.testing.assert_close(ema_update(teacher, student, 1.0)["weight"], student["weight"])
