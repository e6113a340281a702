"""Prepare the data of the `terrain` task. Protected: no experiment may edit it.

The heights are those of a fault near Jacksboro, Tennessee: a digital elevation model of 344 × 403 points, 1 arc second
apart, that matplotlib ships as sample data (US Geological Survey, public domain). Of its points, drawn at random:

===================  ======  ===========================================================
file                 who     content
===================  ======  ===========================================================
`data/known.npz`     job     `at` (4000, 2) float32 and `height` (4000,) float32, metres
`data/wanted.npy`    job     (4000, 2) float32: where the height is asked for
`data/heights.npy`   scorer  (4000,) float32: the heights there
===================  ======  ===========================================================

Coordinates run from −1 to 1, the longer side of the landscape being 2 long.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np

POINTS = 4000
SEED = 20_070_424


def landscape() -> np.ndarray:
    """Heights in metres, (rows, columns), read without importing matplotlib."""
    spec = importlib.util.find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("package 'matplotlib' is not installed: pip install matplotlib")
    path = Path(spec.submodule_search_locations[0]) / "mpl-data/sample_data/jacksboro_fault_dem.npz"
    if not path.is_file():
        sys.exit(f"{path} is missing: reinstall matplotlib with its sample data")
    with np.load(path) as stored:
        return stored["elevation"].astype(np.float32)


def main() -> None:
    """Write the three files."""
    heights = landscape()
    rows, columns = heights.shape
    chosen = np.random.default_rng(SEED).permutation(heights.size)[: 2 * POINTS]
    row, column = np.divmod(chosen, columns)
    scale = 2.0 / (max(rows, columns) - 1)
    at = np.stack([(column - (columns - 1) / 2) * scale, (row - (rows - 1) / 2) * scale], axis=1).astype(np.float32)
    height = heights[row, column]
    out = Path("data")
    out.mkdir(exist_ok=True)
    np.savez(out / "known.npz", at=at[:POINTS], height=height[:POINTS])
    np.save(out / "wanted.npy", at[POINTS:])
    np.save(out / "heights.npy", height[POINTS:])
    print(f"{POINTS} points known and {POINTS} wanted, heights from {height.min():.0f} to {height.max():.0f} m")


if __name__ == "__main__":
    main()
