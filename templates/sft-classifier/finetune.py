"""Fine-tune a pretrained encoder to tell newsgroups apart: the program of the `cuda` profile."""

import json
import math
import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

LENGTH = 256  # tokens of a post, from its beginning
BATCH_SIZE = 32
LEARNING_RATE = 5e-5
HEAD_LEARNING_RATE = 5e-4
BETA2 = 0.98
WEIGHT_DECAY = 0.01
LABEL_SMOOTHING = 0.0
WARMUP = 0.06  # share of the time in which the rates rise
COOLDOWN = 0.94  # share of the time in which they fall to nothing
MAX_GRADIENT = 1.0  # norm that gradients are clipped to
ENCODER = Path("data/encoder")


def posts(name):
    """The texts of a file of posts, and their labels where it has any."""
    words = Path("data/words.txt").read_text().splitlines()
    with np.load(Path("data") / name) as stored:
        tokens, starts, labels = stored["tokens"], stored["starts"], stored.get("labels")
    parts = [tokens[a : min(b, a + LENGTH)] for a, b in pairwise(starts)]
    return [" ".join(words[t] for t in part) for part in parts], labels


def batch(tokenizer, texts, device):
    """The model's inputs for some texts."""
    found = tokenizer(texts, truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
    return found.to(device)


def rate(progress):
    """The share of the learning rates at a share of the time."""
    up = progress / WARMUP if WARMUP > 0 else 1.0
    down = (1 - progress) / COOLDOWN if COOLDOWN > 0 else 1.0
    return max(0.0, min(1.0, up, down))


def groups(model):
    """Parameters with their rates: those of the encoder, and those that are new."""
    inner = {id(p) for p in model.base_model.parameters()}
    new = [p for p in model.parameters() if id(p) not in inner]
    return [
        {"params": list(model.base_model.parameters()), "lr": LEARNING_RATE, "base": LEARNING_RATE},
        {"params": new, "lr": HEAD_LEARNING_RATE, "base": HEAD_LEARNING_RATE},
    ]


def main():
    """Train until the budget ends, predict, write."""
    budget = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", "180"))
    seed = int(os.environ.get("AUTORESEARCHD_SEED", "0"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    classes = json.loads(Path("data/meta.json").read_text())["classes"]
    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    model = AutoModelForSequenceClassification.from_pretrained(ENCODER, num_labels=len(classes)).to(device)
    optimizer = torch.optim.AdamW(groups(model), betas=(0.9, BETA2), weight_decay=WEIGHT_DECAY)
    half = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    texts, labels = posts("train.npz")
    labels = torch.from_numpy(labels)
    model.train()
    steps, progress, smooth = 0, 0.0, 0.0
    order = iter(())
    began = time.monotonic()
    while progress < 1:
        chosen = next(order, None)
        if chosen is None:  # a new epoch
            order = iter(np.array_split(rng.permutation(len(texts)), math.ceil(len(texts) / BATCH_SIZE)))
            continue
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * rate(progress)
        with half:
            logits = model(**batch(tokenizer, [texts[i] for i in chosen], device)).logits
        loss = F.cross_entropy(logits.float(), labels[chosen].to(device), label_smoothing=LABEL_SMOOTHING)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT)
        optimizer.step()
        smooth = 0.95 * smooth + 0.05 * loss.item()
        steps += 1
        if not math.isfinite(smooth):
            raise SystemExit("FAIL: the loss is not finite")
        if steps % 20 == 0:
            print(f"step {steps} | loss: {smooth / (1 - 0.95**steps):.6f}", flush=True)
        progress = (time.monotonic() - began) / budget
    model.eval()
    asked = posts("test.npz")[0]
    parts = [asked[start : start + 4 * BATCH_SIZE] for start in range(0, len(asked), 4 * BATCH_SIZE)]
    with torch.no_grad(), half:
        said = [model(**batch(tokenizer, part, device)).logits.argmax(1).cpu() for part in parts]
    np.save(Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", ".")) / "predictions.npy", torch.cat(said).numpy())
    print(f"steps: {steps}")
    print(f"epochs: {steps * BATCH_SIZE / len(texts):.2f}")


if __name__ == "__main__":
    main()
