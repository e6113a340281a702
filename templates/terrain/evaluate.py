"""Score the heights that a run has predicted. Protected: no experiment may edit it, and it runs no edited code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from arrays import read


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
