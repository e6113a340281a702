"""The scorer of the `autoresearch` task: bits per byte on private text. Protected.

It runs in a pristine copy of the protected files, with `data/val.bin` readable, and never imports `train.py` nor opens
the checkpoint: the model runs in another process (`serve_model.py`, which describes the protocol) that is sent windows
of tokens and returns raw logits. Windows, batch size and order are fixed here, so that the score depends on nothing
that an experiment defines.

Score: the validation tokens are cut into windows of W + 1 tokens that follow each other without overlap of the targets.
With p the softmax of the logits, `val_bpb = sum(-ln p(target)) / (ln 2 * sum(bytes of target))`, over targets that
stand for at least one byte (special tokens stand for none). It does not depend on the vocabulary.

Causality: for a few batches the text after a random place is replaced by other text, and the logits up to that place
must stay the same. The altered batches are sent at random moments, as often before their originals as after, so that a
model with a memory cannot tell them apart. A model that fails is told `METRIC causal=0` and `LABEL not_causal`, exit 3.

Exit codes: 0 scored · 1 no score (one line on stderr says why) · 3 not causal.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import select
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
    tolerance: float  # how far logits of the past may move when the future changes (kernels may round differently)


PLANS = {
    "cpu": Plan(256, 32, 12, start_timeout=60, first_timeout=60, reply_timeout=30, tolerance=1e-3),
    "cuda": Plan(2048, 4, 256, start_timeout=60, first_timeout=180, reply_timeout=60, tolerance=0.1),
}
PROBES = 2  # batches that are sent a second time with another future


class EvaluationError(Exception):
    """No score: the text says why, in one line."""


class NotCausal(Exception):
    """Logits depend on tokens that come after them."""


class Channel:
    """The scorer's end of the exchange folder."""

    def __init__(self, folder: Path, plan: Plan, vocab: int) -> None:
        self.plan, self.vocab = plan, vocab
        self.shape = (plan.rows, plan.window, vocab)
        self.buffer: Logits = np.empty(self.shape, dtype=np.float32)
        self.inputs = self._file(folder / "inputs.bin", SLOTS * plan.rows * plan.window * 4)
        self.outputs = self._file(folder / "outputs.bin", SLOTS * self.buffer.nbytes)
        for name in ("replies", "requests"):
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / f".{name}")
        self.replies = os.open(folder / ".replies", os.O_RDONLY | os.O_NONBLOCK)
        for name in ("replies", "requests"):  # the model waits for `requests`, which appears last
            (folder / f".{name}").rename(folder / name)
        self.requests = self._connect(folder / "requests")
        self.answered = False

    @staticmethod
    def _file(path: Path, size: int) -> int:
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        os.ftruncate(handle, size)
        return handle

    def _connect(self, path: Path) -> int:
        deadline = time.monotonic() + self.plan.start_timeout
        while True:
            try:
                return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
            if time.monotonic() > deadline:
                raise EvaluationError(f"the model process did not start within {self.plan.start_timeout:.0f} s")
            time.sleep(0.005)

    def send(self, number: int, tokens: Tokens) -> None:
        slot = number % SLOTS
        data = np.ascontiguousarray(tokens, dtype="<i4").tobytes()
        os.pwrite(self.inputs, data, slot * len(data))
        try:
            os.write(self.requests, RECORD.pack(number, slot, *self.shape, SLOTS))
        except (BrokenPipeError, BlockingIOError):
            raise EvaluationError(f"the model process ended before batch {number}: its own output says why") from None

    def receive(self, number: int) -> Logits:
        """Logits (B, T, V) of a batch, checked. The array is overwritten by the next call."""
        limit = self.plan.reply_timeout if self.answered else self.plan.first_timeout
        poller = select.poll()
        poller.register(self.replies, select.POLLIN)
        ready = poller.poll(limit * 1000)
        if not ready:
            raise EvaluationError(f"the model process gave no answer to batch {number} within {limit:.0f} s")
        record = os.read(self.replies, RECORD.size)
        if len(record) != RECORD.size:
            raise EvaluationError(f"the model process ended in batch {number}: its own output says why")
        self.answered = True
        got_number, slot, *shape, _ = RECORD.unpack(record)
        if (got_number, slot) != (number, number % SLOTS):
            raise EvaluationError(f"the model process answered batch {got_number} when {number} was asked")
        if tuple(shape) != self.shape:
            raise EvaluationError(f"the logits have shape {tuple(shape)}; {self.shape} is needed")
        view = memoryview(self.buffer.data).cast("B")
        at, done = slot * len(view), 0
        while done < len(view):
            count = os.preadv(self.outputs, [view[done:]], at + done)
            if count == 0:
                raise EvaluationError("the shared memory of the logits was cut short")
            done += count
        if not np.isfinite(self.buffer).all():
            raise EvaluationError("the logits hold NaN or infinite values")
        return self.buffer


def nll_sum(logits: Logits, targets: Tokens, weights: npt.NDArray[np.float64]) -> float:
    """Sum over tokens of -ln softmax(logits)[target] * weight, in nats. logits (N, V), targets (N,), weights (N,)."""
    top = logits.max(axis=-1, keepdims=True)
    exponents = np.exp(logits - top)
    log_sum = np.log(exponents.sum(axis=-1, dtype=np.float64)) + top[:, 0]
    picked = np.take_along_axis(logits, targets[:, None].astype(np.int64), axis=-1)[:, 0]
    return float(((log_sum - picked) * weights).sum())


