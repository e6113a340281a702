"""Writes data/train.csv and data/valid.csv: what a user has from elsewhere. Not tracked by git."""

from pathlib import Path

import numpy as np


def main() -> None:
    rng = np.random.default_rng(5)
    folder = Path("data")
    folder.mkdir(exist_ok=True)
    for name, rows in (("train.csv", 1500), ("valid.csv", 700)):
        x = rng.standard_normal((rows, 8))
        score = x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.6 * x[:, 3] ** 2 - 0.6
        label = (score + 0.5 * rng.standard_normal(rows) > 0).astype(int)
        header = ",".join([*(f"f{i}" for i in range(8)), "label"])
        np.savetxt(folder / name, np.column_stack([x, label]), delimiter=",", header=header, comments="", fmt="%.6f")


if __name__ == "__main__":
    main()
