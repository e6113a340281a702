"""An interpolated n-gram model of characters, in plain Python; the text comes from the submodule libs/text."""

import json
import math
import os
import random
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "libs" / "text"))
from textlib import sentences  # noqa: E402

N_SENTENCES = 20000
N_VAL = 400
TEXT_SEED = 2
MAX_ORDER = 2
DECAY = 0.9
DISCOUNT = 1.0
SAMPLE = 0.7

text = sentences(N_SENTENCES + N_VAL, TEXT_SEED)
train, val = text[:N_SENTENCES], text[N_SENTENCES:]
rng = random.Random(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
train = [line for line in train if rng.random() < SAMPLE]
alphabet = sorted(set("".join(train) + "".join(val)))
counts = [defaultdict(Counter) for _ in range(MAX_ORDER + 1)]
for line in train:
    padded = "^" * MAX_ORDER + line
    for i in range(MAX_ORDER, len(padded)):
        for order in range(MAX_ORDER + 1):
            counts[order][padded[i - order : i]][padded[i]] += 1


def probability(context, char):
    p = 1.0 / len(alphabet)
    for order in range(MAX_ORDER + 1):
        seen = counts[order].get(context[len(context) - order :])
        if not seen:
            break
        total = sum(seen.values())
        weight = DECAY * total / (total + DISCOUNT)
        p = weight * seen[char] / total + (1 - weight) * p
    return p


bits = []
for line in val:
    padded = "^" * MAX_ORDER + line
    bits.append([-math.log2(probability(padded[:i], padded[i])) for i in range(MAX_ORDER, len(padded))])
out = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
(out / "validation.json").write_text(json.dumps({"y": val, "predicted": bits}))
flat = [b for row in bits for b in row]
print(f"val_bits={sum(flat) / len(flat):.6f}")
