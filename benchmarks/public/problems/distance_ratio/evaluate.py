"""The smallest distance of 16 points over the largest. Protected: no experiment may edit it."""

import sys
from itertools import combinations
from math import dist

import answer

COUNT = 16


def score(given):
    """The smallest distance of two points as a share of the largest."""
    distances = [dist(a, b) for a, b in combinations(answer.numbers(given, "points", COUNT, 2), 2)]
    if max(distances) < 1e-6:
        raise answer.Wrong("all points are in one place")
    return min(distances) / max(distances)


if __name__ == "__main__":
    sys.exit(answer.run(score))
