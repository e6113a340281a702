"""Improve a small policy by reinforcement learning with verifiable rewards (GRPO). This is the file to improve.

Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300): several answers to a problem are drawn from the
policy, the right ones are rewarded, and each is made likelier or less likely by how its reward compares with those of
its group, within a clipped ratio. What the evaluation relies on: `weights.npy` in the output folder, the weights of the
policy in `policy_model.py`, as `weights_of` gives them.
"""

import copy
import math
import os
import time
from pathlib import Path

import numpy as np
import torch
from policy_model import draw, log_probs, weights_of, with_weights
from problems import PAD_ID, told

PROBLEMS_PER_BATCH = 32
GROUP = 8  # answers that are drawn for a problem
TEMPERATURE = 1.0  # of the drawing
UPDATES = 1  # steps of the optimiser on the answers of a batch
CLIP_LOW = 0.2
CLIP_HIGH = 0.2
KL_WEIGHT = 0.0  # of the divergence from the base policy, which takes forward passes of its own
BY_SPREAD = True  # divide an advantage by the standard deviation of its group's rewards
BY_TOKEN = False  # every token of a batch counts the same, else every answer
SKIP_EVEN = True  # leave groups out in which all answers earned the same: they teach nothing
LEARNING_RATE = 3e-4
BETA1 = 0.9
BETA2 = 0.99
WEIGHT_DECAY = 0.0
WARMUP = 0.0  # share of the time in which the rate rises
COOLDOWN = 0.0  # share of the time in which it falls to nothing
MAX_GRADIENT = 1.0  # norm that gradients are clipped to


def advantages(rewards):
    """How much better each reward (B, GROUP) is than those of its group."""
    found = rewards - rewards.mean(1, keepdim=True)
    return found / (rewards.std(1, keepdim=True) + 1e-4) if BY_SPREAD else found


def objective(chosen, old, base, advantage, counted):
    """What is to be minimised, from log-probabilities (rows, tokens): now, when drawn, and of the base policy."""
    ratio = (chosen - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)
    if base is not None:  # an estimate that is never negative (Schulman 2020)
        gain = gain - KL_WEIGHT * ((base - chosen).exp() - (base - chosen) - 1)
    gain = gain * counted
    if BY_TOKEN:
        return -gain.sum() / counted.sum()
    return -(gain.sum(1) / counted.sum(1)).mean()


def rate(progress):
    """The share of the learning rate at a share of the time."""
    up = progress / WARMUP if WARMUP > 0 else 1.0
    down = (1 - progress) / COOLDOWN if COOLDOWN > 0 else 1.0
    return max(0.0, min(1.0, up, down))


def main():
    """Train until the budget ends, write the weights."""
    budget = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", "20"))
    seed = int(os.environ.get("AUTORESEARCHD_SEED", "0"))
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    with np.load("data/train.npz") as stored:
        prompts, answers = torch.from_numpy(stored["prompts"]), stored["answers"]
    policy = with_weights(np.load("data/base.npy"))
    reference = copy.deepcopy(policy) if KL_WEIGHT > 0 else None
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=LEARNING_RATE, betas=(BETA1, BETA2), weight_decay=WEIGHT_DECAY
    )
    began, steps, progress, smooth = time.monotonic(), 0, 0.0, 0.0
    while progress < 1:
        rows = torch.randint(len(prompts), (PROBLEMS_PER_BATCH,), generator=generator)
        asked = prompts[rows]
        said = draw(policy, asked, GROUP, TEMPERATURE, generator)
        right = told(said.numpy()) == np.repeat(answers[rows.numpy()], GROUP)
        rewards = torch.from_numpy(right).float().view(-1, GROUP)
        steps += 1
        smooth = 0.95 * smooth + 0.05 * rewards.mean().item()
        if SKIP_EVEN:
            uneven = rewards.amax(1) > rewards.amin(1)
            asked, said, rewards = asked[uneven], said[uneven.repeat_interleave(GROUP)], rewards[uneven]
        if len(asked):
            advantage, counted = advantages(rewards).view(-1, 1), said != PAD_ID
            with torch.no_grad():
                base = None if reference is None else log_probs(reference, asked, said, TEMPERATURE)
            old = None
            for _ in range(UPDATES):
                chosen = log_probs(policy, asked, said, TEMPERATURE)
                old = chosen.detach() if old is None else old
                loss = objective(chosen, old, base, advantage, counted)
                for group in optimizer.param_groups:
                    group["lr"] = LEARNING_RATE * rate(progress)
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRADIENT)
                optimizer.step()
            if not math.isfinite(loss.item()):
                raise SystemExit("FAIL: the objective is not finite")
        progress = (time.monotonic() - began) / budget
        if steps % 5 == 0:
            share = min(1.0, progress)
            print(f"step {steps} ({share:.1%}) | reward: {smooth / (1 - 0.95**steps):.4f}", flush=True)
    np.save(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "weights.npy", weights_of(policy))
    print(f"steps: {steps}")
    print(f"answers: {steps * PROBLEMS_PER_BATCH * GROUP}")


if __name__ == "__main__":
    main()
