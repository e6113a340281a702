"""The losses once more, in plain loops over Python floats: written from the papers' formulas, not from the code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


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


def surrogate_rows(
    logprobs: Array,
    behaviour: Array,
    advantages: Array,
    mask: Array,
    proximal: Array | None,
    *,
    low: float,
    high: float,
    dual: float | None,
    level: str,
    cap: float,
) -> list[list[float]]:
    rows = []
    for i in range(len(mask)):
        on = [t for t in range(len(mask[i])) if mask[i][t]]
        anchor = behaviour if proximal is None else proximal
        ratios = levelled([float(logprobs[i][t] - anchor[i][t]) for t in on], level)
        weights = [1.0] * len(on)
        if proximal is not None:
            stale = levelled([float(proximal[i][t] - behaviour[i][t]) for t in on], level)
            weights = [min(math.exp(x), cap) for x in stale]
        rows.append(
            [
                -w * clipped(math.exp(x), float(advantages[i]), low, high, dual)
                for w, x in zip(weights, ratios, strict=True)
            ]
        )
    return rows


def grpo(
    logprobs: Array,
    behaviour: Array,
    advantages: Array,
    mask: Array,
    *,
    reference: Array | None = None,
    beta: float = 0.0,
    mean: str = "tokens",
    low: float = 0.2,
    high: float = 0.28,
    dual: float | None = 3.0,
    level: str = "token",
    cap: float = 2.0,
) -> float:
    rows = surrogate_rows(
        logprobs, behaviour, advantages, mask, None, low=low, high=high, dual=dual, level=level, cap=cap
    )
    loss = averaged(rows, mean)
    if reference is not None and beta:
        estimates = []
        for i in range(len(mask)):
            on = [t for t in range(len(mask[i])) if mask[i][t]]
            gaps = [float(reference[i][t] - logprobs[i][t]) for t in on]
            drawn = [min(math.exp(float(logprobs[i][t] - behaviour[i][t])), cap) for t in on]
            estimates.append([w * (math.exp(gap) - gap - 1) for w, gap in zip(drawn, gaps, strict=True)])
        loss += beta * averaged(estimates, mean)
    return loss


def ppo(
    logprobs: Array,
    behaviour: Array,
    proximal: Array,
    advantages: Array,
    values: Array,
    old_values: Array,
    returns: Array,
    entropy: Array,
    mask: Array,
    *,
    level: str,
    clip: float = 0.2,
    value_clip: float = 0.2,
    c1: float = 0.5,
    c2: float = 0.01,
    cap: float = 2.0,
) -> float:
    rows = surrogate_rows(
        logprobs, behaviour, advantages, mask, proximal, low=clip, high=clip, dual=None, level=level, cap=cap
    )
    errors = []
    for v, old, target in zip(values, old_values, returns, strict=True):
        bounded = old + min(max(v - old, -value_clip), value_clip)
        errors.append(float(max((v - target) ** 2, (bounded - target) ** 2)))
    spread = [[float(entropy[i][t]) for t in range(len(mask[i])) if mask[i][t]] for i in range(len(mask))]
    return averaged(rows, "sequences") + c1 * math.fsum(errors) / len(errors) - c2 * averaged(spread, "sequences")


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


def sdpo(
    student_top: Array,
    teacher_top: Array,
    logprobs: Array,
    behaviour: Array,
    proximal: Array,
    mask: Array,
    *,
    alpha: float,
    cap: float = 2.0,
) -> float:
    terms = []
    for i, t in zip(*np.nonzero(mask), strict=True):
        weight = min(math.exp(float(logprobs[i][t] - proximal[i][t])), cap)
        weight *= min(math.exp(float(proximal[i][t] - behaviour[i][t])), cap)
        terms.append(weight * divergence(with_tail(student_top[i][t]), with_tail(teacher_top[i][t]), alpha))
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


def tensor(array: Any) -> Tensor:
    """As torch has it, float64 or bool."""
    found = np.asarray(array)
    return torch.tensor(found, dtype=torch.bool if found.dtype == np.bool_ else torch.float64)
