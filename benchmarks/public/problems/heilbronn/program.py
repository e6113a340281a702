"""One point at a time moves by chance; the move stays if the smallest triangle does not become much smaller."""

import json
import os
import random
from itertools import combinations
from pathlib import Path

COUNT = 11  # fixed
STEPS = 2500  # fixed
RESTARTS = 5  # range: 1..25
STEP = 0.3  # range: 0.01..0.6
LAST_STEP = 0.1  # range: 0.0003..0.3
TEMPERATURE = 0.01  # range: 0.00003..0.03
LAST_TEMPERATURE = 0.001  # range: 0.000003..0.003
MARGIN = 0.1  # range: 0.0..0.2


def area(a, b, c):
    """Of the triangle of three points, as a share of the whole."""
    return abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1]))


def inside(rng):
    """A random point of the triangle, MARGIN away from two of its sides."""
    x, y = rng.random(), rng.random()
    x, y = (1 - x, 1 - y) if x + y > 1 else (x, y)
    return MARGIN + (1 - 2 * MARGIN) * x, MARGIN + (1 - 2 * MARGIN) * y


def anneal(rng, steps):
    """(smallest area, points) of one run."""
    points = [inside(rng) for _ in range(COUNT)]
    smallest = min(area(*three) for three in combinations(points, 3))
    best = smallest, list(points)
    for number in range(steps):
        done = number / steps
        reach = STEP * (LAST_STEP / STEP) ** done
        temperature = TEMPERATURE * (LAST_TEMPERATURE / TEMPERATURE) ** done
        i = rng.randrange(COUNT)
        x, y = points[i][0] + rng.gauss(0, reach), points[i][1] + rng.gauss(0, reach)
        if x < 0 or y < 0 or x + y > 1:
            continue
        moved = [*points[:i], (x, y), *points[i + 1 :]]
        least = smallest + temperature * -rng.expovariate(1.0)
        # Those with the point first: a move that makes a small one is refused at once.
        others = [*points[:i], *points[i + 1 :]]
        if any(area((x, y), b, c) < least for b, c in combinations(others, 2)):
            continue
        points, smallest = moved, min(area(*three) for three in combinations(moved, 3))
        if smallest > best[0]:
            best = smallest, list(points)
    return best


def main():
    """Place, write."""
    rng = random.Random(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    _, points = max(anneal(rng, STEPS // RESTARTS) for _ in range(RESTARTS))
    output = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    (output / "answer.json").write_text(json.dumps({"points": points}))


if __name__ == "__main__":
    main()
