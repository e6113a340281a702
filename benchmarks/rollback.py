"""How often a version is rolled back: such as are as good as the one before, and worse ones, over simulated sessions.

    python benchmarks/rollback.py --sessions 600

Rewards are spread as in logs: small changes around zero, a fifth of crashes (−2), a rare large gain; 60 experiments
before the version, and looks after 16, 32, 64 and 128 of its own. Drifts go on all through a session.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the simulated sessions are those of the tests

from autoresearchd.learner.versions.live_versions import RollbackOptions
from tests.unit.learner.live_rewards import Life, lived, rolled_back

AS_GOOD = {
    "as good": Life(),
    "as good, rewards fall by 0.005 each": Life(slope=-0.005),
    "as good, rewards fall by 0.01 each": Life(slope=-0.01),
    "as good, rewards decay over 30": Life(decay=30),
    "as good, rewards decay over 60": Life(decay=60),
}
BEYOND = {"as good, rewards fall by 0.02 each": Life(slope=-0.02)}
WORSE = {
    "crashes in 40%": Life(bad=0.4),
    "crashes in 60%": Life(bad=0.6),
    "crashes in 60%, rewards fall by 0.01 each": Life(bad=0.6, slope=-0.01),
    "crashes in 90%": Life(bad=0.9),
}
PROMISE = 0.05


def main() -> int:
    """The table; 1 where one that is as good is rolled back more often than chance makes of one in twenty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=600, help="of each kind")
    parser.add_argument("--alpha", type=float, default=RollbackOptions().alpha)
    parser.add_argument("--drift", type=float, default=RollbackOptions().drift)
    given = parser.parse_args()
    options = RollbackOptions(alpha=given.alpha, drift=given.drift, resamples=1000)
    most = PROMISE + 2 * (PROMISE * (1 - PROMISE) / given.sessions) ** 0.5
    kept = True
    print("| the version | rolled back | after (median) |\n|---|---|---|")
    for name, life in (AS_GOOD | BEYOND | WORSE).items():
        stream = np.random.default_rng(11)
        found = []
        for _ in range(given.sessions):
            before, now = lived(stream, life)
            found.append(rolled_back(now, before, options))
        fell = [count for count in found if count]
        rate = len(fell) / given.sessions
        kept = kept and not (name in AS_GOOD and rate > most)
        print(f"| {name} | {rate:.1%} | {f'{np.median(fell):.0f}' if fell else '—'} |", flush=True)
    return 0 if kept else 1


if __name__ == "__main__":
    raise SystemExit(main())
