"""Improve Qwen2.5-0.5B-Instruct on GSM8K by reinforcement learning (GRPO): the program of the `cuda` profile.

As `train.py`, for a model of the transformers library. A copy in bfloat16 draws the answers; the weights that are
trained are float32, since a step of this size is lost in the rounding of bfloat16. What the evaluation relies on:
`weights.safetensors` in the output folder, all parameters of the model by their names.
"""

import copy
import math
import os
import time
from pathlib import Path

import torch
from gsm8k import answers, loaded, number, problems, told
from safetensors.torch import save_file

PROBLEMS_PER_BATCH = 16
GROUP = 8  # answers that are drawn for a problem
TEMPERATURE = 1.0  # of the drawing
UPDATES = 1  # steps of the optimiser on the answers of a batch
CLIP_LOW = 0.2
CLIP_HIGH = 0.2
KL_WEIGHT = 0.0  # of the divergence from the base model, which takes forward passes of its own
BY_SPREAD = True  # divide an advantage by the standard deviation of its group's rewards
LEARNING_RATE = 2e-6
BETA1 = 0.9
BETA2 = 0.99
WEIGHT_DECAY = 0.0
WARMUP = 0.05  # share of the time in which the rate rises
COOLDOWN = 0.0  # share of the time in which it falls to nothing
MAX_GRADIENT = 1.0  # norm that gradients are clipped to
MICRO_BATCH = 8  # answers that go through the model at a time


def advantages(rewards):
    """How much better each reward (B, GROUP) is than those of its group."""
    found = rewards - rewards.mean(1, keepdim=True)
    return found / (rewards.std(1, keepdim=True) + 1e-4) if BY_SPREAD else found


def objective(chosen, old, base, advantage, counted):
    """What is to be minimised, a figure for each answer, from log-probabilities (rows, tokens)."""
    ratio = (chosen - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)
    if base is not None:  # an estimate that is never negative (Schulman 2020)
        gain = gain - KL_WEIGHT * ((base - chosen).exp() - (base - chosen) - 1)
    return -(gain * counted).sum(1) / counted.sum(1)


def log_probs(model, said, seen, length):
    """The log-probability of each token of the answers that stand behind `length` tokens."""
    with torch.autocast(said.device.type, dtype=torch.bfloat16, enabled=said.device.type == "cuda"):
        kept = said.size(1) - length + 1
        logits = model(input_ids=said, attention_mask=seen, logits_to_keep=kept, use_cache=False).logits
    chosen = (logits[:, :-1].float() / TEMPERATURE).log_softmax(-1)
    return chosen.gather(-1, said[:, length:, None])[..., 0]


def rate(progress):
    """The share of the learning rate at a share of the time."""
    up = progress / WARMUP if WARMUP > 0 else 1.0
    down = (1 - progress) / COOLDOWN if COOLDOWN > 0 else 1.0
    return max(0.0, min(1.0, up, down))


def main():
    """Train until the budget ends, write the weights."""
    budget = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", "900"))
    seed = int(os.environ.get("AUTORESEARCHD_SEED", "0"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    rows = problems(Path("data/train.jsonl"))
    policy, tokenizer = loaded(Path("data/policy"), device, torch.float32)
    sampler = copy.deepcopy(policy).to(torch.bfloat16 if device.type == "cuda" else torch.float32)
    reference = copy.deepcopy(sampler) if KL_WEIGHT > 0 else None
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=LEARNING_RATE, betas=(BETA1, BETA2), weight_decay=WEIGHT_DECAY
    )
    began, steps, progress, smooth = time.monotonic(), 0, 0.0, 0.0
    while progress < 1:
        batch = [rows[row] for row in torch.randint(len(rows), (PROBLEMS_PER_BATCH,), generator=generator)]
        said, length, texts = answers(sampler, tokenizer, [row["question"] for row in batch], GROUP, TEMPERATURE)
        wanted = [number(row["answer"]) for row in batch for _ in range(GROUP)]
        right = [told(text) == answer for text, answer in zip(texts, wanted, strict=True)]
        rewards = torch.tensor(right, device=device).float().view(-1, GROUP)
        steps += 1
        smooth = 0.9 * smooth + 0.1 * rewards.mean().item()
        advantage = advantages(rewards).view(-1, 1)
        ended = (said[:, length:] == tokenizer.eos_token_id).long()
        counted = ended.cumsum(1) - ended == 0  # up to the end, which counts, too
        asked = said[:, :length] != tokenizer.pad_token_id
        seen = torch.cat((asked, counted), 1).long()
        parts = torch.arange(len(said), device=device).split(MICRO_BATCH)
        old, base = [None] * len(parts), [None] * len(parts)
        for _ in range(UPDATES):
            total = 0.0
            for i, part in enumerate(parts):
                if reference is not None and base[i] is None:
                    with torch.no_grad():
                        base[i] = log_probs(reference, said[part], seen[part], length)
                chosen = log_probs(policy, said[part], seen[part], length)
                old[i] = chosen.detach() if old[i] is None else old[i]
                loss = objective(chosen, old[i], base[i], advantage[part], counted[part])
                loss = loss.sum() / len(said)
                loss.backward()
                total += loss.item()
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * rate(progress)
            torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRADIENT)
            optimizer.step()
            optimizer.zero_grad()
        if not math.isfinite(total):
            raise SystemExit("FAIL: the objective is not finite")
        with torch.no_grad():
            for drawn, trained in zip(sampler.parameters(), policy.parameters(), strict=True):
                drawn.copy_(trained)
        progress = (time.monotonic() - began) / budget
        print(f"step {steps} ({min(1.0, progress):.1%}) | reward: {smooth / (1 - 0.9**steps):.4f}", flush=True)
    out = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    weights = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in policy.named_parameters()}
    save_file(weights, out / "weights.safetensors")
    print(f"steps: {steps}")
    print(f"answers: {steps * PROBLEMS_PER_BATCH * GROUP}")


if __name__ == "__main__":
    main()
