"""A recipe of ten constants; what it is worth is for evaluate.py to say."""

import json
import os
import sys
from pathlib import Path

LEARNING_RATE = 0.04
BATCH_SIZE = 1024
WEIGHT_DECAY = 0.2
MOMENTUM = 0.95
WARMUP_RATIO = 0.0
DEPTH = 4
WIDTH = 64
DROPOUT = 0.1
CLIP_NORM = 1.0
INIT_SCALE = 1.0


def recipe():
    """What was trained with."""
    return {
        "learning_rate": LEARNING_RATE,
        "batch_size": BATCH_SIZE,
        "weight_decay": WEIGHT_DECAY,
        "momentum": MOMENTUM,
        "warmup_ratio": WARMUP_RATIO,
        "depth": DEPTH,
        "width": WIDTH,
        "dropout": DROPOUT,
        "clip_norm": CLIP_NORM,
        "init_scale": INIT_SCALE,
    }


def main():
    """Hand the recipe over."""
    output = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    (output / "recipe.json").write_text(json.dumps(recipe()))
    if LEARNING_RATE * CLIP_NORM > 0.35:
        print("FAIL: the loss is not finite")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
