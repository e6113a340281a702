"""Points repel each other and are drawn to the middle, with pushes from chance that die out; the best moment counts."""

import json
import os
import random
from itertools import combinations
from math import cos, dist, hypot, pi, sin
from pathlib import Path

COUNT = 16  # fixed
STEPS = 600  # fixed
START = "ring"  # one of: ring, grid, random
SPREAD = 1.0  # range: 0.3..3.0
REPULSION = 0.01  # range: 0.0003..0.1
POWER = 2.0  # range: 1.0..12.0
PULL = 0.02  # range: 0.001..0.3
NOISE = 0.05  # range: 0.001..0.3
NOISE_DECAY = 0.998  # range: 0.95..0.9999
MOST = 0.1  # range: 0.01..0.5


def start(rng):
    """COUNT points."""
    if START == "ring":
        return [[SPREAD * cos(2 * pi * i / COUNT), SPREAD * sin(2 * pi * i / COUNT)] for i in range(COUNT)]
    if START == "grid":
        return [[SPREAD * (i % 4 - 1.5) / 1.5, SPREAD * (i // 4 - 1.5) / 1.5] for i in range(COUNT)]
    return [[rng.uniform(-SPREAD, SPREAD), rng.uniform(-SPREAD, SPREAD)] for _ in range(COUNT)]


def ratio(points):
    """The smallest distance over the largest."""
    distances = [dist(a, b) for a, b in combinations(points, 2)]
    return min(distances) / max(distances)


def step(points, rng, noise):
    """Move all points once."""
    forces = [[-PULL * x + rng.gauss(0, noise), -PULL * y + rng.gauss(0, noise)] for x, y in points]
    for (i, a), (j, b) in combinations(enumerate(points), 2):
        x, y = a[0] - b[0], a[1] - b[1]
        away = max(hypot(x, y), 0.01)
        push = min(REPULSION / away**POWER, MOST) / away
        forces[i][0] += push * x
        forces[i][1] += push * y
        forces[j][0] -= push * x
        forces[j][1] -= push * y
    return [[x + u, y + v] for (x, y), (u, v) in zip(points, forces, strict=True)]


def main():
    """Place, write."""
    rng = random.Random(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    points, noise = start(rng), NOISE
    best = ratio(points), points
    for _ in range(STEPS):
        points, noise = step(points, rng, noise), noise * NOISE_DECAY
        best = max(best, (ratio(points), points))
    output = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    (output / "answer.json").write_text(json.dumps({"points": best[1]}))


if __name__ == "__main__":
    main()
