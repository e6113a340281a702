"""The scorer of the `autoresearch` task: bits per byte on private text. Protected.

It runs in a pristine copy of the protected files, with `data/val.bin` readable, and never imports `train.py` nor opens
the checkpoint: the model runs in another process (`serve_model.py`; `serving.py` describes the protocol) that is sent
windows of tokens and returns raw logits. Windows, batch size and order are fixed here, so that the score
depends on nothing that an experiment defines.

Score: the validation tokens are cut into windows of W + 1 tokens that follow each other without overlap of the targets.
With p the softmax of the logits, `val_bpb = sum(-ln p(target)) / (ln 2 * sum(bytes of target))`, over targets that
stand for at least one byte (special tokens stand for none). It does not depend on the vocabulary.

A prediction may depend on the tokens before it in its own row, and on nothing else. Some requests are therefore probes.
Each row of a probe is a row of another batch that is still to come, true up to a random place, the cut (any but the
first), and from there on made of pieces of the same text. Where a piece begins, its first token was drawn, with known
odds, from the places where the text goes on after a like context: of a long one, of a short one, or of none.

* **Comparison**: when a row's own batch is answered, its logits before the cut must be those of the probe. So no model
  may use what comes later (a quarter of the cuts is at position 1), other rows, chance (**determinism**: should they
  differ, the probe is sent again), or which batch it is. Whatever a model hides its peeking behind, it cannot answer
  the true row and its probe alike unless it remembers. Each row tests one place for a look at the next token alone.
* **Bets**, which hold for a model with a memory too: for one that cannot see a drawn token, q(drawn) / p(drawn) is 1
  on average, whatever q is. So 1 + stake * ([q > sure] q / p - sum of all q > sure) is 1 on average as well, and so is
  the product over all draws: a bet with fair odds. SURE and STAKES give twelve; their mean exceeds 10^7 with a
  probability of 10^-7 at most (Ville 1939; Shafer 2021, "Testing by betting"), so much for false alarms. Only
  predictions that are sure of something rare stake anything, so that an honest model loses little and a peek at one
  draw gains about 1 / p.

There are about DRAWS draws, at all positions, in text like the scored one. A model that looks at the next token at 1 %
of the positions, wherever these are or however it chooses them by what stands there, looks at about 30 of them, each
worth some 2 to 4 nats, where 19 are enough; `benchmarks/probes.py --power` measures it: all of 280 evaluations of seven
such models were refused. Peeks that are confined to whole rows are found by the rows alone: with R rows of probes, a
model that looks ahead in a share f of all rows passes with a probability of (1 - f)^R: 99 % are found at f = 10 % in
the cpu profile. Each batch has a row among the first half of the probes where these have as many rows as there are
batches.

A model that fails is told `METRIC causal=0`, `independent=0` (both `LABEL not_causal`) or `deterministic=0`
(`LABEL gate_miss`), exit 3.

Exit codes: 0 scored · 1 no score (one line on stderr says why) · 3 a probe failed.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import select
import stat
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
    tolerance: float  # how far logits may move when what they may not depend on changes (kernels may round differently)
    probes: int  # requests that are probes


PLANS = {
    "cpu": Plan(256, 16, 24, start_timeout=60, first_timeout=60, reply_timeout=30, tolerance=1e-3, probes=3),
    "cuda": Plan(2048, 4, 256, start_timeout=60, first_timeout=180, reply_timeout=60, tolerance=0.1, probes=16),
}
PLACES = 256  # positions compared per row at most; half of them are those just before the cut
DRAWS = 3000  # tokens drawn at random in all probes together, about
LEAST = (32, 1000, 1 << 40)  # places with the same context that a piece is drawn from at least; the last: all of them
POOL = 64  # batches that pieces are drawn from
SURE = (0.0, 0.1, 0.4, 0.8)  # probabilities from which on a bet counts a prediction
STAKES = np.array([0.5, 0.1, 0.02])  # parts of its money that a bet stakes
MAX_WEALTH = 1e7  # fair bets that start with 1 get this far with a probability of 1e-7


class EvaluationError(Exception):
    """No score: the text says why, in one line."""


class ProbeFailed(Exception):
    """Logits depend on what they may not depend on. metric: which probe; label: what to call it."""

    def __init__(self, metric: str, label: str, what: str) -> None:
        super().__init__(what)
        self.metric, self.label = metric, label


@dataclass(frozen=True)
class Probe:
    """Rows of several batches, each true up to its cut and other pieces of the same text from there on.

    batches, rows, cuts (B,): where each row comes from, and the first position that differs; places: for each row the
    positions before its cut whose logits are compared. Of all tokens that were drawn: at (K, 2), row and position;
    drawn (K,), what was; odds (K,), the probability that it was drawn with.
    """

    batches: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    cuts: npt.NDArray[np.int64]
    places: list[npt.NDArray[np.int64]]
    at: npt.NDArray[np.int64]
    drawn: npt.NDArray[np.int64]
    odds: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """One request: the inputs (B, T) of a batch, or those of a probe."""

    batch: int
    inputs: Tokens
    probe: Probe | None = None


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
                pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
                if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
                    raise EvaluationError("the model process put something else in the place of a pipe")
                return pipe
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


def read_windows(tokens: npt.NDArray[np.uint16], plan: Plan) -> Tokens:
    """(batches, rows, window + 1) tokens, spread evenly over the validation text; fewer where it is short."""
    available = (len(tokens) - 1) // plan.window
    batches = min(plan.batches, available // plan.rows)
    if batches < 1:
        raise EvaluationError(f"val.bin holds {len(tokens)} tokens: too few for one batch; run prepare.py again")
    chosen = np.arange(batches * plan.rows) * available // (batches * plan.rows)
    windows: Tokens = tokens[chosen[:, None] * plan.window + np.arange(plan.window + 1)].astype(np.int32)
    return windows.reshape(batches, plan.rows, plan.window + 1)


class Text:
    """A text and its places in the order of what stands before them, the nearest token first."""

    def __init__(self, windows: Tokens, vocab: int) -> None:
        self.tokens, self.vocab = windows.reshape(-1).astype(np.int64), vocab
        self.depth = min(8, int(62 / np.log2(vocab)), len(self.tokens) - 1)
        codes = np.zeros(len(self.tokens) - self.depth, dtype=np.int64)
        for back in range(self.depth):
            codes = codes * vocab + self.tokens[self.depth - 1 - back : len(self.tokens) - 1 - back]
        order = np.argsort(codes)
        self.codes, self.places = codes[order], order + self.depth
        self.following = self.tokens[self.places]
        self.counts = np.bincount(self.following, minlength=vocab)

    def draw(self, before: npt.NDArray[np.int64], rng: np.random.Generator, unlike: int = -1) -> tuple[int, float]:
        """A place where the text could go on, and the odds of the token there, which is not ``unlike``.

        Each place is as likely whose context agrees with ``before`` in as many tokens as some of LEAST places do.
        """
        least = LEAST[rng.integers(len(LEAST))]
        low, high, code, size = 0, len(self.codes), 0, self.vocab**self.depth
        for token in before[::-1][: self.depth].tolist():
            size //= self.vocab
            code += token * size
            start, end = self.codes.searchsorted([code, code + size])
            if end - start < least:
                break
            low, high = int(start), int(end)
        if self.count(unlike, low, high) == high - low:  # there it always goes on so
            low, high = 0, len(self.codes)
        other = high - low - self.count(unlike, low, high)
        if not other:
            raise EvaluationError("val.bin holds one token again and again; run prepare.py again")
        while (token := int(self.following[at := int(rng.integers(low, high))])) == unlike:
            pass
        return int(self.places[at]), self.count(token, low, high) / other

    def count(self, token: int, low: int, high: int) -> int:
        """How many of these places are followed by a token."""
        if high - low == len(self.following):
            return int(self.counts[token]) if token >= 0 else 0
        return int(np.count_nonzero(self.following[low:high] == token))


def schedule(windows: Tokens, vocab: int, probes: int, rng: np.random.Generator) -> Iterator[Job]:
    """Every batch once, in order, and at random moments the probes, each before the batches that its rows are from."""
    count, rows = windows.shape[:2]
    piece = max(2.0, probes * windows[0, :, :-1].size / 2 / DRAWS)
    even = (probes + 1) // 2  # of the probes: these have rows of all batches alike, or of as many as they have rows
    turns = [rng.permutation(count) for _ in range(-(-even * rows // count))]
    spread = np.sort(np.concatenate([*turns, np.empty(0, np.int64)])[: even * rows]).reshape(even, rows)
    sources: dict[int, list[npt.NDArray[np.int64]]] = {}
    for batches in spread:
        sources.setdefault(int(rng.integers(0, batches[0] + 1)), []).append(batches)
    for moment in rng.integers(0, count, probes - even).tolist():
        sources.setdefault(moment, []).append(rng.integers(moment, count, rows))
    for moment in range(count):
        if moment in sources:
            text = Text(windows[moment : moment + POOL], vocab)  # none of it has been sent before
            for batches in sources[moment]:
                yield alter(windows, rng.permutation(batches), text, piece, rng)
        yield Job(moment, windows[moment, :, :-1])


def alter(windows: Tokens, batches: npt.NDArray[np.int64], text: Text, piece: float, rng: np.random.Generator) -> Job:
    """A probe with rows of these batches. piece: tokens of each piece of text, on average."""
    rows = rng.integers(0, windows.shape[1], size=len(batches))
    inputs = windows[batches, rows, :-1].copy()
    width = inputs.shape[1]
    cuts = np.where(rng.random(len(inputs)) < 0.25, 1, rng.integers(1, width, size=len(inputs)))
    at: list[tuple[int, int]] = []
    odds: list[float] = []
    for row, cut in enumerate(cuts.tolist()):
        start, unlike = cut, int(inputs[row, cut])
        while start < width:
            place, chance = text.draw(inputs[row, max(0, start - text.depth) : start].astype(np.int64), rng, unlike)
            tokens = text.tokens[place : place + int(rng.geometric(1 / piece))][: width - start]
            inputs[row, start : start + len(tokens)] = tokens
            at.append((row, start))
            odds.append(chance)
            start, unlike = start + len(tokens), -1
    where = np.array(at, dtype=np.int64)
    places = [compared(cut, rng) for cut in cuts.tolist()]
    drawn = inputs[where[:, 0], where[:, 1]].astype(np.int64)
    return Job(-1, inputs, Probe(batches, rows, cuts, places, where, drawn, np.array(odds)))


def compared(cut: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """All positions before a cut, or those just before it and random others where there are many."""
    if cut <= PLACES:
        return np.arange(cut)
    near = np.arange(cut - PLACES // 2, cut)
    return np.append(rng.choice(cut - PLACES // 2, PLACES - PLACES // 2, replace=False), near)


class Scorer:
    """Sends the jobs, adds up the score, and compares what may not differ."""

    def __init__(self, data: Path, folder: Path, profile: str) -> None:
        self.plan = PLANS[profile]
        meta: dict[str, Any] = json.loads((data / "val_meta.json").read_text())
        self.token_bytes = np.array(meta["token_bytes"], dtype=np.int64)
        self.windows = read_windows(np.fromfile(data / "val.bin", dtype="<u2"), self.plan)
        rng = np.random.default_rng(secrets.randbits(128))
        self.jobs = list(schedule(self.windows, len(self.token_bytes), self.plan.probes, rng))
        self.loss_of = nll_sum_cuda if profile == "cuda" else nll_sum
        self.channel = Channel(folder, self.plan, len(self.token_bytes))
        self.probed: dict[int, list[tuple[Job, int, Logits]]] = {}  # by batch: a probe, which row, its answer
        self.sent = 0
        self.wealth = np.zeros((len(SURE), len(STAKES)))  # logarithm, over all tokens that were drawn

    def score(self) -> float:
        """Bits per byte. Raises `EvaluationError` or `ProbeFailed`."""
        nats, total_bytes = 0.0, 0
        self.send_until(0)
        for number, job in enumerate(self.jobs):
            following = self.jobs[number + 1] if number + 1 < len(self.jobs) else None
            if following and not (job.probe and following.batch in job.probe.batches):
                self.send_until(number + 1)  # the model computes it while this one is scored
            else:
                self.send_until(number)
            logits = self.channel.receive(number)
            if job.probe:
                self.bet(job.probe, logits)
                for row, batch in enumerate(job.probe.batches.tolist()):
                    entry = (job, row, logits[row, job.probe.places[row]])  # a copy
                    self.probed.setdefault(batch, []).append(entry)
                continue
            for probe, row, first in self.probed.pop(job.batch, []):
                self.compare(probe, row, first, logits, number)
            targets = self.windows[job.batch, :, 1:].reshape(-1)
            lengths = self.token_bytes[targets]
            nats += self.loss_of(logits.reshape(len(targets), -1), targets, (lengths > 0).astype(np.float64))
            total_bytes += int(lengths.sum())
        return nats / (float(np.log(2)) * total_bytes)

    def send_until(self, number: int) -> None:
        while self.sent <= number:
            self.channel.send(self.sent, self.jobs[self.sent].inputs)
            self.sent += 1

    def bet(self, probe: Probe, logits: Logits) -> None:
        """The bets against peeking, on the logits just before each token that was drawn."""
        before = logits[probe.at[:, 0], probe.at[:, 1] - 1].astype(np.float64)
        q = np.exp(before - before.max(axis=-1, keepdims=True))
        q /= q.sum(axis=-1, keepdims=True)
        hit = q[np.arange(len(q)), probe.drawn]
        for number, sure in enumerate(SURE):
            gain = np.where(hit > sure, hit / probe.odds, 0.0) - np.where(q > sure, q, 0.0).sum(axis=-1)
            self.wealth[number] += np.log1p(STAKES[:, None] * gain).sum(axis=1)
        if np.logaddexp.reduce(self.wealth, axis=None) > np.log(self.wealth.size * MAX_WEALTH):
            raise ProbeFailed("causal", "not_causal", "tokens that were drawn at random were foreseen")

    def compare(self, altered: Job, row: int, first: Logits, answer: Logits, number: int) -> None:
        """What a probe's row was answered before its cut, and the batch's answer (B, T, V): they must agree."""
        probe = altered.probe
        assert probe is not None
        places, source = probe.places[row], (int(probe.batches[row]), int(probe.rows[row]))
        second = answer[source[1], places]
        moved = float(np.abs(first - second).max())
        if moved <= self.plan.tolerance:
            return
        self.finish(number)
        change = float(np.abs(first - self.ask(altered.inputs)[row, places]).max())
        if change > self.plan.tolerance:
            raise ProbeFailed("deterministic", "gate_miss", f"logits moved by {change:.3g} when it was asked twice")
        true = altered.inputs.copy()
        true[row] = self.windows[source][:-1]
        change = float(np.abs(second - self.ask(true)[row, places]).max())
        if change > self.plan.tolerance:
            text = f"logits moved by {change:.3g} when the other rows of the batch changed"
            raise ProbeFailed("independent", "not_causal", text)
        text = f"logits before position {probe.cuts[row]} moved by {moved:.3g} when later tokens changed"
        raise ProbeFailed("causal", "not_causal", text)

    def finish(self, number: int) -> None:
        """Receive what is under way beyond a request."""
        for pending in range(number + 1, self.sent):
            self.channel.receive(pending)

    def ask(self, inputs: Tokens) -> Logits:
        """The answer to a request beside the schedule."""
        self.channel.send(self.sent, inputs)
        self.sent += 1
        return self.channel.receive(self.sent - 1)


def written_bytes(folder: Path) -> int:
    """Bytes of everything that training left: a model may keep its weights in any file, whatever `checkpoint.pt` is."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())


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
        bpb = Scorer(data, Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"]), profile).score()
        if not np.isfinite(bpb):
            raise EvaluationError("the score is not finite")
        size = written_bytes(checkpoint.parent)
    except ProbeFailed as failed:
        print(f"METRIC {failed.metric}=0\nLABEL {failed.label}", flush=True)
        print(f"evaluate.py: the score would mean nothing: {failed}", file=sys.stderr)
        return 3
    except KeyError as error:
        print(f"evaluate.py: {error} is not set in the environment or in val_meta.json", file=sys.stderr)
        return 1
    except (EvaluationError, OSError, ValueError) as error:
        print(f"evaluate.py: {error}", file=sys.stderr)
        return 1
    print(f"METRIC val_bpb={bpb:.6f}")
    print("METRIC causal=1\nMETRIC independent=1\nMETRIC deterministic=1")
    print(f"METRIC checkpoint_bytes={size}")
    print(f"METRIC eval_seconds={time.monotonic() - started:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
