"""The scorer of the `nanochat-core` task: centred accuracy on questions that the model has never seen. Protected.

It runs in a pristine copy of the protected files, with `data/questions.npz` readable, and never imports `train.py` nor
opens the checkpoint: the model runs in another process (`serve_model.py`) that is sent rows of bytes, context and
choice and text that means nothing, and returns logits. The answer is the choice with the fewest bits per byte.

`core` is the mean over the kinds of questions of (accuracy - chance) / (1 - chance), as CORE of DataComp-LM (Li et al.
2024): 0 is guessing, 1 is perfect.

The answer must come from a language model: a prediction may depend on the bytes before it in its own row and on
nothing else. All choices of a question are asked in different batches, in a random order, and what is predicted within
their common context must be the same; rows of all batches are sent again among others, with other text from a random
place in each choice, or from its end, and what is predicted up to there must be the same (`not_causal`, exit 3). So no
model gets to judge a choice as a whole, or by what else it is asked with: of those that look on to its end in a share f
of them, about 1 - (1 - f)^300 are found. What fits into the tolerance of that comparison decides nothing: a question
whose best two choices are that close is a guess.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from channel import Channel, EvaluationError, Logits
from exchange import Refused, tell
from questions import CONTEXT, KINDS, WIDTH

ROWS = 150  # of a batch: each is answered by a process that loads the model anew
AGAIN = 2  # batches of rows that are sent once more
TOLERANCES = {"cpu": 1e-3, "cuda": 0.1}  # how far logits may move: kernels may round differently
PLACES = 8  # of a context that are compared beside its last one

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def batches(slots: Integers, rng: np.random.Generator) -> list[Integers]:
    """All rows in a random order, a question's choices in different batches; the last ones are filled up."""
    found = []
    for slot in np.unique(slots):
        rows = rng.permutation(np.flatnonzero(slots == slot))
        rows = np.concatenate([rows, np.resize(rows, -len(rows) % ROWS)])
        found += list(rows.reshape(-1, ROWS))
    return found


def bits_per_byte(logits: Logits, rows: npt.NDArray[np.uint8], starts: Integers, lengths: Integers) -> Floats:
    """Mean of -log2 p over the choice of each row. logits (B, T, 256), rows (B, T)."""
    found = np.empty(len(rows))
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        at = logits[i, start - 1 : start + length - 1].astype(np.float64)
        at -= at.max(-1, keepdims=True)
        picked = at[np.arange(length), rows[i, start : start + length]]
        found[i] = (np.log(np.exp(at).sum(-1)) - picked).mean() / np.log(2)
    return found


class Scorer:
    """Asks, checks what may not differ, and counts."""

    def __init__(self, asked: dict[str, Integers], channel: Channel, tolerance: float) -> None:
        self.asked, self.channel, self.tolerance = asked, channel, tolerance
        self.rows = asked["rows"].astype(np.uint8)
        self.rng = np.random.default_rng(secrets.randbits(128))
        self.places = np.append(self.rng.choice(CONTEXT - 1, PLACES, replace=False), CONTEXT - 1)

    def bits(self) -> Floats:
        """Bits per byte (R,) of every choice. Raises EvaluationError or Refused."""
        found = np.empty(len(self.rows))
        seen: dict[int, Logits] = {}
        again = self.rng.permutation(len(self.rows))[: AGAIN * ROWS]
        cuts = self.rng.integers(self.asked["contexts"], self.asked["contexts"] + self.asked["choices"] + 1)
        before: dict[int, Logits] = {}
        for chosen in batches(self.asked["slot"], self.rng):
            rows, starts, lengths = self.rows[chosen], self.asked["contexts"][chosen], self.asked["choices"][chosen]
            logits = self.channel.ask(rows)
            found[chosen] = bits_per_byte(logits, rows, starts, lengths)
            for i, (row, question) in enumerate(zip(chosen.tolist(), self.asked["question"][chosen], strict=True)):
                common = logits[i, self.places]
                self.same(seen.setdefault(int(question), common.copy()), common)
                if row in again:
                    before[row] = logits[i, : cuts[row]].copy()
        for chosen in np.resize(again, (AGAIN, ROWS)):
            other = self.rng.permutation(self.rows)[:ROWS]
            other = np.where(other == self.rows[chosen], (other + 1) % 128, other)  # every byte there does change
            asked = np.where(np.arange(WIDTH) < cuts[chosen, None], self.rows[chosen], other).astype(np.uint8)
            logits = self.channel.ask(asked)
            for i, row in enumerate(chosen.tolist()):
                self.same(before[row], logits[i, : cuts[row]])
        return found

    def same(self, first: Logits, second: Logits) -> None:
        """Refuse logits that differ where they may not."""
        moved = float(np.abs(first - second).max())
        if moved > self.tolerance:
            what = f"logits moved by {moved:.3g} when only later bytes or other rows of the batch changed"
            raise Refused("not_causal", "causal=0", what)


def centred(asked: dict[str, Integers], bits: Floats, tolerance: float) -> dict[str, float]:
    """(accuracy - chance) / (1 - chance) of each kind of question; one that only the tolerance decides is a guess.

    Logits that move by no more than the tolerance with what comes later move ln p of a choice by as much, up or down.
    """
    table = np.full((len(asked["right"]), max(KINDS.values())), np.inf)
    table[asked["question"], asked["slot"]] = bits
    best = np.sort(table, axis=1)
    decided = best[:, 1] - best[:, 0] > 2 * tolerance / np.log(2)
    hits = table.argmin(1) == asked["right"]
    found = {}
    for index, (kind, choices) in enumerate(KINDS.items()):
        chance = 1 / choices
        right = np.where(decided, hits, chance)[asked["kind"] == index].mean()
        found[kind] = float((right - chance) / (1 - chance))
    return found


def metrics() -> dict[str, str]:
    """The mean of the centred accuracies, and each of them."""
    profile = "cuda" if os.environ.get("AUTORESEARCHD_PROFILE") == "cuda" else "cpu"
    with np.load(Path(__file__).resolve().parent / "data/questions.npz", allow_pickle=False) as stored:
        asked = {name: stored[name].astype(np.int64) for name in stored.files}
    if not (Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "checkpoint.pt").is_file():
        raise EvaluationError("no checkpoint.pt in the output folder: training has to write one")
    channel = Channel(Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"]), ROWS, WIDTH)
    tolerance = TOLERANCES[profile]
    scores = centred(asked, Scorer(asked, channel, tolerance).bits(), tolerance)
    kinds = {kind: f"{value:.4f}" for kind, value in scores.items()}
    return {"core": f"{np.mean(list(scores.values())):.6f}", **kinds}


if __name__ == "__main__":
    sys.exit(tell(metrics))
