"""What a scorer of texts asks beside the text: probes and decoys, against models that look ahead. Protected.

A prediction may depend on what stands before it in its own row, and on nothing else. Some requests are therefore
**probes**. Each row of a probe is a row of another batch that is still to come, true up to a random place, the cut (any
but the first), and from there on made of pieces of the same text. Where a piece begins, its first symbol was drawn,
with known odds, from the places where the text goes on after a like context: of a long one, of a short one, or of none.

* **Comparison**: when a row's own batch is answered, its logits before the cut must be those of the probe. So no model
  may use what comes later (a quarter of the cuts is at position 1), other rows, chance (**determinism**: should they
  differ, the probe is sent again), or which batch it is. Whatever a model hides its peeking behind, it cannot answer
  the true row and its probe alike unless it remembers. Each row tests one place for a look at the next symbol alone.
* **Bets**, which hold for a model with a memory too: for one that cannot see a drawn symbol, q(drawn) / p(drawn) is 1
  on average, whatever q is. So 1 + stake * ([q > sure] q / p - sum of all q > sure) is 1 on average as well, and so is
  the product over all draws: a bet with fair odds. SURE and STAKES give twelve; their mean exceeds 10^7 with a
  probability of 10^-7 at most (Ville 1939; Shafer 2021, "Testing by betting"), so much for false alarms. Only
  predictions that are sure of something rare stake anything, so that an honest model loses little and a peek at one
  draw gains about 1 / p.

Nor may a model tell probes from what is scored, and look ahead in the latter alone. Where files can be read, a process
may leave something to the next: by which pages of a file are in memory, one that was written just now tells which rows
were asked before. Each batch therefore holds **decoys**: rows that count for nothing, of text that is not asked
otherwise, in long pieces, at random among the others. They are bet on like the rows of a probe.

There are about DRAWS draws in the probes, at all positions, in text like the scored one. A model that looks at the next
symbol at 1 % of the positions, wherever these are or however it chooses them by what stands there, looks at about 30 of
them, each worth some 2 to 4 nats, where 19 are enough. Peeks that are confined to whole rows are found by the rows
alone: with R rows of probes, a model that looks ahead in a share f of all rows passes with a probability of (1 - f)^R:
99 % are found at f = 10 % in the cpu profile of `autoresearch`. Each batch has a row among the first half of the probes
where these have as many rows as there are batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from exchange import Refused

PLACES = 256  # positions compared per row at most; half of them are those just before the cut
DRAWS = 3000  # symbols drawn at random in all probes together, about
PIECES = 8  # of a decoy, about
LEAST = (32, 1000, 1 << 40)  # places with the same context that a piece is drawn from at least; the last: all of them
POOL = 64  # batches that pieces are drawn from
SURE = (0.0, 0.1, 0.4, 0.8)  # probabilities from which on a bet counts a prediction
STAKES = np.array([0.5, 0.1, 0.02])  # parts of its money that a bet stakes
MAX_WEALTH = 1e7  # fair bets that start with 1 get this far with a probability of 1e-7

Rows = npt.NDArray[Any]
"""Rows of symbols, integers of any width."""
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Draws:
    """The symbols of a request that were drawn: row, position, and the probability that each was drawn with."""

    rows: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    odds: list[float] = field(default_factory=list)

    def fill(self, number: int, row: Rows, start: int, text: Text, piece: float, rng: np.random.Generator) -> None:
        """Let a row go on from ``start``, with another symbol than it has there, in pieces of a text."""
        unlike = int(row[start])
        while start < len(row):
            place, chance = text.draw(row[max(0, start - text.depth) : start].astype(np.int64), rng, unlike)
            symbols = text.symbols[place : place + int(rng.geometric(1 / piece))][: len(row) - start]
            row[start : start + len(symbols)] = symbols
            for of, value in ((self.rows, number), (self.places, start), (self.odds, chance)):
                of.append(value)
            start, unlike = start + len(symbols), -1


@dataclass(frozen=True)
class Probe:
    """Rows (B, T) of several batches, each true up to its cut and other pieces of the same text from there on.

    batches, rows, cuts (B,): where each row comes from, and the first position that differs; places: for each row the
    positions before its cut whose logits are compared.
    """

    inputs: Rows
    draws: Draws
    batches: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    cuts: npt.NDArray[np.int64]
    places: list[npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Batches:
    """What is scored: rows (N, B, T + 1), which of them count (N, B), and what was drawn in the others of a batch."""

    windows: Rows
    counted: npt.NDArray[np.bool_]
    draws: list[Draws]

    def request(self, job: Probe | int) -> tuple[Rows, Draws]:
        """The inputs (B, T) of a probe or a batch, and what was drawn in them."""
        if isinstance(job, Probe):
            return job.inputs, job.draws
        return self.windows[job, :, :-1], self.draws[job]


def read_windows(text: Rows, window: int, rows: int, batches: int) -> tuple[Rows, Rows]:
    """Rows (R, window + 1), spread evenly over a text (N,), and what lies between them, or all of it.

    rows: of a batch; R is a multiple, of as many batches as there are, or fit.
    """
    available = (len(text) - 1) // window
    count = min(batches, available // rows) * rows
    chosen = np.arange(count) * available // max(1, count)
    between = np.setdiff1d(np.arange(available), chosen)[:, None] * window + np.arange(window)
    windows = text[chosen[:, None] * window + np.arange(window + 1)]
    return windows, text[between].reshape(-1) if between.size > max(LEAST[1], 4 * window) else text


class Text:
    """A text and its places in the order of what stands before them, the nearest symbol first."""

    def __init__(self, symbols: Rows, vocab: int) -> None:
        self.symbols, self.vocab = symbols.reshape(-1).astype(np.int64), vocab
        self.depth = min(8, int(62 / np.log2(vocab)), len(self.symbols) - 1)
        codes = np.zeros(len(self.symbols) - self.depth, dtype=np.int64)
        for back in range(self.depth):
            codes = codes * vocab + self.symbols[self.depth - 1 - back : len(self.symbols) - 1 - back]
        order = np.argsort(codes)
        self.codes, self.places = codes[order], order + self.depth
        self.following = self.symbols[self.places]
        self.counts = np.bincount(self.following, minlength=vocab)

    def draw(self, before: npt.NDArray[np.int64], rng: np.random.Generator, unlike: int = -1) -> tuple[int, float]:
        """A place where the text could go on, and the odds of the symbol there, which is not ``unlike``.

        Each place is as likely whose context agrees with ``before`` in as many symbols as some of LEAST places do.
        """
        least = LEAST[rng.integers(len(LEAST))]
        low, high, code, size = 0, len(self.codes), 0, self.vocab**self.depth
        for symbol in before[::-1][: self.depth].tolist():
            size //= self.vocab
            code += symbol * size
            start, end = self.codes.searchsorted([code, code + size])
            if end - start < least:
                break
            low, high = int(start), int(end)
        if self.count(unlike, low, high) == high - low:  # there it always goes on so
            low, high = 0, len(self.codes)
        other = high - low - self.count(unlike, low, high)
        if not other:
            raise ValueError("val.bin holds one symbol again and again; run prepare.py again")
        while (symbol := int(self.following[at := int(rng.integers(low, high))])) == unlike:
            pass
        return int(self.places[at]), self.count(symbol, low, high) / other

    def count(self, symbol: int, low: int, high: int) -> int:
        """How many of these places are followed by a symbol."""
        if high - low == len(self.following):
            return int(self.counts[symbol]) if symbol >= 0 else 0
        return int(np.count_nonzero(self.following[low:high] == symbol))


def add_decoys(windows: Rows, text: Text, rows: int, extra: int, rng: np.random.Generator) -> Batches:
    """Rows (R, T + 1) in their order, and as many decoys as make ``extra`` batches of ``rows`` at random among them."""
    width, batches = windows.shape[1], len(windows) // rows + extra
    draws = [Draws() for _ in range(batches)]
    found, counted = np.empty((batches, rows, width), windows.dtype), np.ones((batches, rows), np.bool_)
    turns = [rng.permutation(batches) for _ in range(-(-extra * rows // batches))]
    for batch in np.concatenate([*turns, np.empty(0, np.int64)])[: extra * rows].tolist():
        row = int(rng.choice(np.flatnonzero(counted[batch])))
        counted[batch, row] = False
        place, first = rng.integers(len(text.symbols) - width), int(rng.integers(1, width // PIECES))
        found[batch, row] = text.symbols[place : place + width]
        draws[batch].fill(row, found[batch, row, :-1], first, text, width / PIECES, rng)
    found[counted] = windows
    return Batches(found, counted, draws)


def schedule(batches: Batches, vocab: int, probes: int, rng: np.random.Generator) -> Iterator[Probe | int]:
    """Every batch once, in order, as its number; at random moments the probes, before the batches of their rows."""
    windows = batches.windows
    count, rows = windows.shape[:2]
    piece = max(2.0, probes * windows[0, :, :-1].size / 2 / DRAWS)
    even = (probes + 1) // 2  # of the probes: these have rows of all batches alike, or of as many as they have rows
    turns = [rng.permutation(count) for _ in range(-(-even * rows // count))]
    spread = np.sort(np.concatenate([*turns, np.empty(0, np.int64)])[: even * rows]).reshape(even, rows)
    sources: dict[int, list[npt.NDArray[np.int64]]] = {}
    for source in spread:
        sources.setdefault(int(rng.integers(0, source[0] + 1)), []).append(source)
    for moment in rng.integers(0, count, probes - even).tolist():
        sources.setdefault(moment, []).append(rng.integers(moment, count, rows))
    for moment in range(count):
        if moment in sources:
            text = Text(windows[moment : moment + POOL], vocab)  # none of it has been sent before
            for source in sources[moment]:
                yield alter(windows, rng.permutation(source), text, piece, rng)
        yield moment


def alter(windows: Rows, batches: npt.NDArray[np.int64], text: Text, piece: float, rng: np.random.Generator) -> Probe:
    """A probe with rows of these batches. piece: symbols of each piece of text, on average."""
    rows = rng.integers(0, windows.shape[1], size=len(batches))
    inputs = windows[batches, rows, :-1].copy()
    width = inputs.shape[1]
    cuts = np.where(rng.random(len(inputs)) < 0.25, 1, rng.integers(1, width, size=len(inputs)))
    draws = Draws()
    for row, cut in enumerate(cuts.tolist()):
        draws.fill(row, inputs[row], cut, text, piece, rng)
    return Probe(inputs, draws, batches, rows, cuts, [compared(cut, rng) for cut in cuts.tolist()])


def compared(cut: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """All positions before a cut, or those just before it and random others where there are many."""
    if cut <= PLACES:
        return np.arange(cut)
    near = np.arange(cut - PLACES // 2, cut)
    return np.append(rng.choice(cut - PLACES // 2, PLACES - PLACES // 2, replace=False), near)


class Comparison:
    """What probes were answered, until the batches of their rows are.

    ask: gives the logits (B, T, V) for a request beside the schedule. windows: rows (N, B, T + 1) of all batches.
    tolerance: how far logits may move when what they may not depend on changes.
    """

    def __init__(self, ask: Callable[[Rows], Logits], windows: Rows, tolerance: float) -> None:
        self.ask, self.windows, self.tolerance = ask, windows, tolerance
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
        change = float(np.abs(first - self.ask(probe.inputs)[row, probe.places[row]]).max())
        if change > self.tolerance:
            raise Refused("gate_miss", "deterministic=0", f"logits moved by {change:.3g} when it was asked twice")
        true = probe.inputs.copy()
        true[row] = self.windows[probe.batches[row], probe.rows[row], :-1]
        change = float(np.abs(second - self.ask(true)[row, probe.places[row]]).max())
        if change > self.tolerance:
            what = f"logits moved by {change:.3g} when the other rows of the batch changed"
            raise Refused("not_causal", "independent=0", what)
        what = f"logits before position {probe.cuts[row]} moved by {moved:.3g} when what comes later changed"
        raise Refused("not_causal", "causal=0", what)


class Bets:
    """The bets against peeking; wealth: logarithms, of each bet (SURE, STAKES)."""

    def __init__(self) -> None:
        self.wealth = np.zeros((len(SURE), len(STAKES)))

    def foreseen(self, inputs: Rows, draws: Draws, logits: Logits) -> bool:
        """Bet on the logits just before each symbol that was drawn; whether these were foreseen so far."""
        rows, places = np.array(draws.rows, np.int64), np.array(draws.places, np.int64)
        before = logits[rows, places - 1].astype(np.float64)
        q = np.exp(before - before.max(axis=-1, keepdims=True))
        q /= q.sum(axis=-1, keepdims=True)
        hit, odds = q[np.arange(len(q)), inputs[rows, places]], np.array(draws.odds)
        for number, sure in enumerate(SURE):
            gain = np.where(hit > sure, hit / odds, 0.0) - np.where(q > sure, q, 0.0).sum(axis=-1)
            self.wealth[number] += np.log1p(STAKES[:, None] * gain).sum(axis=1)
        return self.total > np.log(MAX_WEALTH)

    @property
    def total(self) -> float:
        """Logarithm of the mean of all bets."""
        return float(np.logaddexp.reduce(self.wealth, axis=None) - np.log(self.wealth.size))
