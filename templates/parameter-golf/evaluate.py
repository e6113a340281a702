"""The scorer of the `parameter-golf` task: size of the artifact, bits per byte on private text. Protected.

It runs in a pristine copy of the protected files, with `data/val.bin` readable, and never runs a line of the artifact:
it reads `model.py` and `weights.bin` from the output folder once, measures them, and hands these bytes to the model
process (`serve_model.py`), which can open no file and returns logits. An artifact above the limit is `size_blocked`.

Score: the validation text is cut into windows of W + 1 bytes that follow each other without overlap of the targets;
with p the softmax of the logits, `val_bpb` is the mean of -log2 p(target).

A prediction may depend on the bytes before it in its own row, and on nothing else. Some batches are therefore sent
twice, first altered (a probe), later as they are:

* **Independence**: some rows stay as they are while those around them change: their logits must stay the same.
* **Determinism**: should they differ, the same probe is sent again, which must give the same answer (`gate_miss`).
* **Causality**: the other rows go on differently from a random place, the cut: logits before it must stay the same.
* **No peeking**, for a model with a memory: the byte at the cut is drawn at random before the true one was ever sent.
  For a model that cannot see it, q(drawn) / p(drawn) is 1 on average, and so is the product over all cuts of
  (1 + q/p) / 2: a fair bet, which exceeds 10^7 with a probability of 10^-7 at most (Ville 1939; Shafer 2021).

Exit codes: 0 scored · 1 no score (one line on stderr says why) · 3 refused, with a LABEL.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from channel import SYMBOLS, Channel, EvaluationError, Inputs, Logits

PARTS = ("model.py", "weights.bin")
PLACES = 32  # positions compared per row; half of them are those just before the cut
MAX_WEALTH = 1e7


@dataclass(frozen=True)
class Plan:
    """What is sent, per profile."""

    limit: int  # bytes of the artifact
    window: int  # bytes of context
    rows: int  # windows per batch
    batches: int  # scored: window * rows * batches bytes
    tolerance: float  # how far logits may move when what they may not depend on changes (kernels may round differently)
    probes: int = 3  # batches that are sent twice


PLANS = {
    "cpu": Plan(128_000, window=256, rows=64, batches=10, tolerance=1e-3),
    "cuda": Plan(16_000_000, window=1024, rows=32, batches=128, tolerance=0.1, probes=16),
}


class Refused(Exception):
    """The result means nothing. label: what to call it; metric: what is told of it."""

    def __init__(self, label: str, metric: str, what: str) -> None:
        super().__init__(what)
        self.label, self.metric = label, metric


@dataclass(frozen=True)
class Probe:
    """How a batch (B, T) was altered.

    cuts (B,): the first altered position of each row; 0 is another text, T the same one. drawn (B,): the byte at the
    cut; odds (B,): the probability that it was drawn with; places (B, PLACES): where logits before it are compared.
    """

    batch: int
    inputs: Inputs
    cuts: npt.NDArray[np.int64]
    drawn: npt.NDArray[np.int64]
    odds: npt.NDArray[np.float64]
    places: npt.NDArray[np.int64]

    def compared(self, logits: Logits) -> Logits:
        """The logits (B, PLACES, 256) that are compared; a copy."""
        return logits[np.arange(len(self.cuts))[:, None], self.places]


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


def read_windows(path: Path, plan: Plan) -> Inputs:
    """(batches, rows, window + 1) bytes, spread evenly over the validation text; fewer where it is short."""
    text = np.fromfile(path, dtype=np.uint8)
    available = (len(text) - 1) // plan.window
    batches = min(plan.batches, available // plan.rows)
    if batches < 2:
        raise EvaluationError(f"val.bin holds {len(text)} bytes: too few; run prepare.py again")
    chosen = np.arange(batches * plan.rows) * available // (batches * plan.rows)
    windows: Inputs = text[chosen[:, None] * plan.window + np.arange(plan.window + 1)]
    return windows.reshape(batches, plan.rows, plan.window + 1)


def schedule(windows: Inputs, probes: int, rng: np.random.Generator) -> Iterator[Probe | int]:
    """Every batch once, in order, as its number; before some of them, at a random moment, a probe of it."""
    count = len(windows)
    odds = np.bincount(windows.reshape(-1), minlength=SYMBOLS) + 1.0  # bytes as the text has them: likely ones are apt
    odds /= odds.sum()
    moments: dict[int, list[int]] = {}
    for batch in rng.permutation(count)[:probes]:
        moments.setdefault(int(rng.integers(0, batch + 1)), []).append(int(batch))
    for moment in range(count):
        for batch in moments.get(moment, []):
            other = windows[(batch + rng.integers(1, count)) % count, :, :-1]
            yield alter(batch, windows[batch, :, :-1], other, odds, rng)
        yield moment


def alter(batch: int, inputs: Inputs, other: Inputs, odds: npt.NDArray[np.float64], rng: np.random.Generator) -> Probe:
    """A probe: a quarter of the rows stays, a quarter is another text, the others change from a random place on."""
    rows, width = inputs.shape
    cuts = rng.integers(width // 8, width - 2, size=rows)
    order, quarter = rng.permutation(rows), rows // 4
    cuts[order[:quarter]] = 0
    cuts[order[quarter : 2 * quarter]] = width
    drawn = rng.choice(SYMBOLS, size=rows, p=odds)
    future = np.roll(other, 1, axis=0)  # real text, from elsewhere
    future = np.where(future == inputs, (future + 1) % 128, future)  # every later byte does change
    at = np.arange(width)
    altered = np.where(at > cuts[:, None], future, np.where(at == cuts[:, None], drawn[:, None], inputs))
    places = rng.integers(0, np.maximum(cuts, 1)[:, None], size=(rows, PLACES))
    places[:, : PLACES // 2] = np.maximum(cuts[:, None] - 1 - np.arange(PLACES // 2), 0)
    return Probe(batch, altered.astype(np.uint8), cuts, drawn, odds[drawn], places)


def bits(logits: Logits, targets: Inputs) -> float:
    """Sum over a batch of -log2 softmax(logits)[target]."""
    flat, wanted = logits.reshape(-1, SYMBOLS), targets.reshape(-1, 1).astype(np.int64)
    # Both terms are relative to the largest logit: huge ones would leave no digits for the difference.
    relative = flat - flat.max(axis=-1, keepdims=True)
    picked = np.take_along_axis(relative, wanted, axis=-1)[:, 0].astype(np.float64)
    return float((np.log(np.exp(relative, out=relative).sum(axis=-1, dtype=np.float64)) - picked).sum() / np.log(2))


def bet(probe: Probe, logits: Logits) -> float:
    """Logarithm of what the fair bet against peeking gains by a probe."""
    rows = np.flatnonzero((probe.cuts > 0) & (probe.cuts < logits.shape[1]))
    before = logits[rows, probe.cuts[rows] - 1].astype(np.float64)
    before -= before.max(axis=-1, keepdims=True)
    q = np.exp(before[np.arange(len(rows)), probe.drawn[rows]]) / np.exp(before).sum(axis=-1)
    return float(np.log(0.5 + 0.5 * q / probe.odds[rows]).sum())


def compare(channel: Channel, probe: Probe, first: Logits, second: Logits, tolerance: float) -> None:
    """Refuse a model of which logits before the cuts differ between a probe's answer and the batch's own."""
    moved = np.abs(first - second).max(axis=(1, 2)) * (probe.cuts > 0)
    if not (moved > tolerance).any():
        return
    change = float(np.abs(first - probe.compared(channel.ask(probe.inputs))).max())
    if change > tolerance:
        raise Refused("gate_miss", "deterministic=0", f"logits moved by {change:.3g} when it was asked twice")
    if (moved[probe.cuts == probe.inputs.shape[1]] > tolerance).any():
        raise Refused("not_causal", "independent=0", "logits moved when the other rows of the batch changed")
    raise Refused("not_causal", "causal=0", f"logits moved by {moved.max():.3g} when later bytes changed")


def score(channel: Channel, windows: Inputs, plan: Plan, rng: np.random.Generator) -> float:
    """Bits per byte. Raises EvaluationError or Refused."""
    answers: dict[int, tuple[Probe, Logits]] = {}
    total = wealth = 0.0
    for job in schedule(windows, plan.probes, rng):
        if isinstance(job, Probe):
            logits = channel.ask(job.inputs)
            wealth += bet(job, logits)
            if wealth > np.log(MAX_WEALTH):
                raise Refused("not_causal", "causal=0", "bytes that were drawn at random were foreseen")
            answers[job.batch] = (job, job.compared(logits))
            continue
        logits = channel.ask(windows[job, :, :-1])
        total += bits(logits, windows[job, :, 1:])
        if job in answers:
            probe, first = answers.pop(job)
            compare(channel, probe, first, probe.compared(logits), plan.tolerance)
    return total / windows[:, :, 1:].size


def main() -> int:
    """Score, and say what came of it in `METRIC` lines and an exit code."""
    started = time.monotonic()
    plan = PLANS["cuda" if os.environ.get("AUTORESEARCHD_PROFILE") == "cuda" else "cpu"]
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    try:
        windows = read_windows(Path(__file__).resolve().parent / "data/val.bin", plan)
        artifact = read_artifact(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]), plan.limit)
        for name, content in zip(PARTS, artifact, strict=True):
            (folder / name).write_bytes(content)
        channel = Channel(folder, plan.rows, plan.window)
        bpb = score(channel, windows, plan, np.random.default_rng(secrets.randbits(128)))
        if not np.isfinite(bpb):
            raise EvaluationError("the score is not finite")
    except Refused as refused:
        print(f"METRIC {refused.metric}\nLABEL {refused.label}", flush=True)
        print(f"evaluate.py: {refused}", file=sys.stderr)
        return 3
    except (EvaluationError, OSError, ValueError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 1
    print(f"METRIC val_bpb={bpb:.6f}\nMETRIC eval_seconds={time.monotonic() - started:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
