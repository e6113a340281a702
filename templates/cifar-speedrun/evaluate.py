"""Score the classes that a run has predicted, and the time it took. Protected; it runs no edited code.

The time is the supervisor's: from the start of the program to its end, imports and the writing of the file included.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from arrays import read

FLOORS = {"cpu": 0.95, "cuda": 0.94}
"""By profile, the accuracy below which a run is no try at the gate; the gate itself is a constraint in task.yaml."""


def main() -> int:
    """Print the seconds of the training and the share of images that were told right."""
    true = np.load("data/labels.npy")
    seconds = os.environ.get("AUTORESEARCHD_TRAIN_SECONDS")
    if seconds is None:
        print("FAIL: AUTORESEARCHD_TRAIN_SECONDS is not set; by hand, set it to what `time` says")
        return 1
    said = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "predictions.npy")
    if isinstance(said, str):
        print(f"FAIL: {said}")
        return 1
    if said.shape != true.shape or said.dtype.kind not in "iu":
        print(f"FAIL: predictions.npy must hold {true.size} whole numbers, one for each image")
        return 1
    accuracy = float(np.mean(said == true))
    print(f"METRIC accuracy={accuracy:.6f}")
    if accuracy < FLOORS[os.environ.get("AUTORESEARCHD_PROFILE", "cpu")]:
        print("LABEL gate_miss")
        return 3
    print(f"METRIC train_seconds={float(seconds):.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
