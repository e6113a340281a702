"""Prepare the data of the `baseball-pitch-synthetic` task. Protected: no experiment may edit it.

Pitches that nobody threw: nine figures of a pitcher and of his delivery, all between −1 and 1, and the speed of the
ball, which follows from some of them, from two products and a bend, plus noise of 2.5 miles an hour. The weights, the
figures that matter and the noise are drawn when the task is set up, from randomness that is kept nowhere: this file is
readable by every program, and a seed in it would give the answers.

===================  ======  =====================================================================
file                 who     content
===================  ======  =====================================================================
`data/known.npz`     job     `rows` (600, 10) float64 and `mph` (600)
`data/wanted.npy`    job     (20000, 10): the pitches whose speed is asked for
`data/mph.npy`       scorer  (20000): the speeds, noise included
===================  ======  =====================================================================
"""

from __future__ import annotations

import importlib.util
import secrets
import sys
from pathlib import Path

import numpy as np

KNOWN, WANTED, COLUMNS = 600, 20_000, 10
NOISE = 2.5
MEAN = 90.0
LINEAR = (6.0, 4.0, 3.0, 2.0)
"""Sizes of the straight effects; their signs and columns are drawn."""
PRODUCTS = (4.0, 3.0)
BEND = 3.0


def pitches(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Figures and speeds of all pitches, known ones first."""
    rows = rng.uniform(-1, 1, (KNOWN + WANTED, COLUMNS))
    columns = rng.permutation(COLUMNS)[: len(LINEAR) + 1]
    signs = iter(rng.choice([-1.0, 1.0], len(LINEAR) + len(PRODUCTS) + 1))
    mph = np.full(len(rows), MEAN)
    for size, column in zip(LINEAR, columns, strict=False):
        mph += next(signs) * size * rows[:, column]
    for size, first in zip(PRODUCTS, (0, 2), strict=True):
        mph += next(signs) * size * rows[:, columns[first]] * rows[:, columns[first + 1]]
    mph += next(signs) * BEND * np.abs(rows[:, columns[-1]])
    return rows, mph + rng.normal(0, NOISE, len(mph))


def main() -> None:
    """Write the three files."""
    if importlib.util.find_spec("sklearn") is None:
        sys.exit("package 'scikit-learn', which a run needs, is not installed: pip install 'autoresearchd[tasks]'")
    rows, mph = pitches(np.random.default_rng(secrets.randbits(128)))
    out = Path("data")
    out.mkdir(exist_ok=True)
    np.savez(out / "known.npz", rows=rows[:KNOWN], mph=mph[:KNOWN])
    np.save(out / "wanted.npy", rows[KNOWN:])
    np.save(out / "mph.npy", mph[KNOWN:])
    print(f"{KNOWN} pitches known and {WANTED} wanted, {mph.mean():.1f} ± {mph.std():.1f} mph, of it noise {NOISE}")


if __name__ == "__main__":
    main()
