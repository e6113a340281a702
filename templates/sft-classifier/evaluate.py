"""Score the newsgroups that a run has predicted. Protected: no experiment may edit it, and it runs no edited code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from arrays import read

RESAMPLES = 2000
SEED = 0


def macro_f1(confusion: np.ndarray) -> np.ndarray:
    """The mean of the classes' F1 for tables (…, true class, predicted class); a class that is never met counts 0."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    met = confusion.sum(-1) + confusion.sum(-2)
    return (2 * hits / np.maximum(met, 1)).mean(-1)


def main() -> int:
    """Print macro F1 with its 95% interval over other draws of test posts (bootstrap), and the accuracy."""
    true = np.load("data/labels.npy")
    classes = int(true.max()) + 1
    said = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "predictions.npy")
    if isinstance(said, str):
        print(f"FAIL: {said}")
        return 1
    fits = said.shape == true.shape and said.dtype.kind in "iu"
    if not fits or said.min() < 0 or said.max() >= classes:
        print(f"FAIL: predictions.npy must hold {true.size} whole numbers below {classes}, one for each test post")
        return 1
    cells = np.bincount(true * classes + said.astype(np.int64), minlength=classes * classes)
    # Posts drawn with replacement are drawn from the cells of the table, as often as each has posts.
    drawn = np.random.default_rng(SEED).multinomial(true.size, cells / true.size, RESAMPLES)
    low, high = np.quantile(macro_f1(drawn.reshape(-1, classes, classes)), [0.025, 0.975])
    print(f"METRIC macro_f1={macro_f1(cells.reshape(classes, classes)):.6f}")
    print(f"METRIC macro_f1_low={low:.6f}")
    print(f"METRIC macro_f1_high={high:.6f}")
    print(f"METRIC accuracy={np.mean(said == true):.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
