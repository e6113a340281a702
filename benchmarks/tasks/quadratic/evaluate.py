"""Score a recipe: a quadratic form in the constants on their natural scales, and noise from the seed.

The best rate follows the batch size, depth and width share one budget of compute, decay and dropout regularise
together. The loss is 2 at the optimum, about 2.2 at the start; the noise has a standard deviation of 0.01.
"""

import json
import math
import os
import random
import sys
from pathlib import Path

SIGMA = 0.01


def octaves(value, best):
    """Distance on the logarithmic scale, in octaves."""
    return math.log2(max(value, 1e-9) / best)


def loss(r):
    """The true loss of a recipe."""
    rate = octaves(r["learning_rate"], 0.02 * math.sqrt(max(r["batch_size"], 1) / 512))
    compute = octaves(r["depth"] * r["width"] ** 2, 6 * 96**2)
    regularised = r["weight_decay"] / 0.2 + r["dropout"] / 0.1 - 0.75
    return (
        2.0
        + 0.04 * rate**2
        + 0.03 * octaves(r["batch_size"], 512) ** 2
        + 0.02 * compute**2
        + 0.004 * (r["depth"] - 6) ** 2
        + 0.03 * regularised**2
        + 0.3 * (r["dropout"] - 0.05) ** 2
        + 0.015 * octaves(1.0 - min(r["momentum"], 0.9999), 0.1) ** 2
        + 0.2 * (r["warmup_ratio"] - 0.15) ** 2
        + 0.008 * octaves(r["clip_norm"], 0.5) ** 2
        + 0.01 * octaves(r["init_scale"], 0.6) ** 2
    )


def main():
    """Read, score, print."""
    found = json.loads((Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "recipe.json").read_text())
    recipe = {str(name): float(value) for name, value in found.items()}
    noise = random.Random(f"noise {os.environ['AUTORESEARCHD_SEED']}").gauss(0.0, SIGMA)
    value = loss(recipe) + noise
    if not math.isfinite(value):
        return 1
    print(f"METRIC loss={value:.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
