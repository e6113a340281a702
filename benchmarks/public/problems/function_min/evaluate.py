"""How deep ten searches have come. Protected: no experiment may edit it."""

import sys
from math import cos, sin
from statistics import fmean

import answer

COUNT = 10
END = 5.0


def score(given):
    """The mean of −f over the ten points: higher is better, as in all of these problems."""
    points = answer.numbers(given, "points", COUNT, 2)
    for number, point in enumerate(points):
        if max(map(abs, point)) > END:
            raise answer.Wrong(f"point {number} lies beyond {END:g}")
    return -fmean(sin(x) * cos(y) + sin(x * y) + (x * x + y * y) / 20 for x, y in points)


if __name__ == "__main__":
    sys.exit(answer.run(score))
