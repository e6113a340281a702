"""Score the weights that a run has trained. Protected: no experiment may edit it, and it runs no edited code.

The weights are put into the policy of `policy_model.py`, which answers the private problems; at each token it takes
the likeliest one. `pass_at_1` is the share of right answers on the validation problems, with Wilson's 95% interval for
other draws of problems. The share on the test problems is printed as text and is no metric: nothing selects by it and
no policy is shown it, whoever runs the session reads it in this log.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from arrays import read
from policy_model import Policy, draw, with_weights
from problems import told

LARGEST_BYTES = 2_000_000
ROWS = 500  # problems that are answered beside each other
Z = 1.96


def right(policy: Policy, path: Path) -> np.ndarray:
    """Which problems of a file the policy answers as it should."""
    with np.load(path) as stored:
        asked, answers = torch.from_numpy(stored["prompts"]), stored["answers"]
    said = torch.cat([draw(policy, part) for part in asked.split(ROWS)])
    return told(said.numpy()) == answers


def interval(hits: np.ndarray) -> tuple[float, float]:
    """Wilson's 95% interval of a share (Wilson 1927)."""
    share, count = hits.mean(), hits.size
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, float(middle - reach)), min(1.0, float(middle + reach))


def tell(validation: np.ndarray, test: np.ndarray) -> None:
    """Print the share of problems that were answered right, of both sets, and their intervals."""
    low, high = interval(validation)
    print(f"METRIC pass_at_1={validation.mean():.6f}")
    print(f"METRIC pass_at_1_low={low:.6f}")
    print(f"METRIC pass_at_1_high={high:.6f}")
    low, high = interval(test)
    print(f"test_pass_at_1 = {test.mean():.4f} ({low:.4f} to {high:.4f}), which is no metric: report it once")


def main() -> int:
    """Print the share of validation problems that were answered right, its interval, and the test's beside it."""
    torch.set_num_threads(1)
    weights = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "weights.npy", LARGEST_BYTES)
    if isinstance(weights, str):
        print(f"FAIL: {weights}")
        return 1
    try:
        policy = with_weights(weights)
    except ValueError as error:
        print(f"FAIL: weights.npy: {error}")
        return 1
    tell(right(policy, Path("data/validation.npz")), right(policy, Path("data/test.npz")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
