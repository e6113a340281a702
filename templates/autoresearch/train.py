"""Train a small GPT within a time budget. This is the file to improve: everything in it may be changed.

The model is a decoder-only transformer with rotary embeddings (Su et al. 2021), normalised queries and keys (Henry et
al. 2020), value embeddings (Zhou et al. 2024) on alternating layers, sliding-window attention (Beltagy et al. 2020),
a squared-ReLU MLP (So et al. 2021), learned residual scales and soft-capped logits (Gemma 2). Matrices are trained by
Muon (Jordan et al. 2024), everything else by AdamW. The recipe and the log format follow karpathy/autoresearch.

What the evaluation relies on, and what must therefore stay: `load_model(path, device)` returns a module for which
`model(idx)`, idx (B, T) integer tokens, gives logits (B, T, vocabulary); position t may use tokens 0..t only.
Importing this file has no side effects. The score is computed elsewhere, from `checkpoint.pt`.

By hand: `python prepare.py && python train.py`. Environment (all optional): `AUTORESEARCHD_TIME_BUDGET` (seconds of
training), `AUTORESEARCHD_SEED`, `AUTORESEARCHD_OUTPUT_DIR` (for the checkpoint), `AUTORESEARCHD_PROFILE` (cpu, cuda).
"""

from __future__ import annotations

import gc
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# ---------------------------------------------------------------- the recipe
# Plain literals, so that a search can find and change them. They are for the CPU profile; `if CUDA` scales them up.

# Model
DEPTH = 4  # transformer layers
ASPECT_RATIO = 16  # model width = DEPTH * ASPECT_RATIO, rounded up to whole heads
HEAD_DIM = 32
MLP_RATIO = 4  # hidden width of the MLP / model width
WINDOW_PATTERN = "SSSL"  # per layer, repeated; S: short window, L: whole context; choices: L, SL, SSL, SSSL. Last is L
SHORT_WINDOW = 128  # tokens that an S layer looks back
ROPE_BASE = 10000
SOFTCAP = 15.0  # logits are squashed into (-SOFTCAP, SOFTCAP)
VALUE_EMBEDDINGS = True
VE_GATE_CHANNELS = 32  # channels of the input that gate the value embeddings
RESID_INIT = 1.0  # initial weight of the residual stream at each layer
X0_INIT = 0.1  # initial weight of the embedded input, fed in again at each layer
INIT_SCALE = 1.0  # scale of the matrices' initial uniform distribution

# Optimisation
SEQ_LEN = 256  # tokens per training row
TOTAL_BATCH_SIZE = 2048  # tokens per optimiser step
DEVICE_BATCH_SIZE = 8  # rows per forward pass at most; more are accumulated
EMBEDDING_LR = 0.6  # AdamW rates are scaled by (width / 768) ** -0.5
UNEMBEDDING_LR = 0.004
SCALAR_LR = 0.5  # residual scales
MATRIX_LR = 0.04  # Muon
WEIGHT_DECAY = 0.2  # Muon only, fades out with progress
ADAM_BETA1 = 0.8
ADAM_BETA2 = 0.95
MUON_MOMENTUM = 0.95
MUON_MOMENTUM_START = 0.85
MUON_WARMUP_STEPS = 300  # steps over which the momentum rises
NS_STEPS = 5  # Newton-Schulz iterations

# Schedule, as shares of the time budget
WARMUP_RATIO = 0.0
WARMDOWN_RATIO = 0.5
FINAL_LR_FRAC = 0.0

CUDA = os.environ.get("AUTORESEARCHD_PROFILE", "cuda" if torch.cuda.is_available() else "cpu") == "cuda"
if CUDA:  # the same recipe for a large GPU: depth 8, width 512, context 2048, 2**19 tokens per step
    DEPTH *= 2
    ASPECT_RATIO *= 4
    HEAD_DIM *= 4
    SEQ_LEN *= 8
    SHORT_WINDOW *= 8
    TOTAL_BATCH_SIZE *= 256
    DEVICE_BATCH_SIZE *= 16

UNTIMED_STEPS = 10 if CUDA else 0  # compilation and first launches are not training time

