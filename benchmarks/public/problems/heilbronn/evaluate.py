"""The smallest triangle of 11 points in a triangle. Protected: no experiment may edit it."""

import sys
from itertools import combinations

import answer

COUNT = 11
SLACK = 1e-12
"""By so much points may lie outside, for floats: it gains less than that."""


def score(given):
    """The smallest area that three points span, as a share of the triangle x ≥ 0, y ≥ 0, x + y ≤ 1.

    An affine map takes this triangle to any other and leaves such shares as they are.
    """
    points = answer.numbers(given, "points", COUNT, 2)
    for number, (x, y) in enumerate(points):
        if min(x, y) < -SLACK or x + y > 1 + SLACK:
            raise answer.Wrong(f"point {number} lies outside of the triangle")
    return min(
        abs((b[0] - a[0]) * (c[1] - a[1]) - (c[0] - a[0]) * (b[1] - a[1])) for a, b, c in combinations(points, 3)
    )


if __name__ == "__main__":
    sys.exit(answer.run(score))
