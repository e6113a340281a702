"""The scorer of the `parameter-golf` task: size of the artifact, bits per byte on private text. Protected.

It runs in a pristine copy of the protected files, with `data/val.bin` readable, and never runs a line of the artifact:
it reads `model.py` and `weights.bin` from the output folder once, measures them, and hands these bytes to the model
process (`serve_model.py`), which can open no file and returns logits. An artifact above the limit is `size_blocked`.

Score: the validation text is cut into windows of W + 1 bytes that follow each other without overlap of the targets;
with p the softmax of the logits, `val_bpb` is the mean of -log2 p(target).

A prediction may depend on the bytes before it in its own row, and on nothing else. Some requests are therefore probes.
Each row of a probe is a row of another batch that is still to come, true up to a random place, the cut (any but the
first), and from there on made of pieces of the same text. Where a piece begins, its first byte was drawn, with known
odds, from the places where the text goes on after a like context: of a long one, of a short one, or of none.

* **Comparison**: when a row's own batch is answered, its logits before the cut must be those of the probe. So no model
  may use what comes later (a quarter of the cuts is at position 1), other rows, chance (should they differ, the probe
  is sent again: `gate_miss`), or which batch it is.
* **Bets**, which hold for a model with a memory too: for one that cannot see a drawn byte, q(drawn) / p(drawn) is 1 on
  average. So 1 + stake * ([q > sure] q / p - sum of all q > sure) is 1 on average as well, and so is the product over
  all draws: a fair bet. The mean of those of SURE and STAKES exceeds 10^7 with a probability of 10^-7 at most (Ville
  1939; Shafer 2021). A peek at one draw gains about 1 / p.

The scorer of the task `autoresearch` says how much that finds: models that peek at 1 % of the positions, wherever these
are; of those that confine it to whole rows, a share f, 1 - (1 - f)^R with R rows of probes.

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
PLACES = 256  # positions compared per row at most; half of them are those just before the cut
DRAWS = 3000  # bytes drawn at random in all probes together, about
LEAST = (32, 1000, 1 << 40)  # places with the same context that a piece is drawn from at least; the last: all of them
POOL = 64  # batches that pieces are drawn from
SURE = (0.0, 0.1, 0.4, 0.8)  # probabilities from which on a bet counts a prediction
STAKES = np.array([0.5, 0.1, 0.02])  # parts of its money that a bet stakes
MAX_WEALTH = 1e7  # fair bets that start with 1 get this far with a probability of 1e-7


@dataclass(frozen=True)
class Plan:
    """What is sent, per profile."""

    limit: int  # bytes of the artifact
    window: int  # bytes of context
    rows: int  # windows per batch
    batches: int  # scored: window * rows * batches bytes
    tolerance: float  # how far logits may move when what they may not depend on changes (kernels may round differently)
    probes: int = 3  # requests that are probes


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
    """Rows (B, T) of several batches, each true up to its cut and other pieces of the same text from there on.

    batches, rows, cuts (B,): where each row comes from, and the first position that differs; places: for each row the
    positions before its cut whose logits are compared. Of all bytes that were drawn: at (K, 2), row and position;
    drawn (K,), what was; odds (K,), the probability that it was drawn with.
    """

    inputs: Inputs
    batches: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    cuts: npt.NDArray[np.int64]
    places: list[npt.NDArray[np.int64]]
    at: npt.NDArray[np.int64]
    drawn: npt.NDArray[np.int64]
    odds: npt.NDArray[np.float64]


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


class Text:
    """A text and its places in the order of what stands before them, the nearest token first."""

    def __init__(self, windows: Inputs, vocab: int) -> None:
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


def schedule(windows: Inputs, probes: int, rng: np.random.Generator) -> Iterator[Probe | int]:
    """Every batch once, in order, as its number; at random moments the probes, before the batches of their rows."""
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
            text = Text(windows[moment : moment + POOL], SYMBOLS)  # none of it has been sent before
            for batches in sources[moment]:
                yield alter(windows, rng.permutation(batches), text, piece, rng)
        yield moment


def alter(windows: Inputs, batches: npt.NDArray[np.int64], text: Text, piece: float, rng: np.random.Generator) -> Probe:
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
    return Probe(inputs, batches, rows, cuts, places, where, drawn, np.array(odds))


def compared(cut: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """All positions before a cut, or those just before it and random others where there are many."""
    if cut <= PLACES:
        return np.arange(cut)
    near = np.arange(cut - PLACES // 2, cut)
    return np.append(rng.choice(cut - PLACES // 2, PLACES - PLACES // 2, replace=False), near)


def bits(logits: Logits, targets: Inputs) -> float:
    """Sum over a batch of -log2 softmax(logits)[target]."""
    flat, wanted = logits.reshape(-1, SYMBOLS), targets.reshape(-1, 1).astype(np.int64)
    # Both terms are relative to the largest logit: huge ones would leave no digits for the difference.
    relative = flat - flat.max(axis=-1, keepdims=True)
    picked = np.take_along_axis(relative, wanted, axis=-1)[:, 0].astype(np.float64)
    return float((np.log(np.exp(relative, out=relative).sum(axis=-1, dtype=np.float64)) - picked).sum() / np.log(2))


def bet(probe: Probe, logits: Logits) -> npt.NDArray[np.float64]:
    """Logarithms of what the fair bets against peeking gain by a probe (SURE, STAKES)."""
    before = logits[probe.at[:, 0], probe.at[:, 1] - 1].astype(np.float64)
    q = np.exp(before - before.max(axis=-1, keepdims=True))
    q /= q.sum(axis=-1, keepdims=True)
    hit = q[np.arange(len(q)), probe.drawn]
    gains = [np.where(hit > sure, hit / probe.odds, 0.0) - np.where(q > sure, q, 0.0).sum(axis=-1) for sure in SURE]
    return np.log1p(STAKES[:, None] * np.array(gains)[:, None]).sum(axis=-1)


class Comparison:
    """What probes were answered, until the batches of their rows are."""

    def __init__(self, channel: Channel, windows: Inputs, tolerance: float) -> None:
        self.channel, self.windows, self.tolerance = channel, windows, tolerance
        self.answers: dict[int, list[tuple[Probe, int, Logits]]] = {}  # by batch: a probe, which row, its answer

    def keep(self, probe: Probe, logits: Logits) -> None:
        """The answer to a probe."""
        for row, batch in enumerate(probe.batches.tolist()):
            self.answers.setdefault(batch, []).append((probe, row, logits[row, probe.places[row]]))  # a copy

    def check(self, batch: int, logits: Logits) -> None:
        """Refuse a model of which logits before a cut differ between a probe's answer and the batch's own."""
        for probe, row, first in self.answers.pop(batch, []):
            second = logits[probe.rows[row], probe.places[row]]
            moved = float(np.abs(first - second).max())
            if moved > self.tolerance:
                self.refuse(probe, row, first, second, moved)

    def refuse(self, probe: Probe, row: int, first: Logits, second: Logits, moved: float) -> None:
        """Find out why logits differ, by two more requests, and raise."""
        change = float(np.abs(first - self.channel.ask(probe.inputs)[row, probe.places[row]]).max())
        if change > self.tolerance:
            raise Refused("gate_miss", "deterministic=0", f"logits moved by {change:.3g} when it was asked twice")
        true = probe.inputs.copy()
        true[row] = self.windows[probe.batches[row], probe.rows[row], :-1]
        change = float(np.abs(second - self.channel.ask(true)[row, probe.places[row]]).max())
        if change > self.tolerance:
            raise Refused("not_causal", "independent=0", "logits moved when the other rows of the batch changed")
        raise Refused("not_causal", "causal=0", f"logits moved by {moved:.3g} when later bytes changed")


def score(channel: Channel, windows: Inputs, plan: Plan, rng: np.random.Generator) -> float:
    """Bits per byte. Raises EvaluationError or Refused."""
    comparison = Comparison(channel, windows, plan.tolerance)
    total, wealth = 0.0, np.zeros((len(SURE), len(STAKES)))
    for job in schedule(windows, plan.probes, rng):
        if isinstance(job, Probe):
            logits = channel.ask(job.inputs)
            wealth += bet(job, logits)
            if np.logaddexp.reduce(wealth, axis=None) > np.log(wealth.size * MAX_WEALTH):
                raise Refused("not_causal", "causal=0", "bytes that were drawn at random were foreseen")
            comparison.keep(job, logits)
            continue
        logits = channel.ask(windows[job, :, :-1])
        comparison.check(job, logits)
        total += bits(logits, windows[job, :, 1:])
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
