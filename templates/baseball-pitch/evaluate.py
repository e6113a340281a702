"""Score the earned run averages that a run has predicted. Protected; it runs no edited code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from arrays import read


def main() -> int:
    """Print the root mean square error, the mean absolute error and the share of the variance that is explained."""
    true = np.load("data/era.npy")
    said = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "predictions.npy")
    if isinstance(said, str):
        print(f"FAIL: {said}")
        return 1
    if said.shape != true.shape or said.dtype.kind != "f" or not np.isfinite(said).all():
        print(f"FAIL: predictions.npy must hold {true.size} finite numbers, one for each wanted season")
        return 1
    error = said.astype(np.float64) - true
    print(f"METRIC rmse_era={np.sqrt(np.mean(error**2)):.6f}")
    print(f"METRIC mae_era={np.abs(error).mean():.6f}")
    print(f"METRIC r2={1 - np.mean(error**2) / true.var():.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
