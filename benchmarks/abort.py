"""Early abort on recorded learning curves: time gained and improvements lost, ours beside the referee's references.

    python benchmarks/abort.py --curves DIR [--perms 20] [--policies NAME,NAME] [--speed]

DIR holds the curves and their referee (``replay.py``, whose docstring says how it judges). Each family is replayed as
it happened and shuffled. G is full time over time spent; lost counts aborted runs that would have beaten the incumbent
by more than delta, of all that did, with the upper 95% Wilson limit. ``--speed`` measures one look and memory instead.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from drift import ReplayPolicy, load_referee

from autoresearchd.evaluator.abort.abort_policy import AbortPolicy

OURS = "autoresearchd"
REFERENCES = ("optuna-median", "optuna-hyperband", "powerlaw", "tau a=1 (final sd)", "conformal 5%", "gap z=1.5")
LIMIT = 0.05


def replayed(referee: ModuleType, runs: list[Any], delta: float, make: Callable[[], Any], kind: str, perms: int) -> Any:
    """The referee's sums over all streams of one kind (``order`` or ``perm``)."""
    total: dict[str, float] = defaultdict(float)
    for name, stream in referee.streams(runs, perms, 150):
        if name.startswith(kind):
            total["streams"] += 1
            for key, value in referee.replay(stream, make(), delta).items():
                total[key] += value
    return total


def table(referee: ModuleType, folder: Path, names: list[str], perms: int) -> None:
    """One line for each policy, family and order; then what they come to."""
    families = referee.load_families(str(folder))
    makers = {OURS: ReplayPolicy, **referee.P}
    print(f"{'policy':22s} {'family':14s} {'order':11s} {'lost':>8s} {'limit':>6s} {'G':>6s} {'regret/delta':>12s}")
    for name in names:
        gains: list[float] = []
        happened: dict[str, float] = defaultdict(float)
        for family, runs in families.items():
            for kind, words in (("order", "as happened"), ("perm", "shuffled")):
                delta = referee.DELTA[family]
                total = replayed(referee, runs, delta, makers[name], kind, perms)
                gains.append(total["full"] / total["spent"])
                lost, improved = int(total["false"]), int(total["imp"])
                if kind == "order":
                    happened["lost"] += lost
                    happened["improved"] += improved
                print(
                    f"{name:22s} {family:14s} {words:11s} {lost:3d}/{improved:<4d} "
                    f"{referee.wilson(lost, improved):6.1%} {gains[-1]:6.2f} "
                    f"{total['regret'] / total['streams'] / delta:12.2f}",
                    flush=True,
                )
        mean = math.exp(statistics.fmean(math.log(gain) for gain in gains))
        print(
            f"{name:22s} geometric mean of G {mean:.2f}; lost as it happened "
            f"{happened['lost']:.0f}/{happened['improved']:.0f}\n",
            flush=True,
        )


def speed(runs: int = 1000, points: int = 300) -> None:
    """Time of a look, of learning one run, and memory, with many runs behind the policy."""
    rng = np.random.default_rng(0)
    x = np.arange(1, points + 1) / points

    def curve(end: float) -> np.ndarray:
        return np.asarray(end + 0.4 * (x**-0.5 - 1) + rng.normal(0, 0.02, points))

    tracemalloc.start()
    policy, learning = AbortPolicy(delta=0.02), []
    for _ in range(runs):
        end = 1.0 + float(rng.exponential(0.5))
        losses = curve(end)
        began = time.perf_counter()
        policy.observe(x, losses, 1.0, end)
        learning.append(1e3 * (time.perf_counter() - began))
    held = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    looks, part = [], curve(2.0)
    for k in range(200):
        shown = points * (20 + k % 70) // 100
        began = time.perf_counter()
        policy.look(x[:shown], part[:shown], 1.0, 1.0)
        looks.append(1e3 * (time.perf_counter() - began))
    state = len(json.dumps(policy.to_state())) / 2**20
    print(f"{runs} runs of {points} points behind it, {len(looks)} looks")
    print(f"look      median {statistics.median(looks):.2f} ms, p95 {np.percentile(looks, 95):.2f} ms")
    print(f"learning  median {statistics.median(learning):.2f} ms a run (while memory is traced)")
    print(f"memory    {held:.1f} MB held, state {state:.1f} MB as JSON")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--curves", type=Path, help="folder with replay.py and its data")
    parser.add_argument("--perms", type=int, default=20)
    parser.add_argument("--policies", default=",".join((OURS, *REFERENCES)))
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    if args.speed:
        speed()
        return
    if args.curves is None:
        parser.error("--curves DIR is needed: the folder that holds replay.py and its data")
    table(load_referee(args.curves), args.curves, args.policies.split(","), args.perms)


if __name__ == "__main__":
    main()
