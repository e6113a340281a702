"""Pretrain a small language model of bytes within a fixed time. This is the file to improve.

A transformer over bytes, whose input is the sum of embeddings of the last 1 to NGRAMS bytes; longer n-grams share rows
of a table by a hash. Trained by AdamW on whatever is drawn from `data/train.bin`.

What the evaluation relies on: the output folder holds `checkpoint.pt`, of tensors and plain values, and
`load_model(path, device)` returns a module for which `model(idx)`, idx (B, T) bytes, gives logits (B, T, 256) of the
next byte; position t may use the bytes 0..t only. Importing this file has no side effects.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Model
DEPTH = 1
WIDTH = 64
HEADS = 2  # one of: 1, 2, 4
MLP_RATIO = 2
NGRAMS = 3  # bytes of the longest n-gram with an embedding
BUCKETS = 4096  # rows of the table of each length above 1
ROPE_BASE = 10000

# Optimisation
SEQ_LEN = 128
BATCH_SIZE = 8
LEARNING_RATE = 0.01
TABLE_LR = 0.03  # of the embeddings
BETA2 = 0.95
WEIGHT_DECAY = 0.05
WARMUP = 0.05  # share of the budget in which the rate rises
WARMDOWN = 0.5  # share in which it falls
FINAL_LR = 0.05  # share of the rate that is left at the end
CLIP = 1.0

CUDA = os.environ.get("AUTORESEARCHD_PROFILE") == "cuda"
if CUDA:
    DEPTH *= 9
    WIDTH *= 9
    HEADS *= 3
    BUCKETS *= 4
    SEQ_LEN *= 8
    BATCH_SIZE *= 8
    LEARNING_RATE /= 10
    TABLE_LR /= 10


def norm(x: Tensor) -> Tensor:
    """Root-mean-square normalisation over the channels."""
    return F.rms_norm(x, (x.size(-1),))


def rotary(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of rotary embeddings, each (length, size / 2)."""
    frequencies = ROPE_BASE ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.outer(torch.arange(length, device=device), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (B, H, T, D)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos + b * sin, b * cos - a * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    """Causal attention, then an MLP with squared ReLU, each added to the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, int(MLP_RATIO * WIDTH), bias=False)
        self.down = nn.Linear(int(MLP_RATIO * WIDTH), WIDTH, bias=False)
        for written in (self.proj, self.down):
            nn.init.zeros_(written.weight)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(norm(x)).view(rows, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(norm(q), *turns), rotate(norm(k), *turns)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, width))
        hidden = F.relu(self.up(norm(x)))
        return x + self.down(hidden * hidden)


class Model(nn.Module):
    """Embedded n-grams, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(BUCKETS if n else 256, WIDTH) for n in range(NGRAMS))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.head = nn.Linear(WIDTH, 256, bias=False)
        nn.init.zeros_(self.head.weight)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.5)

    def forward(self, idx: Tensor) -> Tensor:
        """Logits (B, T, 256) of the next byte for idx (B, T)."""
        length = idx.size(1)
        code, x = idx, self.tables[0](idx)
        for n, table in enumerate(self.tables[1:], 1):
            code = code * 257 + F.pad(idx, (n, 0))[:, :length] + 1
            x = x + table((code * 2654435761 >> 15) % BUCKETS)
        x = norm(x)
        turns = rotary(length, WIDTH // HEADS, idx.device)
        for block in self.blocks:
            x = block(x, turns)
        return self.head(norm(x)).float()


def load_model(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> nn.Module:
    """The trained model, ready for evaluation: model(idx) -> logits."""
    model = Model()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.to(device).eval()


def batches(path: Path, device: torch.device, seed: int):
    """Random windows of the training text: inputs and targets, each (BATCH_SIZE, SEQ_LEN)."""
    text = torch.from_file(str(path), dtype=torch.uint8, size=path.stat().st_size)
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(SEQ_LEN + 1)
    while True:
        window = text[torch.randint(len(text) - SEQ_LEN, (BATCH_SIZE, 1), generator=generator) + offsets]
        window = window.to(device).long()
        yield window[:, :-1], window[:, 1:]


def rate(progress: float) -> float:
    """The learning rate's factor: it rises, stays and falls over the progress 0..1 of the budget."""
    if progress < WARMUP:
        return progress / WARMUP
    return min(1.0, FINAL_LR + (1 - FINAL_LR) * max(0.0, 1 - progress) / max(WARMDOWN, 1e-6))


def main() -> None:
    """Train for the budget and write the checkpoint."""
    budget = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", 300 if CUDA else 18))
    seed = int(os.environ.get("AUTORESEARCHD_SEED", 42))
    output = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    device = torch.device("cuda" if CUDA else "cpu")
    torch.manual_seed(seed)
    model = Model().to(device)
    tables = list(model.tables.parameters())
    others = [p for name, p in model.named_parameters() if not name.startswith("tables")]
    optimizer = torch.optim.AdamW(
        [{"params": others, "lr": LEARNING_RATE}, {"params": tables, "lr": TABLE_LR, "weight_decay": 0.0}],
        betas=(0.9, BETA2), weight_decay=WEIGHT_DECAY, fused=True,
    )  # fmt: skip
    rates = [group["lr"] for group in optimizer.param_groups]
    loader = batches(Path(__file__).resolve().parent / "data/train.bin", device, seed)
    began, step, progress = time.monotonic(), 0, 0.0
    while progress < 1:
        for group, full in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = full * rate(progress)
        inputs, targets = next(loader)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=CUDA):
            logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0:
            print(f"step {step:05d} ({100 * progress:.0f}%) | loss: {loss.item():.4f}", flush=True)
        progress = (time.monotonic() - began) / budget
    output.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), output / "checkpoint.pt")
    print(f"METRIC steps={step}")
    print(f"METRIC weights={sum(p.numel() for p in model.parameters())}")


if __name__ == "__main__":
    main()
