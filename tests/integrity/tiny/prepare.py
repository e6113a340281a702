"""Make the data of the tiny task: text of a Markov chain over 64 tokens, the same each time."""

import json
import sys
from pathlib import Path

import numpy as np

VOCAB = 64


def chain(rng, length):
    table = rng.dirichlet(np.full(VOCAB, 0.1), size=VOCAB).cumsum(axis=1)
    state, found = 0, np.empty(length, dtype=np.uint16)
    for i, draw in enumerate(rng.random(length)):
        state = min(int(np.searchsorted(table[state], draw)), VOCAB - 1)
        found[i] = state
    return found


def main():
    data = Path("data")
    data.mkdir(exist_ok=True)
    text = chain(np.random.default_rng(7), 160_000)
    text[:50_000].astype("<u2").tofile(data / "train.bin")
    text[50_000:].astype("<u2").tofile(data / "val.bin")
    (data / "meta.json").write_text(json.dumps({"vocab_size": VOCAB}))
    private = {"profile": "cpu", "vocab_size": VOCAB, "token_bytes": [1] * VOCAB}
    # Only in the test's own copy of the data does this become something to look for.
    private["canary"] = "PRIVATE-DATA-" + "CANARY"
    (data / "val_meta.json").write_text(json.dumps(private))
    return 0


if __name__ == "__main__":
    sys.exit(main())
