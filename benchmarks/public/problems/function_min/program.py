"""Simulated annealing on a rugged function of two variables, with few steps for each of ten searches."""

import json
import os
import random
from math import cos, exp, sin
from pathlib import Path

SEARCHES = 10  # fixed
EVALUATIONS = 60  # fixed
END = 5.0  # fixed
STEP = 3.0  # range: 0.01..5.0
STEP_DECAY = 0.999  # range: 0.8..1.0
TEMPERATURE = 3.0  # range: 0.003..10.0
COOLING = 0.995  # range: 0.7..1.0
BACK_TO_BEST = 0.0  # range: 0.0..1.0


def f(x, y):
    """What is to be low."""
    return sin(x) * cos(y) + sin(x * y) + (x * x + y * y) / 20


def search(rng):
    """The best point of one search."""
    place = rng.uniform(-END, END), rng.uniform(-END, END)
    value = f(*place)
    best = value, place
    step, temperature = STEP, TEMPERATURE
    for _ in range(EVALUATIONS - 1):
        if rng.random() < BACK_TO_BEST:
            value, place = best
        there = tuple(min(max(x + rng.gauss(0, step), -END), END) for x in place)
        found = f(*there)
        if found < value or rng.random() < exp((value - found) / max(temperature, 1e-9)):
            value, place = found, there
            best = min(best, (value, place))
        step, temperature = step * STEP_DECAY, temperature * COOLING
    return best[1]


def main():
    """Search, write."""
    rng = random.Random(int(os.environ.get("AUTORESEARCHD_SEED", "0")))
    output = Path(os.environ.get("AUTORESEARCHD_OUTPUT_DIR", "."))
    (output / "answer.json").write_text(json.dumps({"points": [search(rng) for _ in range(SEARCHES)]}))


if __name__ == "__main__":
    main()
