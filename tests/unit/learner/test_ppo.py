"""The loss of PPO is Schulman's, over experiments as actions: it follows the exact gradient of a small task."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from autoresearchd.learner.algorithms.advantages import gae
from autoresearchd.learner.algorithms.ppo import PpoLoss, ppo_loss
from autoresearchd.learner.algorithms.ratios import Level
from autoresearchd.learner.algorithms.train_options import PpoOptions
from tests.unit.learner import reference
from tests.unit.learner.reference import Array, assert_same, differences, random_batch, tensor

ORDER = ("logprobs", "behaviour", "proximal", "advantages", "values", "old_values", "returns", "entropy", "mask")


def batch_of(seed: int, noise: float = 0.15) -> dict[str, Any]:
    batch = random_batch(seed, noise=noise)
    draw = np.random.default_rng(1000 + seed)
    del batch["reference"]
    old = draw.normal(size=6)
    extra = {"values": old + 0.3 * draw.normal(size=6), "old_values": old, "returns": draw.normal(size=6)}
    return batch | extra | {"entropy": draw.uniform(0.1, 2.0, (6, 5))}


def loss_of(batch: dict[str, Any], level: Level = Level.COMPLETION, **changed: Any) -> PpoLoss:
    given = {name: tensor(value) for name, value in batch.items()} | changed
    return ppo_loss(*(given[name] for name in ORDER), options=PpoOptions(level=level))


def plain(batch: dict[str, Any], **options: Any) -> float:
    return reference.ppo(*(batch[name] for name in ORDER), **options)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["logprobs", "values", "entropy"])
def test_loss_and_all_gradients_agree_with_plain_loops(level: Level, seed: int, name: str) -> None:
    batch = batch_of(seed)
    assert_same(
        lambda x: loss_of(batch, level, **{name: x}).loss,
        lambda x: plain(batch | {name: x}, level=level.value),
        batch[name],
    )


def test_a_case_computed_by_hand() -> None:
    new = torch.tensor([[math.log(1.1), math.log(1.1)]], dtype=torch.float64)  # together 1.21: beyond 1.2
    one = torch.ones(1, dtype=torch.float64)
    found = ppo_loss(
        new,
        torch.zeros_like(new),
        torch.zeros_like(new),
        2.0 * one,
        1.0 * one,
        0.5 * one,
        0.6 * one,
        torch.tensor([[0.5, 1.5]], dtype=torch.float64),
        torch.ones((1, 2), dtype=torch.bool),
        options=PpoOptions(level=Level.COMPLETION),
    )
    # −1.2·2 + 0.5·max((1 − 0.6)², (0.7 − 0.6)²) − 0.01·1
    assert float(found.loss) == pytest.approx(-2.4 + 0.5 * 0.16 - 0.01, abs=1e-12)
    assert found.value_loss == pytest.approx(0.16)
    assert found.ratios.clipped_high == 1.0
    assert found.ratios.ratio == pytest.approx(1.21)


def test_gradcheck() -> None:
    batch = batch_of(4)
    at = (tensor(batch["logprobs"]).requires_grad_(), tensor(batch["values"]).requires_grad_())
    assert torch.autograd.gradcheck(lambda x, v: loss_of(batch, logprobs=x, values=v).loss, at)


# ------------------------------------------------------------------ a research MDP small enough to solve
REWARDS = np.array([[1.0, -0.5], [0.3, 2.0]])  # of action a in state s; the action is the next state
STEPS, GAMMA = 3, 0.9


def policy(theta: Array) -> Array:
    e = np.exp(theta)
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def values_by_hand(theta: Array) -> Array:
    """V_t(s) by dynamic programming, [STEPS + 1, 2]."""
    found = np.zeros((STEPS + 1, 2))
    for t in reversed(range(STEPS)):
        for s in range(2):
            found[t, s] = sum(policy(theta)[s, a] * (REWARDS[s, a] + GAMMA * found[t + 1, a]) for a in range(2))
    return found


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_ppo_with_gae_follows_the_exact_policy_gradient_of_a_solved_task(lam: float) -> None:
    """With the true values GAE is unbiased for every λ: all paths, weighted by their probability, give ∇J."""
    theta = np.array([[0.2, -0.4], [0.1, 0.5]])
    v, pi = values_by_hand(theta), policy(theta)
    paths, weights, advantages, expected_value = [], [], [], []
    for actions in itertools.product(range(2), repeat=STEPS):
        states = [0, *actions[:-1]]
        chance = math.prod(pi[s, a] for s, a in zip(states, actions, strict=True))
        steps = gae(
            [REWARDS[s, a] for s, a in zip(states, actions, strict=True)],
            [v[t, s] for t, s in enumerate(states)],
            gamma=GAMMA,
            lam=lam,
            following=[[1], [2], []],
            bootstrap=[0.0] * STEPS,
        )
        for t, (s, a) in enumerate(zip(states, actions, strict=True)):
            paths.append((s, a))
            weights.append(chance * GAMMA**t)
            advantages.append(float(steps.advantages[t]))
            if t == 0:
                expected_value.append(chance * float(steps.returns[0]))
    assert math.fsum(expected_value) == pytest.approx(v[0, 0], abs=1e-12)

    parameters = torch.tensor(theta, requires_grad=True)
    logprobs = torch.log_softmax(parameters, dim=-1)[[s for s, _ in paths], [a for _, a in paths]].unsqueeze(-1)
    count = len(paths)
    nothing = torch.zeros(count, dtype=torch.float64)
    found = ppo_loss(
        logprobs,
        logprobs.detach(),
        logprobs.detach(),
        torch.tensor(weights).double() * torch.tensor(advantages).double() * count,
        nothing,
        nothing,
        nothing,
        torch.zeros_like(logprobs),
        torch.ones((count, 1), dtype=torch.bool),
        options=PpoOptions(),
    )
    found.loss.backward()
    assert parameters.grad is not None
    exact = differences(lambda x: float(values_by_hand(x)[0, 0]), theta)
    np.testing.assert_allclose(-parameters.grad.numpy(), exact, rtol=1e-6, atol=1e-8)


# ------------------------------------------------------------------ what does not matter
@pytest.mark.parametrize("level", list(Level))
def test_padding_never_matters(level: Level) -> None:
    batch = batch_of(5)
    wide = np.pad(batch["mask"], ((0, 0), (0, 2)))
    rubbish = batch | {"mask": wide}
    for name in ("logprobs", "behaviour", "proximal", "entropy"):
        rubbish[name] = np.where(wide, np.pad(batch[name], ((0, 0), (0, 2))), math.nan)
    x, y = (tensor(each["logprobs"]).requires_grad_() for each in (rubbish, batch))
    one = loss_of(rubbish, level, logprobs=x)
    other = loss_of(batch, level, logprobs=y)
    one.loss.backward()
    other.loss.backward()
    assert x.grad is not None
    assert float(one.loss.detach()) == pytest.approx(float(other.loss.detach()), abs=1e-12)
    torch.testing.assert_close(x.grad[:, :5], y.grad, rtol=0, atol=1e-12)
    assert asdict(one.ratios) == pytest.approx(asdict(other.ratios))
