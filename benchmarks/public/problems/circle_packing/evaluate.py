"""The sum of the radii of 26 circles in the unit square. Protected: no experiment may edit it."""

import sys
from itertools import combinations
from math import dist

import answer

COUNT = 26
SLACK = 1e-9
"""By so much circles may overlap, and leave the square: floats do not touch exactly. It gains 1e-8 at most."""


def score(given):
    """The sum of the radii."""
    circles = answer.numbers(given, "circles", COUNT, 3)
    for number, (x, y, radius) in enumerate(circles):
        if radius < 0:
            raise answer.Wrong(f"circle {number} has a radius below 0")
        if min(x, y) - radius < -SLACK or max(x, y) + radius > 1 + SLACK:
            raise answer.Wrong(f"circle {number} leaves the square")
    for (i, a), (j, b) in combinations(enumerate(circles), 2):
        if dist(a[:2], b[:2]) < a[2] + b[2] - SLACK:
            raise answer.Wrong(f"circles {i} and {j} overlap")
    return sum(radius for _, _, radius in circles)


if __name__ == "__main__":
    sys.exit(answer.run(score))