def nll_sum_cuda(logits: Logits, targets: Tokens, weights: npt.NDArray[np.float64]) -> float:
    """The same on the GPU, where the vocabulary is large; this process's own torch, never the experiment's."""
    import torch

    values = torch.from_numpy(logits).cuda()
    losses = torch.nn.functional.cross_entropy(values, torch.from_numpy(targets).long().cuda(), reduction="none")
    return float((losses.double() * torch.from_numpy(weights).cuda()).sum())


def read_windows(tokens: npt.NDArray[np.uint16], plan: Plan) -> Tokens:
    """(batches, rows, window + 1) tokens, spread evenly over the validation text; fewer where it is short."""
    available = (len(tokens) - 1) // plan.window
    batches = min(plan.batches, available // plan.rows)
    if batches < 1:
        raise EvaluationError(f"val.bin holds {len(tokens)} tokens: too few for one batch; run prepare.py again")
    chosen = np.arange(batches * plan.rows) * available // (batches * plan.rows)
    windows: Tokens = tokens[chosen[:, None] * plan.window + np.arange(plan.window + 1)].astype(np.int32)
    return windows.reshape(batches, plan.rows, plan.window + 1)


def schedule(windows: Tokens, rng: np.random.Generator) -> Iterator[tuple[int, Tokens, npt.NDArray[np.int64] | None]]:
    """(batch, inputs (B, T), cuts): every batch once, in order; some twice, with other text after `cuts` (B,)."""
    count, rows, width = windows.shape
    inputs = windows[:, :, :-1]
    probes: dict[int, list[int]] = {}
    for i, batch in enumerate(rng.permutation(count)[:PROBES]):
        moment = rng.integers(0, batch + 1) if i % 2 else rng.integers(batch + 1, count + 1)
        probes.setdefault(int(moment), []).append(int(batch))
    for moment in range(count + 1):
        for batch in probes.get(moment, []):
            cuts = rng.integers(width // 8, width - 2, size=rows)  # the first altered position of every row
            other = np.roll(inputs[(batch + count // 2) % count], 1, axis=0)  # real text, from elsewhere
            other = np.where(other == inputs[batch], (other + 1) % 128, other)  # every later token does change
            yield batch, np.where(np.arange(width - 1) >= cuts[:, None], other, inputs[batch]), cuts
        if moment < count:
            yield moment, inputs[moment], None


def score(data: Path, folder: Path, profile: str) -> float:
    """Bits per byte. Raises `EvaluationError` or `NotCausal`."""
    plan = PLANS[profile]
    meta: dict[str, Any] = json.loads((data / "val_meta.json").read_text())
    token_bytes = np.array(meta["token_bytes"], dtype=np.int64)
    windows = read_windows(np.fromfile(data / "val.bin", dtype="<u2"), plan)
    jobs = list(schedule(windows, np.random.default_rng(secrets.randbits(64))))
    probed = {batch: cuts for batch, _, cuts in jobs if cuts is not None}
    waiting: dict[int, Logits] = {}  # the first logits of a probed batch, until the second ones arrive
    loss_of = nll_sum_cuda if profile == "cuda" else nll_sum
    channel = Channel(folder, plan, len(token_bytes))

    nats, total_bytes = 0.0, 0
    channel.send(0, jobs[0][1])
    for number, (batch, _, cuts) in enumerate(jobs):
        if number + 1 < len(jobs):
            channel.send(number + 1, jobs[number + 1][1])
        logits = channel.receive(number)
        if batch in probed:
            if batch in waiting:
                check_causal(waiting.pop(batch), logits, probed[batch], plan.tolerance)
            else:
                waiting[batch] = logits.copy()
        if cuts is None:
            targets = windows[batch, :, 1:].reshape(-1)
            lengths = token_bytes[targets]
            nats += loss_of(logits.reshape(len(targets), -1), targets, (lengths > 0).astype(np.float64))
            total_bytes += int(lengths.sum())
    return nats / (float(np.log(2)) * total_bytes)


def check_causal(first: Logits, second: Logits, cuts: npt.NDArray[np.int64], tolerance: float) -> None:
    """Both (B, T, V): row b must agree at the positions before cuts[b]."""
    for row, cut in enumerate(cuts):
        difference = float(np.abs(first[row, :cut] - second[row, :cut]).max())
        if difference > tolerance:
            raise NotCausal(f"logits before position {cut} moved by {difference:.3g} when later tokens changed")


def main() -> int:
    """Score, and say what came of it in `METRIC` lines and an exit code."""
    started = time.monotonic()
    profile = os.environ.get("AUTORESEARCHD_PROFILE")
    try:
        data = Path(__file__).resolve().parent / "data"
        if profile is None:
            profile = json.loads((data / "val_meta.json").read_text())["profile"]
        if profile not in PLANS:
            raise EvaluationError(f"AUTORESEARCHD_PROFILE is {profile!r}: it must be cpu or cuda")
        checkpoint = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "checkpoint.pt"
        if not checkpoint.is_file():
            raise EvaluationError("no checkpoint.pt in the output folder: training has to write one")
        bpb = score(data, Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"]), profile)
        if not np.isfinite(bpb):
            raise EvaluationError("the score is not finite")
    except NotCausal as error:
        print("METRIC causal=0\nLABEL not_causal", flush=True)
        print(f"evaluate.py: the model looks ahead: {error}", file=sys.stderr)
        return 3
    except KeyError as error:
        print(f"evaluate.py: {error} is not set in the environment or in val_meta.json", file=sys.stderr)
        return 1
    except (EvaluationError, OSError, ValueError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 1
    print(f"METRIC val_bpb={bpb:.6f}")
    print("METRIC causal=1")
    print(f"METRIC checkpoint_bytes={checkpoint.stat().st_size}")
    print(f"METRIC eval_seconds={time.monotonic() - started:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
