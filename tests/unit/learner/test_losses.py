"""Each loss is its paper's, its gradient is that of the loss, and what is masked never matters.

What is expected is written from the papers' formulas, not from the code: in plain loops over Python floats. A batch is
a dict of arrays, by the names of the losses' arguments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoresearchd.learner.algorithms.grpo import grpo_loss
from autoresearchd.learner.algorithms.ppo import gae, ppo_loss
from autoresearchd.learner.algorithms.scoring import Part
from autoresearchd.learner.algorithms.sdpo import ema_update, sdpo_loss
from autoresearchd.learner.algorithms.train_options import GSPO, GrpoOptions, Level, Mean, PpoOptions, SdpoOptions

Array = NDArray[np.float64]
Batch = Mapping[str, Any]
ALPHAS = [0.0, 0.3, 0.5, 1.0]


def differences(function: Callable[[Array], float], at: Array, step: float = 1e-6) -> Array:
    """The gradient by central differences."""
    gradient = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        above, below = at.copy(), at.copy()
        above[place] += step
        below[place] -= step
        gradient[place] = (function(above) - function(below)) / (2 * step)
    return gradient


def softmax_logs(logits: Array) -> list[float]:
    top = max(logits)
    total = math.log(math.fsum(math.exp(x - top) for x in logits)) + top
    return [float(x - total) for x in logits]


def levelled(each: list[float], level: str) -> list[float]:
    if level == "sequence":
        return [math.fsum(each) / len(each)] * len(each)
    return [math.fsum(each)] * len(each) if level == "completion" else each


def averaged(rows: list[list[float]], how: str) -> float:
    rows = [row for row in rows if row]
    if how == "tokens":
        return math.fsum(x for row in rows for x in row) / sum(map(len, rows))
    return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)


def clipped(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    """To be maximised."""
    gain = min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return max(gain, dual * advantage) if dual is not None and advantage < 0 else gain


def picked(batch: Batch, name: str) -> list[list[float]]:
    """What stands where the mask is True, row by row."""
    return [[float(x) for x in row[on]] for row, on in zip(batch[name], batch["mask"], strict=True)]


def gaps(batch: Batch, new: str, old: str) -> list[list[float]]:
    """Log-ratios of two policies, row by row."""
    pairs = zip(picked(batch, new), picked(batch, old), strict=True)
    return [[a - b for a, b in zip(one, other, strict=True)] for one, other in pairs]


def plain_grpo(
    batch: Batch,
    *,
    beta: float = 0.0,
    mean: str = "tokens",
    low: float = 0.2,
    high: float = 0.28,
    dual: float | None = 3.0,
    level: str = "token",
    cap: float = 2.0,
) -> float:
    acted = gaps(batch, "logprobs", "behaviour")
    rows = [
        [-clipped(math.exp(x), float(advantage), low, high, dual) for x in levelled(own, level)]
        for own, advantage in zip(acted, batch["advantages"], strict=True)
    ]
    loss = averaged(rows, mean)
    if beta:
        estimates = [
            [min(math.exp(x), cap) * (math.exp(gap) - gap - 1) for x, gap in zip(*both, strict=True)]
            for both in zip(acted, gaps(batch, "reference", "logprobs"), strict=True)
        ]
        loss += beta * averaged(estimates, mean)
    return loss


def plain_ppo(
    batch: Batch,
    *,
    level: str,
    clip: float = 0.2,
    value_clip: float = 0.2,
    c1: float = 0.5,
    c2: float = 0.01,
    cap: float = 2.0,
) -> float:
    rows = []
    both = gaps(batch, "logprobs", "proximal"), gaps(batch, "proximal", "behaviour")
    for own, stale, advantage in zip(*both, batch["advantages"], strict=True):
        pairs = zip(levelled(own, level), levelled(stale, level), strict=True)
        rows.append(
            [-min(math.exp(w), cap) * clipped(math.exp(x), float(advantage), clip, clip, None) for x, w in pairs]
        )
    errors = []
    for v, old, target in zip(batch["values"], batch["old_values"], batch["returns"], strict=True):
        bounded = old + min(max(v - old, -value_clip), value_clip)
        errors.append(float(max((v - target) ** 2, (bounded - target) ** 2)))
    spread = averaged(picked(batch, "entropy"), "sequences")
    return averaged(rows, "sequences") + c1 * math.fsum(errors) / len(errors) - c2 * spread


def kl(one: list[float], other: list[float]) -> float:
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(one, other, strict=True))


def divergence(student: list[float], teacher: list[float], alpha: float) -> float:
    if alpha == 0:
        return kl(teacher, student)
    if alpha == 1:
        return kl(student, teacher)
    mixed = [math.log((1 - alpha) * math.exp(s) + alpha * math.exp(t)) for s, t in zip(student, teacher, strict=True)]
    return (1 - alpha) * kl(student, mixed) + alpha * kl(teacher, mixed)


def with_tail(top: Array) -> list[float]:
    listed = [float(x) for x in top]
    return [*listed, math.log1p(-math.fsum(math.exp(x) for x in listed))]


def plain_sdpo(batch: Batch, *, alpha: float, cap: float = 2.0) -> float:
    terms = []
    for at in zip(*np.nonzero(batch["mask"]), strict=True):
        weight = min(math.exp(float(batch["logprobs"][at] - batch["proximal"][at])), cap)
        weight *= min(math.exp(float(batch["proximal"][at] - batch["behaviour"][at])), cap)
        student, teacher = with_tail(batch["student_top"][at]), with_tail(batch["teacher_top"][at])
        terms.append(weight * divergence(student, teacher, alpha))
    return math.fsum(terms) / len(terms)


def random_batch(seed: int, rows: int = 6, width: int = 5, noise: float = 0.5) -> dict[str, Any]:
    """Log-probabilities of policies that have drifted apart, advantages of both signs, a mask with holes."""
    draw = np.random.default_rng(seed)
    mask = draw.random((rows, width)) < 0.7
    mask[:, 0] = True
    behaviour = draw.uniform(-3.0, -0.1, (rows, width))
    return {
        "logprobs": behaviour + noise * draw.normal(size=(rows, width)),
        "behaviour": behaviour,
        "proximal": behaviour + noise * draw.normal(size=(rows, width)),
        "reference": behaviour + noise * draw.normal(size=(rows, width)),
        "advantages": draw.normal(size=rows),
        "mask": mask,
    }


def tensors(batch: Batch) -> dict[str, Tensor]:
    """As torch has it, float64 or bool."""
    return {
        name: torch.tensor(each, dtype=torch.bool if name == "mask" else torch.float64) for name, each in batch.items()
    }


# ---------------------------------------------------------------------- as the papers have it
def with_values(seed: int) -> dict[str, Any]:
    """For PPO."""
    batch, draw = random_batch(seed, noise=0.15), np.random.default_rng(1000 + seed)
    old = draw.normal(size=6)
    extra = {"values": old + 0.3 * draw.normal(size=6), "old_values": old, "returns": draw.normal(size=6)}
    return batch | extra | {"entropy": draw.uniform(0.1, 2.0, (6, 5))}


def with_tops(seed: int) -> dict[str, Any]:
    """For SDPO: the likeliest 3 of 9 tokens."""
    draw, batch = np.random.default_rng(seed), random_batch(seed, rows=4, width=3)
    for name in ("student_top", "teacher_top"):
        batch[name] = np.array([[softmax_logs(2 * draw.normal(size=9))[:3] for _ in range(3)] for _ in range(4)])
    return batch


def loss_of(loss: Any, options: Any, batch: dict[str, Any], **changed: Tensor) -> Part:
    given = {name: each for name, each in (tensors(batch) | changed).items() if name in signature(loss).parameters}
    found: Part = loss(**given, options=options)
    return found


grpo, ppo, sdpo = (partial(loss_of, loss) for loss in (grpo_loss, ppo_loss, sdpo_loss))
KEPT: dict[str, Any] = {"low": 3e-4, "high": 4e-4, "dual": None, "level": "sequence", "mean": "sequences"}
PPO = ("logprobs", "values", "entropy")
CASES = [
    *(
        (grpo, GrpoOptions(level=one, mean=mean, beta=0.1), random_batch,
         partial(plain_grpo, level=one.value, mean=mean.value, beta=0.1), ("logprobs",))
        for one in Level for mean in Mean
    ),
    (grpo, GSPO, partial(random_batch, noise=1e-3), partial(plain_grpo, **KEPT), ("logprobs",)),
    *((ppo, PpoOptions(level=one), with_values, partial(plain_ppo, level=one.value), PPO) for one in Level),
    *((sdpo, SdpoOptions(alpha=a), with_tops, partial(plain_sdpo, alpha=a), ("student_top",)) for a in ALPHAS),
]  # fmt: skip


def one(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def everywhere(width: int = 1) -> Tensor:
    return torch.ones((1, width), dtype=torch.bool)


def assert_same(loss: Any, options: Any, plain: Callable[[Batch], float], batch: Batch, name: str) -> None:
    """The loss to 1e-6, its gradient to a relative 1e-4: as a whole and in each component."""
    at = tensors(batch)[name].requires_grad_()
    value = loss(options, batch, **{name: at}).loss
    value.backward()
    assert at.grad is not None
    gradient, numeric = at.grad.numpy(), differences(lambda x: plain({**batch, name: x}), batch[name])
    assert abs(float(value.detach()) - plain(batch)) < 1e-6
    assert np.linalg.norm(gradient - numeric) <= 1e-4 * np.linalg.norm(numeric)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(("loss", "options", "batch_of", "plain", "names"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradients_agree_with_plain_loops(
    loss: Any, options: Any, batch_of: Any, plain: Any, names: tuple[str, ...], seed: int
) -> None:
    for name in names:
        assert_same(loss, options, plain, batch_of(seed), name)


def test_grpo_of_a_case_computed_by_hand() -> None:
    ratios = torch.tensor([[1.5, 1.0], [0.5, 2.0]], dtype=torch.float64)
    acted, mask = torch.full_like(ratios, -1.0), torch.ones((2, 2), dtype=torch.bool)
    found = grpo_loss(ratios.log() - 1.0, acted, one(1.0, -1.0)[0], mask, options=GrpoOptions())
    # gains: min(1.5, 1.28), min(1, 1), min(−0.5, −0.8), min(−2, −1.28); their mean is −0.13
    assert float(found.loss) == pytest.approx(-(1.28 + 1.0 - 0.8 - 2.0) / 4, abs=1e-12)
    kl = [r - 1 - math.log(r) for r in (1.5, 1.0, 0.5, 2.0)]
    assert {name: value for name, (value, weight) in found.figures.items() if weight == 4} == pytest.approx(
        {
            "clipped_high": 0.25,
            "clipped_low": 0.25,
            "clipped_dual": 0.0,
            "ratio": 1.25,
            "effective_samples": 25.0 / (4 * 7.5),
            "approx_kl": math.fsum(kl) / 4,
        }
    )


# ---------------------------------------------------------------------- gradients
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
    new = one(math.log(ratio)).requires_grad_()
    grpo_loss(new, one(0.0), one(advantage)[0], everywhere(), options=GrpoOptions()).loss.backward()
    assert new.grad is not None
    assert float(new.grad) == pytest.approx(slope, abs=1e-9)


def test_no_ratio_overflows() -> None:
    new, acted = torch.tensor([[0.0]], requires_grad=True), torch.tensor([[-1000.0]])
    found = grpo_loss(new, acted, torch.tensor([-1.0]), everywhere(), options=GrpoOptions(dual_clip=None))
    assert torch.isfinite(found.loss)
    assert math.isfinite(found.figures["approx_kl"][0])


@pytest.mark.parametrize(
    ("apart", "held", "divergence", "slope"),
    [  # k3 alone explodes where a token was unlearned; with the ratio it is π_ref/μ
        *((apart, held, math.exp(held + 3.0), 0.0) for apart in (19.0, 21.0, 400.0) for held in (-0.1, -3.0)),
        (0.0, -53.0, 49.0, 50.0),  # the reference would hardly draw it: held back however far
    ],
)
def test_no_token_rules_the_loss_by_its_divergence(apart: float, held: float, divergence: float, slope: float) -> None:
    new, options = one(-3.0 - apart).float().requires_grad_(), GrpoOptions(beta=1.0)
    at = {"behaviour": one(-3.0).float(), "reference": one(held).float(), "mask": everywhere()}
    found = grpo_loss(new, advantages=one(0.0)[0].float(), options=options, **at)
    found.loss.backward()
    assert new.grad is not None
    assert float(found.loss.detach()) == pytest.approx(divergence, rel=1e-3)
    assert float(new.grad) == pytest.approx(slope, abs=1e-3)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_certain_student_has_a_finite_loss_and_gradient(kind: torch.dtype, alpha: float) -> None:
    sure = torch.tensor([[[0.0, -60.0]]], dtype=kind, requires_grad=True)
    teacher = torch.tensor([[[math.log(0.5), math.log(0.25)]]], dtype=kind)
    zero = torch.zeros((1, 1), dtype=kind)
    found = sdpo_loss(sure, teacher, zero, zero, zero, everywhere(), options=SdpoOptions(alpha=alpha))
    (gradient,) = torch.autograd.grad(found.loss, sure)
    assert torch.isfinite(found.loss)
    assert torch.isfinite(gradient).all()


def test_gradients_flow_neither_into_the_teacher_nor_through_the_ratio() -> None:
    batch = with_tops(7)
    given = {name: tensors(batch)[name].requires_grad_() for name in ("student_top", "teacher_top", "logprobs")}
    sdpo(SdpoOptions(), batch, **given).loss.backward()
    assert [name for name, each in given.items() if each.grad is not None] == ["student_top"]


def test_the_teacher_moves_a_share_of_the_way_and_nothing_is_changed_in_place() -> None:
    teacher, student = {"weight": torch.ones((2, 2))}, {"weight": torch.full((2, 2), 3.0)}
    torch.testing.assert_close(ema_update(teacher, student, 0.25)["weight"], torch.full((2, 2), 1.5))
    torch.testing.assert_close(teacher["weight"], torch.ones((2, 2)))


# ---------------------------------------------------------------------- what does not matter
@pytest.mark.parametrize(("loss", "options", "batch_of"), [case[:3] for case in CASES])
def test_padding_and_the_order_of_the_answers_never_matter(loss: Any, options: Any, batch_of: Any) -> None:
    """Rubbish wherever the mask is False, and more columns of it."""
    batch = batch_of(7)
    rows, width = batch["mask"].shape
    rubbish = {
        name: np.pad(each, ((0, 0), (0, 3), (0, 0))[: each.ndim]) if each.ndim > 1 else each
        for name, each in batch.items()
    }
    for name, each in rubbish.items():
        if each.ndim > 1 and name != "mask":
            each[~rubbish["mask"]] = math.nan
    name = "student_top" if loss is sdpo else "logprobs"
    x, y = (tensors(each)[name].requires_grad_() for each in (rubbish, batch))
    padded, plain = loss(options, rubbish, **{name: x}), loss(options, batch, **{name: y})
    padded.loss.backward()
    plain.loss.backward()
    assert x.grad is not None
    assert y.grad is not None
    assert float(padded.loss.detach()) == pytest.approx(float(plain.loss.detach()), abs=1e-12)
    torch.testing.assert_close(x.grad[:, :width], y.grad, rtol=0, atol=1e-12)
    assert not x.grad[~tensors(rubbish)["mask"]].any()
    assert padded.figures == {name: pytest.approx(each) for name, each in plain.figures.items()}
    order = np.random.default_rng(9).permutation(rows)
    shuffled = loss(options, {name: each[order] for name, each in batch.items()})
    assert float(shuffled.loss) == pytest.approx(float(plain.loss.detach()), abs=1e-12)


# ---------------------------------------------------------------------- a research MDP small enough to solve
REWARDS = np.array([[1.0, -0.5], [0.3, 2.0]])  # of action a in state s; the action is the next state
STEPS, GAMMA = 3, 0.9


def policy(theta: Array) -> Array:
    return np.asarray(np.exp(theta) / np.exp(theta).sum(axis=1, keepdims=True))


def values_by_hand(theta: Array) -> Array:
    """V_t(s) by dynamic programming, [STEPS + 1, 2]."""
    values = np.zeros((STEPS + 1, 2))
    for t in reversed(range(STEPS)):
        values[t] = (policy(theta) * (REWARDS + GAMMA * values[t + 1])).sum(axis=1)
    return values


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_ppo_with_gae_follows_the_exact_policy_gradient_of_a_solved_task(lam: float) -> None:
    """With the true values GAE is unbiased for every λ: all paths, weighted by their probability, give ∇J."""
    theta = np.array([[0.2, -0.4], [0.1, 0.5]])
    v, pi = values_by_hand(theta), policy(theta)
    paths, signal = [], []
    for actions in itertools.product(range(2), repeat=STEPS):
        pairs = list(zip([0, *actions[:-1]], actions, strict=True))
        chance = math.prod(pi[s, a] for s, a in pairs)
        worth = dict(enumerate([*(v[t, s] for t, (s, _) in enumerate(pairs)), 0.0]))
        rewards = {t: REWARDS[pair] for t, pair in enumerate(pairs)}
        steps = gae(range(STEPS), rewards, worth, {t: [t + 1] for t in range(STEPS)}, gamma=GAMMA, lam=lam)
        paths += pairs
        signal += [chance * GAMMA**t * steps[t] for t in range(STEPS)]
    parameters = torch.tensor(theta, requires_grad=True)
    logprobs = torch.log_softmax(parameters, dim=-1)[[s for s, _ in paths], [a for _, a in paths]].unsqueeze(-1)
    acted, nothing = logprobs.detach(), torch.zeros(len(paths), dtype=torch.float64)
    rest = (nothing, nothing, nothing, torch.zeros_like(logprobs), torch.ones_like(logprobs, dtype=torch.bool))
    advantages = len(paths) * torch.tensor(signal, dtype=torch.float64)
    ppo_loss(logprobs, acted, acted, advantages, *rest, options=PpoOptions()).loss.backward()
    assert parameters.grad is not None
    exact = differences(lambda x: float(values_by_hand(x)[0, 0]), theta)
    np.testing.assert_allclose(-parameters.grad.numpy(), exact, rtol=1e-6, atol=1e-8)
