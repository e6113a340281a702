"""Score the heights that a run has predicted. Protected: no experiment may edit it, and it runs no edited code."""

from __future__ import annotations

import os
import stat
import sys
import zipfile
from pathlib import Path

import numpy as np

LARGEST_BYTES = 1_000_000


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
    """Print the root mean square error and the largest error, in metres."""
    true = np.load("data/heights.npy")
    said = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "heights.npy")
    if isinstance(said, str):
        print(f"FAIL: {said}")
        return 1
    if said.shape != true.shape or said.dtype.kind != "f" or not np.isfinite(said).all():
        print(f"FAIL: heights.npy must hold {true.size} finite heights, one for each wanted point")
        return 1
    error = said.astype(np.float64) - true
    print(f"METRIC rmse_m={np.sqrt(np.mean(error**2)):.6f}")
    print(f"METRIC worst_m={np.abs(error).max():.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
