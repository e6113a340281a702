"""The scorer of the `parameter-golf` task: size of the artifact, bits per byte on private text. Protected.

It runs in a pristine copy of the protected files, with `data/val.bin` readable, and never runs a line of the artifact:
it reads `model.py` and `weights.bin` from the output folder once, measures them, and hands these bytes to the model
process (`serve_model.py`), which can open no file and returns logits. An artifact above the limit is `size_blocked`.

Score: the validation text is cut into windows of W + 1 bytes that follow each other without overlap of the targets;
with p the softmax of the logits, `val_bpb` is the mean of -log2 p(target).

A prediction may depend on the bytes before it in its own row, and on nothing else: `probes.py` says how that is made
sure of.

Exit codes: 0 scored · 1 no score (one line on stderr says why) · 3 refused, with a LABEL.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from channel import SYMBOLS, Channel, EvaluationError, Inputs, Logits
from exchange import Refused, tell
from probes import Bets, Comparison, Probe, Text, add_decoys, read_windows, schedule

PARTS = ("model.py", "weights.bin")


@dataclass(frozen=True)
class Plan:
    """What is sent, per profile."""

    limit: int  # bytes of the artifact
    window: int  # bytes of context
    rows: int  # windows per batch
    batches: int  # scored: window * rows * batches bytes
    tolerance: float  # how far logits may move when what they may not depend on changes (kernels may round differently)
    probes: int = 3  # requests that are probes
    decoys: int = 1  # batches' worth of rows that are decoys


PLANS = {
    "cpu": Plan(128_000, window=256, rows=64, batches=10, tolerance=1e-3),
    "cuda": Plan(16_000_000, window=1024, rows=32, batches=128, tolerance=0.1, probes=16, decoys=8),
}


def read_artifact(output: Path, limit: int) -> list[bytes]:
    """The parts of the artifact, each read once and by the file that was measured."""
    handles, total = [], 0
    for name in PARTS:
        try:
            handle = os.open(output / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise EvaluationError(f"{name} in the output folder cannot be read: {error.strerror}") from None
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise EvaluationError(f"{name} in the output folder is no plain file")
        handles.append((handle, facts.st_size))
        total += facts.st_size
    print(f"METRIC artifact_bytes={total}")
    if total > limit:
        raise Refused("size_blocked", "artifact_fits=0", f"the artifact has {total:,} bytes; {limit:,} are allowed")
    parts = []
    for handle, size in handles:
        with os.fdopen(handle, "rb") as file:
            parts.append(file.read(size + 1))
        if len(parts[-1]) != size:
            raise EvaluationError("the artifact changed while it was read")
    return parts


def bits(logits: Logits, targets: Inputs) -> float:
    """Sum over a batch of -log2 softmax(logits)[target]."""
    flat, wanted = logits.reshape(-1, SYMBOLS), targets.reshape(-1, 1).astype(np.int64)
    # Both terms are relative to the largest logit: huge ones would leave no digits for the difference.
    relative = flat - flat.max(axis=-1, keepdims=True)
    picked = np.take_along_axis(relative, wanted, axis=-1)[:, 0].astype(np.float64)
    return float((np.log(np.exp(relative, out=relative).sum(axis=-1, dtype=np.float64)) - picked).sum() / np.log(2))


def score(channel: Channel, text: Inputs, plan: Plan, rng: np.random.Generator) -> float:
    """Bits per byte of a text. Raises EvaluationError or Refused."""
    windows, between = read_windows(text, plan.window, plan.rows, plan.batches)
    if len(windows) < 2 * plan.rows:
        raise EvaluationError(f"val.bin holds {len(text)} bytes: too few; run prepare.py again")
    batches = add_decoys(windows, Text(between, SYMBOLS), plan.rows, plan.decoys, rng)
    comparison, bets, total = Comparison(channel.ask, batches.windows, plan.tolerance), Bets(), 0.0
    for job in schedule(batches, SYMBOLS, plan.probes, rng):
        inputs, draws = batches.request(job)
        logits = channel.ask(inputs)
        if bets.foreseen(inputs, draws, logits):
            raise Refused("not_causal", "causal=0", "bytes that were drawn at random were foreseen")
        if isinstance(job, Probe):
            comparison.keep(job, logits)
            continue
        comparison.check(job, logits)
        counted = batches.counted[job]
        total += bits(logits[counted], batches.windows[job, counted, 1:])
    return total / windows[:, 1:].size


def metrics() -> dict[str, str]:
    """Bits for a byte of the validation text."""
    plan = PLANS["cuda" if os.environ.get("AUTORESEARCHD_PROFILE") == "cuda" else "cpu"]
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    text = np.fromfile(Path(__file__).resolve().parent / "data/val.bin", dtype=np.uint8)
    artifact = read_artifact(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]), plan.limit)
    for name, content in zip(PARTS, artifact, strict=True):
        (folder / name).write_bytes(content)
    channel = Channel(folder, plan.rows, plan.window)
    bpb = score(channel, text, plan, np.random.default_rng(secrets.randbits(128)))
    if not np.isfinite(bpb):
        raise EvaluationError("the score is not finite")
    return {"val_bpb": f"{bpb:.6f}"}


if __name__ == "__main__":
    sys.exit(tell(metrics))
