"""The scorer of the `autoresearch` task: bits per byte on private text. Protected.

It runs in a pristine copy of the protected files, with `data/val.bin` readable, and never imports `train.py` nor opens
the checkpoint: the model runs in another process (`serve_model.py`; `serving.py` describes the protocol) that is sent
windows of tokens and returns raw logits. Windows, batch size and order are fixed here, so that the score
depends on nothing that an experiment defines.

Score: the validation tokens are cut into windows of W + 1 tokens that follow each other without overlap of the targets.
With p the softmax of the logits, `val_bpb = sum(-ln p(target)) / (ln 2 * sum(bytes of target))`, over targets that
stand for at least one byte (special tokens stand for none). It does not depend on the vocabulary.

A prediction may depend on the tokens before it in its own row, and on nothing else: `probes.py` says how that is made
sure of, and `benchmarks/probes.py --power` measures what it finds.

A model that fails is told `METRIC causal=0`, `independent=0` (both `LABEL not_causal`) or `deterministic=0`
(`LABEL gate_miss`), exit 3.

Exit codes: 0 scored · 1 no score (one line on stderr says why) · 3 a probe failed.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from exchange import EvaluationError, Exchange, Refused, tell
from probes import Bets, Comparison, Probe, Text, add_decoys, read_windows, schedule

RECORD = struct.Struct("<6i")
SLOTS = 2  # the model computes one batch while the last one is scored

Tokens = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Plan:
    """What is sent and how long answers may take, per profile; times in seconds."""

    window: int  # tokens of context
    rows: int  # windows per batch
    batches: int  # scored: window * rows * batches tokens
    start_timeout: float  # seconds until the model process has opened its pipes
    first_timeout: float  # seconds until the first answer: imports, loading, first kernels
    reply_timeout: float  # seconds for any other answer
    tolerance: float  # how far logits may move when what they may not depend on changes (kernels may round differently)
    probes: int  # requests that are probes
    decoys: int  # batches' worth of rows that are decoys


PLANS = {
    "cpu": Plan(256, 16, 24, start_timeout=60, first_timeout=60, reply_timeout=30, tolerance=1e-3, probes=3, decoys=2),
    "cuda": Plan(
        2048, 4, 256, start_timeout=60, first_timeout=180, reply_timeout=60, tolerance=0.1, probes=16, decoys=16
    ),
}


class Channel(Exchange):
    """The model at the other end of the exchange folder."""

    def __init__(self, folder: Path, plan: Plan, vocab: int) -> None:
        self.plan, self.shape = plan, (plan.rows, plan.window, vocab)
        self.buffer: Logits = np.empty(self.shape, dtype=np.float32)
        inputs, outputs = SLOTS * plan.rows * plan.window * 4, SLOTS * self.buffer.nbytes
        super().__init__(folder, "the model process", plan.start_timeout, inputs, outputs)
        self.answered = False

    def send(self, number: int, tokens: Tokens) -> None:
        slot = number % SLOTS
        data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
        os.pwrite(self.inputs, data, slot * len(data))
        self.request(RECORD.pack(number, slot, *self.shape, SLOTS), f"batch {number}")

    def receive(self, number: int) -> Logits:
        """Logits (B, T, V) of a batch, checked. The array is overwritten by the next call."""
        limit = self.plan.reply_timeout if self.answered else self.plan.first_timeout
        record = self.reply(RECORD.size, limit, f"batch {number}")
        self.answered = True
        got_number, slot, *shape, _ = RECORD.unpack(record)
        if (got_number, slot) != (number, number % SLOTS):
            raise EvaluationError(f"the model process answered batch {got_number} when {number} was asked")
        if tuple(shape) != self.shape:
            raise EvaluationError(f"the logits have shape {tuple(shape)}; {self.shape} is needed")
        self.read(memoryview(self.buffer.data).cast("B"), slot * self.buffer.nbytes)
        if not np.isfinite(self.buffer).all():
            raise EvaluationError("the logits hold NaN or infinite values")
        return self.buffer


def nll_sum(logits: Logits, targets: Tokens, weights: npt.NDArray[np.float64]) -> float:
    """Sum over tokens of -ln softmax(logits)[target] * weight, in nats. logits (N, V), targets (N,), weights (N,)."""
    # Both terms are relative to the largest logit: huge ones would leave no digits for the difference.
    relative = logits - logits.max(axis=-1, keepdims=True)
    picked = np.take_along_axis(relative, targets[:, None].astype(np.int64), axis=-1)[:, 0].astype(np.float64)
    log_sum = np.log(np.exp(relative, out=relative).sum(axis=-1, dtype=np.float64))
    return float(((log_sum - picked) * weights).sum())


def nll_sum_cuda(logits: Logits, targets: Tokens, weights: npt.NDArray[np.float64]) -> float:
    """The same on the GPU, where the vocabulary is large; this process's own torch, never the experiment's."""
    import torch

    values = torch.from_numpy(logits).cuda()
    losses = torch.nn.functional.cross_entropy(values, torch.from_numpy(targets).long().cuda(), reduction="none")
    return float((losses.double() * torch.from_numpy(weights).cuda()).sum())


class Scorer:
    """Sends the jobs, adds up the score, and compares what may not differ."""

    def __init__(self, data: Path, folder: Path, profile: str) -> None:
        self.plan = PLANS[profile]
        meta: dict[str, Any] = json.loads((data / "val_meta.json").read_text())
        self.token_bytes = np.array(meta["token_bytes"], dtype=np.int64)
        plan, vocab, rng = self.plan, len(self.token_bytes), np.random.default_rng(secrets.randbits(128))
        tokens = np.fromfile(data / "val.bin", dtype="<u2").astype(np.int32)
        windows, text = read_windows(tokens, plan.window, plan.rows, plan.batches)
        if not len(windows):
            raise EvaluationError(f"val.bin holds {len(tokens)} tokens: too few for one batch; run prepare.py again")
        self.batches = add_decoys(windows, Text(text, vocab), plan.rows, plan.decoys, rng)
        self.jobs = list(schedule(self.batches, vocab, plan.probes, rng))
        self.loss_of = nll_sum_cuda if profile == "cuda" else nll_sum
        self.channel = Channel(folder, self.plan, len(self.token_bytes))
        self.comparison = Comparison(self.ask, self.batches.windows, plan.tolerance)
        self.sent, self.received, self.bets = 0, 0, Bets()

    def score(self) -> float:
        """Bits per byte. Raises `EvaluationError` or `Refused`."""
        nats, total_bytes = 0.0, 0
        self.send_until(0)
        for number, job in enumerate(self.jobs):
            following = self.jobs[number + 1] if number + 1 < len(self.jobs) else None
            if following is None or (isinstance(job, Probe) and following in job.batches):
                self.send_until(number)
            else:
                self.send_until(number + 1)  # the model computes it while this one is scored
            logits, self.received = self.channel.receive(number), number + 1
            if self.bets.foreseen(*self.batches.request(job), logits):
                raise Refused("not_causal", "causal=0", "tokens that were drawn at random were foreseen")
            if isinstance(job, Probe):
                self.comparison.keep(job, logits)
                continue
            self.comparison.check(job, logits)
            targets = self.batches.windows[job, :, 1:].reshape(-1)
            lengths = self.token_bytes[targets] * np.repeat(self.batches.counted[job], self.plan.window)
            nats += self.loss_of(logits.reshape(len(targets), -1), targets, (lengths > 0).astype(np.float64))
            total_bytes += int(lengths.sum())
        return nats / (float(np.log(2)) * total_bytes)

    def send_until(self, number: int) -> None:
        while self.sent <= number:
            self.channel.send(self.sent, self.batches.request(self.jobs[self.sent])[0])
            self.sent += 1

    def ask(self, inputs: Tokens) -> Logits:
        """The answer to a request beside the schedule, after those to all that is under way."""
        for pending in range(self.received, self.sent):
            self.channel.receive(pending)
        self.channel.send(self.sent, inputs)
        self.sent += 1
        self.received = self.sent
        return self.channel.receive(self.sent - 1)


def written_bytes(folder: Path) -> int:
    """Bytes of everything that training left: a model may keep its weights in any file, whatever `checkpoint.pt` is."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


def metrics() -> dict[str, str]:
    """Bits for a byte of the validation text, that the probes passed, and the size of what training left."""
    data, profile = Path(__file__).resolve().parent / "data", os.environ.get("AUTORESEARCHD_PROFILE")
    if profile is None:
        profile = json.loads((data / "val_meta.json").read_text()).get("profile")
    if profile not in PLANS:
        raise EvaluationError(f"AUTORESEARCHD_PROFILE is {profile!r}: it must be cpu or cuda")
    checkpoint = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "checkpoint.pt"
    if not checkpoint.is_file():
        raise EvaluationError("no checkpoint.pt in the output folder: training has to write one")
    bpb = Scorer(data, Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"]), profile).score()
    if not np.isfinite(bpb):
        raise EvaluationError("the score is not finite")
    passed = dict.fromkeys(("causal", "independent", "deterministic"), "1")
    return {"val_bpb": f"{bpb:.6f}", **passed, "checkpoint_bytes": str(written_bytes(checkpoint.parent))}


if __name__ == "__main__":
    sys.exit(tell(metrics))
