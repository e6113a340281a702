"""Score the classes that a run has predicted, and the time it took. Protected; it runs no edited code.

The time is the supervisor's: from the start of the program to its end, imports and the writing of the file included.
"""

from __future__ import annotations

import os
import stat
import sys
import zipfile
from pathlib import Path

import numpy as np

LARGEST_BYTES = 1_000_000
FLOORS = {"cpu": 0.95, "cuda": 0.94}
"""By profile, the accuracy below which a run is no try at the gate; the gate itself is a constraint in task.yaml."""


def read(path: Path) -> np.ndarray | str:
    """The array in a file that a run has left, or what is wrong with it. It is opened once, and no link is followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"{path.name} cannot be opened: {error.strerror}"
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST_BYTES:
        os.close(handle)
        return f"{path.name} is no file of at most {LARGEST_BYTES} bytes"
    with os.fdopen(handle, "rb") as file:
        try:
            found = np.load(file, allow_pickle=False)
        except (ValueError, OSError, EOFError, zipfile.BadZipFile):
            found = None
    return found if isinstance(found, np.ndarray) else f"{path.name} is no array as numpy.save writes it"


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
