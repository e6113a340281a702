"""Score the speeds that a run has predicted. Protected; it runs no edited code."""

from __future__ import annotations

import sys

import numpy as np
from arrays import errors


def main() -> int:
    """Print the root mean square error and the share of the variance that is explained."""
    true = np.load("data/mph.npy")
    error = errors(true, "predictions.npy", "numbers, one for each wanted pitch")
    print(f"METRIC rmse_mph={np.sqrt(np.mean(error**2)):.6f}")
    print(f"METRIC r2={1 - np.mean(error**2) / true.var():.6f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
