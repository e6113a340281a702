"""The losses once more, in plain loops over Python floats: written from the papers' formulas, not from the code.

A batch is a dict of arrays, by the names of the losses' arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Batch = Mapping[str, Any]


def differences(function: Callable[[Array], float], at: Array, step: float = 1e-6) -> Array:
    """The gradient by central differences."""
    gradient = np.zeros_like(at)
    for place in np.ndindex(*at.shape):
        above, below = at.copy(), at.copy()
        above[place] += step
        below[place] -= step
        gradient[place] = (function(above) - function(below)) / (2 * step)
    return gradient


def assert_same(loss: Callable[[Tensor], Tensor], expected: Callable[[Array], float], at: Array) -> None:
    """The loss to 1e-6, its gradient to a relative 1e-4: as a whole and in each component."""
    given = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    value = loss(given)
    value.backward()
    assert given.grad is not None
    gradient, numeric = given.grad.numpy(), differences(expected, at)
    assert abs(float(value.detach()) - expected(at)) < 1e-6
    assert np.linalg.norm(gradient - numeric) <= 1e-4 * np.linalg.norm(numeric)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-8)


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


def grpo(
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


def ppo(
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


def sdpo(batch: Batch, *, alpha: float, cap: float = 2.0) -> float:
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
