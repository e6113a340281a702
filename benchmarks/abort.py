"""Early abort on recorded learning curves: time gained and improvements lost, ours beside the referee's references.

    python benchmarks/abort.py --curves DIR [--perms 20] [--policies NAME,NAME] [--equal-time | --speed]

DIR holds the curves and their referee (``replay.py``, whose docstring says how it judges). Each family is replayed as
it happened and shuffled. G is full time over time spent; lost counts aborted runs that would have beaten the incumbent
by more than delta, of all that did, with the upper 95% Wilson limit.

``--equal-time``: sessions on shuffled runs end after the time of 40 whole runs, with early abort and without, on the
same shuffles; what was saved is spent on further runs. Gain is how much better the best finished run is with it, in
delta (mean and standard error); `oracle` is a perfect judge, who ends at 10% what will not improve.
``--speed`` measures one look and memory.
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
SESSION = 40.0
"""Whole runs' time that a session at equal time has."""


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


def final_best(referee: ModuleType, runs: list[Any], policy: Any, delta: float, seconds: float) -> tuple[float, int]:
    """The best value that a session finds in so much time, in whole runs' time, and how many runs it began."""
    policy.delta = delta
    if hasattr(policy, "reset"):
        policy.reset()
    history: list[dict[str, Any]] = []
    best, spent = math.inf, 0.0
    for run in runs:
        stopped = stopped_at(referee, run, policy, history, best, delta)
        cut = run["full"] if stopped is None else stopped
        spent += cut
        if spent > seconds + 1e-9:  # cut off by the end of the session
            break
        seen = (run["x"] <= cut + 1e-9) & np.isfinite(run["y"])
        final = run["final"] if stopped is None else None
        curve = {"steps": run["x"][seen], "losses": run["y"][seen], "budget": 1.0}
        history.append({**curve, "final": final, "aborted": stopped is not None})
        if hasattr(policy, "finish"):
            policy.finish(final, stopped is not None)
        best = best if final is None else min(best, final)
    return best, len(history)


def stopped_at(
    referee: ModuleType, run: Any, policy: Any, history: list[Any], best: float, delta: float
) -> float | None:
    """The share of the budget at which the policy ends a run, at the referee's looks; None: it does not."""
    if getattr(policy, "oracle", False):
        hopeless = run["full"] > 0.1 and not run["final"] < best - (delta if math.isfinite(best) else 0.0)
        return 0.1 if hopeless else None
    for share in referee.CKPT:
        seen = run["x"] <= share + 1e-9
        if share >= run["full"] or (seen.any() and not math.isfinite(run["y"][seen][-1])):
            return None
        if hasattr(policy, "p"):
            policy.p = share
        if seen.any() and policy(history, run["x"][seen], run["y"][seen], 1.0, best):
            return float(share)
    return None


def equal_time(referee: ModuleType, folder: Path, names: list[str], perms: int) -> None:
    """One line for each policy and family: the final value at equal time, beside that of no early abort."""
    makers = {OURS: ReplayPolicy, **referee.P}
    print(f"{'policy':22s} {'family':14s} {'runs':>6s} {'gain/delta':>14s} {'better':>7s} {'worse':>6s}")
    for name in names:
        for family, runs in referee.load_families(str(folder)).items():
            rng, delta = np.random.default_rng(1), referee.DELTA[family]
            gains, counts = [], []
            for _ in range(perms):
                stream = [runs[i] for i in rng.permutation(len(runs))]
                without, _ = final_best(referee, stream, referee.P["never"](), delta, SESSION)
                found, count = final_best(referee, stream, makers[name](), delta, SESSION)
                gains.append((without - found) / delta)
                counts.append(count)
            error = statistics.stdev(gains) / math.sqrt(perms)
            better, worse = (statistics.fmean(sign * gain > 1e-9 for gain in gains) for sign in (1, -1))
            print(
                f"{name:22s} {family:14s} {statistics.fmean(counts):6.1f} "
                f"{statistics.fmean(gains):+7.2f} ± {error:4.2f} "
                f"{better:7.0%} {worse:6.0%}",
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
        policy.observe(x, losses, 1.0, end, another=True)
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
    parser.add_argument("--equal-time", action="store_true")
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    if args.speed:
        speed()
        return
    if args.curves is None:
        parser.error("--curves DIR is needed: the folder that holds replay.py and its data")
    report = equal_time if args.equal_time else table
    report(load_referee(args.curves), args.curves, args.policies.split(","), args.perms)


if __name__ == "__main__":
    main()
