"""Circles grow from a grid and push each other away; what still overlaps at the end shrinks."""

import json
import os
import random
from itertools import combinations
from math import dist, hypot
from pathlib import Path

COUNT = 26  # fixed
STEPS = 250  # fixed
COLUMNS = 4  # range: 3..8
JITTER = 0.1  # range: 0.0..0.2
RADIUS = 0.05  # range: 0.02..0.12
GROWTH = 0.0003  # range: 0.00003..0.003
PUSH = 0.05  # range: 0.02..1.0
WALL_PUSH = 0.1  # range: 0.02..1.0
SHRINK = 0.1  # range: 0.001..0.5
COOLDOWN = 0.5  # range: 0.0..1.0
GROWING_PASSES = 1  # range: 1..8


def start(rng):
    """Centres on a grid, moved a little, all of one radius."""
    rows = -(-COUNT // COLUMNS)
    places = [((i % COLUMNS + 0.5) / COLUMNS, (i // COLUMNS + 0.5) / rows) for i in range(COUNT)]
    return [[x + rng.gauss(0, JITTER), y + rng.gauss(0, JITTER), RADIUS] for x, y in places]


def step(circles, rate):
    """Each circle grows; two that overlap, and one that leaves the square, are pushed apart and shrink."""
    for circle in circles:
        circle[2] += GROWTH * rate
    for a, b in combinations(circles, 2):
        x, y = b[0] - a[0], b[1] - a[1]
        away = hypot(x, y) or 1e-9
        over = a[2] + b[2] - away
        if over > 0:
            move = PUSH * rate * over / away
            a[0] -= move * x
            a[1] -= move * y
            b[0] += move * x
            b[1] += move * y
            a[2] -= SHRINK * over
            b[2] -= SHRINK * over
    for circle in circles:
        for axis in (0, 1):
            over = max(circle[2] - circle[axis], 0) - max(circle[axis] + circle[2] - 1, 0)
            circle[axis] += WALL_PUSH * over
            circle[2] -= SHRINK * abs(over)


def settle(circles):
    """Radii with which nothing overlaps: half of the way to the nearest centre, then what room there is."""
    centres = [(min(max(x, 0), 1), min(max(y, 0), 1)) for x, y, _ in circles]
    walls = [min(x, y, 1 - x, 1 - y) for x, y in centres]
    away = [[dist(a, b) for b in centres] for a in centres]
    near = [min(d for j, d in enumerate(row) if j != i) / 2 for i, row in enumerate(away)]
    radii = [max(0.0, min(wall, half, circle[2])) for wall, half, circle in zip(walls, near, circles, strict=True)]
    for _ in range(GROWING_PASSES):
        for i in range(COUNT):
            room = min(away[i][j] - radii[j] for j in range(COUNT) if j != i)
            radii[i] = max(radii[i], min(walls[i], room))
    return [[x, y, radius] for (x, y), radius in zip(centres, radii, strict=True)]


def main():
    """Pack, write."""
    rng = random.Random(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    circles = start(rng)
    for number in range(STEPS):
        step(circles, 1 - COOLDOWN * number / STEPS)
    output = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    (output / "answer.json").write_text(json.dumps({"circles": settle(circles)}))


if __name__ == "__main__":
    main()