# ---------------------------------------------------------------- the model


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a model; stored in the checkpoint."""

    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    mlp_ratio: float = MLP_RATIO
    window_pattern: str = WINDOW_PATTERN
    short_window: int = SHORT_WINDOW
    rope_base: float = ROPE_BASE
    softcap: float = SOFTCAP
    value_embeddings: bool = VALUE_EMBEDDINGS
    ve_gate_channels: int = VE_GATE_CHANNELS


def build_config(vocab_size: int) -> GPTConfig:
    """The model that the constants above describe."""
    head_dim = 2 * math.ceil(HEAD_DIM / 2)  # rotary embeddings turn pairs
    heads = math.ceil(DEPTH * ASPECT_RATIO / head_dim)
    return GPTConfig(vocab_size=vocab_size, n_layer=DEPTH, n_head=heads, n_embd=heads * head_dim)


def norm(x: Tensor) -> Tensor:
    """Root-mean-square normalisation over the channels, without a learned scale."""
    return F.rms_norm(x, (x.size(-1),))


def rotary_tables(length: int, head_dim: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotation angles, each (length, head_dim / 2)."""
    frequencies = base ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x (B, H, T, D)."""
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((x1 * cos + x2 * sin, x2 * cos - x1 * sin), dim=-1).to(x.dtype)


def window_mask(length: int, window: int, device: torch.device) -> Tensor | None:
    """(T, T) boolean: row t may look at the columns t-window+1 .. t. None where that is plain causal attention."""
    if window >= length:
        return None
    t = torch.arange(length, device=device)
    ago = t[:, None] - t[None, :]
    return (ago >= 0) & (ago < window)


class Attention(nn.Module):
    """Causal self-attention: rotary, normalised queries and keys, values mixed with value embeddings."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        width = config.n_embd
        self.n_head = config.n_head
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        # Every second layer, the last one included, mixes an embedding of the token itself into its values.
        self.has_ve = config.value_embeddings and layer % 2 == (config.n_layer - 1) % 2
        if self.has_ve:
            self.gate_channels = min(config.ve_gate_channels, width)
            self.ve = nn.Embedding(config.vocab_size, width)
            self.ve_gate = nn.Linear(self.gate_channels, config.n_head, bias=False)

    def forward(self, x: Tensor, idx: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)  # each (B, H, T, D)
        if self.has_ve:
            gate = 2 * torch.sigmoid(self.ve_gate(x[..., : self.gate_channels]))  # (B, T, H), starts at 1
            ve = self.ve(idx).view(B, T, self.n_head, -1) * gate[..., None]
            v = v + ve.transpose(1, 2).to(v.dtype)
        q, k = norm(rotate(q, *rotary)), norm(rotate(k, *rotary))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Module):
    """Two linear maps around a squared ReLU."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        hidden = int(config.mlp_ratio * config.n_embd)
        self.fc = nn.Linear(config.n_embd, hidden, bias=False)
        self.proj = nn.Linear(hidden, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc(x))
        return self.proj(x * x)  # on a CPU several times as fast as x.square(), whose gradient calls pow


class Block(nn.Module):
    """Attention, then MLP, each added to the residual stream."""

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.attn = Attention(config, layer)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, idx: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        x = x + self.attn(norm(x), idx, rotary, mask)
        return x + self.mlp(norm(x))


class GPT(nn.Module):
    """Embedding, blocks, head; the embedded input is fed in again at each layer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.resid_scales = nn.Parameter(torch.full((config.n_layer,), RESID_INIT))
        self.x0_scales = nn.Parameter(torch.full((config.n_layer,), X0_INIT))

    @torch.no_grad()
    def init_weights(self) -> None:
        """Every block starts as the identity: what writes into the residual stream is zero."""
        bound = INIT_SCALE * math.sqrt(3 / self.config.n_embd)
        self.wte.weight.normal_()
        self.lm_head.weight.normal_(std=0.001)
        for block in self.blocks:
            block.attn.qkv.weight.uniform_(-bound, bound)
            block.mlp.fc.weight.uniform_(-bound, bound)
            block.attn.proj.weight.zero_()
            block.mlp.proj.weight.zero_()
            if block.attn.has_ve:
                block.attn.ve.weight.uniform_(-bound, bound)
                block.attn.ve_gate.weight.zero_()

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) in float32 for idx (B, T); with targets (B, T): the mean loss in nats per token."""
        config, T = self.config, idx.size(1)
        rotary = rotary_tables(T, config.n_embd // config.n_head, config.rope_base, idx.device)
        short = window_mask(T, config.short_window, idx.device)
        x = x0 = norm(self.wte(idx))
        for i, block in enumerate(self.blocks):
            letter = "L" if i == config.n_layer - 1 else config.window_pattern[i % len(config.window_pattern)]
            x = self.resid_scales[i] * x + self.x0_scales[i] * x0
            x = block(x, idx, rotary, short if letter == "S" else None)
        logits = self.lm_head(norm(x)).float()
        logits = config.softcap * torch.tanh(logits / config.softcap)
        if targets is None:
            return logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def load_model(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> nn.Module:
    """The trained model, ready for evaluation: model(idx) -> logits."""
    checkpoint = torch.load(path, map_location=device, weights_only=True)
    model = GPT(GPTConfig(**checkpoint["config"]))
    model.load_state_dict(checkpoint["model"])
    return model.to(device).eval()


# ---------------------------------------------------------------- the optimiser


class Muon(torch.optim.Optimizer):
    """Momentum whose update is brought close to an orthogonal matrix by Newton-Schulz iterations.

    Matrices of one shape are stacked and go through the iterations together.
    """

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for p in group["params"]:
                by_shape.setdefault(p.shape, []).append(p)
            for shape, params in by_shape.items():
                state = self.state[params[0]]
                grad = torch.stack([p.grad for p in params])  # type: ignore[misc]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(grad)
                state["momentum"].lerp_(grad, 1 - group["momentum"])
                update = orthogonalise(grad.lerp_(state["momentum"], group["momentum"]))  # Nesterov
                lr = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for p, u in zip(params, update.to(params[0].dtype).unbind(), strict=True):
                    # Cautious decay: only where it agrees with the update.
                    p.sub_(lr * u + lr * group["weight_decay"] * p * (u * p >= 0))


def orthogonalise(g: Tensor) -> Tensor:
    """Nearly orthogonal matrices with the directions of g (N, rows, columns)."""
    x = g.bfloat16() if g.is_cuda else g
    wide = x.size(-2) <= x.size(-1)
    x = x if wide else x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(NS_STEPS):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x if wide else x.mT


def build_optimizers(model: GPT) -> tuple[torch.optim.AdamW, Muon]:
    """AdamW for embeddings, the head and scales; Muon for the matrices of the blocks."""
    embeddings, matrices = [model.wte.weight], []
    for block in model.blocks:
        matrices += [block.attn.qkv.weight, block.attn.proj.weight, block.mlp.fc.weight, block.mlp.proj.weight]
        if block.attn.has_ve:
            embeddings.append(block.attn.ve.weight)
            matrices.append(block.attn.ve_gate.weight)
    scale = (model.config.n_embd / 768) ** -0.5
    adam = torch.optim.AdamW(
        [
            {"params": embeddings, "lr": EMBEDDING_LR * scale},
            {"params": [model.lm_head.weight], "lr": UNEMBEDDING_LR * scale},
            {"params": [model.resid_scales], "lr": SCALAR_LR * 0.01},
            {"params": [model.x0_scales], "lr": SCALAR_LR},
        ],
        betas=(ADAM_BETA1, ADAM_BETA2),
        eps=1e-10,
        weight_decay=0.0,
        fused=True,
    )
    muon = Muon(matrices, lr=MATRIX_LR, momentum=MUON_MOMENTUM, weight_decay=WEIGHT_DECAY)
    for optimizer in (adam, muon):
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return adam, muon


def lr_multiplier(progress: float) -> float:
    """Warm-up, plateau and warm-down over the progress 0..1 of the time budget."""
    if progress < WARMUP_RATIO:
        return progress / WARMUP_RATIO
    if progress < 1 - WARMDOWN_RATIO:
        return 1.0
    left = max(0.0, 1 - progress) / max(WARMDOWN_RATIO, 1e-9)
    return left + (1 - left) * FINAL_LR_FRAC


# ---------------------------------------------------------------- data and training


def batches(path: Path, rows: int, device: torch.device, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Random windows of the training tokens: inputs and targets, each (rows, SEQ_LEN) int64."""
    tokens = torch.from_file(str(path), dtype=torch.int16, size=path.stat().st_size // 2)
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.arange(SEQ_LEN + 1)
    while True:
        starts = torch.randint(len(tokens) - SEQ_LEN, (rows, 1), generator=generator)
        window = tokens[starts + offsets].long() & 0xFFFF  # the file holds uint16
        if device.type == "cuda":
            window = window.pin_memory().to(device, non_blocking=True)
        yield window[:, :-1], window[:, 1:]


def main() -> int:
    """Train for the budget, write the checkpoint, print the summary."""
    started = time.perf_counter()
    budget = float(os.environ.get("AUTORESEARCHD_TIME_BUDGET", 300 if CUDA else 60))
    seed = int(os.environ.get("AUTORESEARCHD_SEED", 42))
    output_dir = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    data = Path(__file__).resolve().parent / "data"
    vocab_size = int(json.loads((data / "meta.json").read_text())["vocab_size"])

    torch.manual_seed(seed)
    device = torch.device("cuda" if CUDA else "cpu")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(cores, 8))
    if CUDA:
        torch.set_float32_matmul_precision("high")

    model = GPT(build_config(vocab_size))
    model.init_weights()
    model.to(device)
    if CUDA:  # embeddings in half the memory; the matrices stay in float32 and are cast by autocast
        model.wte.bfloat16()
    optimizers = build_optimizers(model)
    loss_of: Any = torch.compile(model, dynamic=False) if CUDA else model
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=CUDA)

    rows = max(1, min(DEVICE_BATCH_SIZE, TOTAL_BATCH_SIZE // SEQ_LEN))
    tokens_per_pass = rows * SEQ_LEN
    passes = max(1, TOTAL_BATCH_SIZE // tokens_per_pass)
    tokens_per_step = passes * tokens_per_pass
    train_tokens = (data / "train.bin").stat().st_size // 2
    loader = batches(data / "train.bin", rows, device, seed)
    parameters = sum(p.numel() for p in model.parameters())
    embedded = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding))
    attended = 12 * model.config.n_embd * model.config.n_layer * SEQ_LEN  # an upper bound: windows are not subtracted
    flops_per_token = 6 * (parameters - embedded) + attended
    peak_flops = 989.5e12 if CUDA else 1e11 * torch.get_num_threads()  # H100 in bfloat16; a nominal CPU core

    training_time = average_loss = mfu = 0.0
    step = 0
    while True:
        began = time.perf_counter()
        loss_value = 0.0
        for _ in range(passes):
            inputs, targets = next(loader)
            with autocast:
                loss = loss_of(inputs, targets)
            (loss / passes).backward()
            loss_value += loss.item() / passes
        if not math.isfinite(loss_value) or loss_value > 100:
            print("\nFAIL: the loss is not finite" if not math.isfinite(loss_value) else "\nFAIL: the loss exploded")
            return 1
        progress = min(training_time / budget, 1.0)
        multiplier = lr_multiplier(progress)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * multiplier
        for group in optimizers[1].param_groups:  # Muon
            warm = min(step / max(MUON_WARMUP_STEPS, 1), 1.0)
            group["momentum"] = MUON_MOMENTUM_START + warm * (MUON_MOMENTUM - MUON_MOMENTUM_START)
            group["weight_decay"] = WEIGHT_DECAY * (1 - progress)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if CUDA:
            torch.cuda.synchronize()
        if step == 0:  # nothing made so far becomes garbage; a collection would only cost time
            gc.collect()
            gc.freeze()
            gc.disable()

        dt = time.perf_counter() - began
        if step >= UNTIMED_STEPS:
            training_time += dt
        average_loss = 0.9 * average_loss + 0.1 * loss_value
        mfu = 100 * flops_per_token * tokens_per_step / dt / peak_flops
        print(
            f"\rstep {step:05d} ({100 * progress:.1f}%) | loss: {average_loss / (1 - 0.9 ** (step + 1)):.6f} | "
            f"lrm: {multiplier:.2f} | dt: {dt * 1000:.0f}ms | tok/sec: {int(tokens_per_step / dt):,} | "
            f"mfu: {mfu:.1f}% | epoch: {1 + step * tokens_per_step // train_tokens} | "
            f"remaining: {max(0.0, budget - training_time):.0f}s    ",
            end="",
            flush=True,
        )
        step += 1
        if step > UNTIMED_STEPS and training_time + dt / 2 >= budget:  # the next step would end too late
            break
    print()

    output_dir.mkdir(parents=True, exist_ok=True)
    torch.save({"model": model.state_dict(), "config": asdict(model.config)}, output_dir / "checkpoint.pt")
    average_mfu = 100 * flops_per_token * tokens_per_step * (step - UNTIMED_STEPS) / training_time / peak_flops
    print("---")
    print(f"training_seconds: {training_time:.1f}")
    print(f"total_seconds:    {time.perf_counter() - started:.1f}")
    print(f"peak_vram_mb:     {torch.cuda.max_memory_allocated() / 2**20 if CUDA else 0.0:.1f}")
    print(f"mfu_percent:      {average_mfu:.2f}")
    print(f"total_tokens_M:   {step * tokens_per_step / 1e6:.1f}")
    print(f"num_steps:        {step}")
    print(f"num_params_M:     {parameters / 1e6:.1f}")
    print(f"depth:            {DEPTH}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
