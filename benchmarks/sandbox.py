"""What each tier of isolation adds to the start of a process, beside a plain one, all in one run.

    python benchmarks/sandbox.py                 # 200 rounds
    python benchmarks/sandbox.py --rounds 1000

Columns: median and 95th percentile in ms of starting ``/bin/true``, waiting for its end, and for everything that the
sandbox is made of to be gone; and the median of the difference to the plain process of the same round. The view is that
of a real job: the system, an interpreter's folders, a workspace, one writable folder. The order of the tiers changes
from round to round.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from autoresearchd.sandbox.tiers import Tier, TierName, available
from autoresearchd.sandbox.view import View

BOUND_MS = 25.0


def milliseconds(argv: tuple[str, ...]) -> float:
    """How long a program takes from its start to its end."""
    started = time.perf_counter()
    pid = os.posix_spawn(argv[0], argv, {"PATH": os.defpath})
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter() - started) * 1000
    if status:
        raise SystemExit(f"{argv[0]} ended with {status}")
    return took


def measure(tiers: list[Tier], view: View, rounds: int) -> dict[TierName, list[float]]:
    """Times by tier, one a round."""
    commands = {tier.name: tier.command(view, ("/bin/true",)) for tier in tiers}
    times: dict[TierName, list[float]] = {name: [] for name in commands}
    order = list(commands)
    shuffle = random.Random(1)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            times[name].append(milliseconds(commands[name]))
    return times


def main() -> int:
    """Print the table; 1 when the bubblewrap tier misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        workspace, output = Path(folder) / "workspace", Path(folder) / "output"
        workspace.mkdir()
        output.mkdir()
        prefixes = dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix)))
        view = View(cwd=workspace, home=Path.home(), readable=tuple(prefixes), writable=(output,))
        times = measure(available(), view, rounds)
    plain = times[TierName.NONE]
    print(f"{'tier':<20} {'median ms':>10} {'p95 ms':>8} {'over plain':>11}   n = {rounds}")
    over = {}
    for name, taken in times.items():
        over[name] = statistics.median(one - base for one, base in zip(taken, plain, strict=True))
        tail = statistics.quantiles(taken, n=20)[-1]
        print(f"{name.value:<20} {statistics.median(taken):>10.1f} {tail:>8.1f} {over[name]:>11.1f}")
    best = over.get(TierName.BUBBLEWRAP, over.get(TierName.BUBBLEWRAP_NOPROC))
    if best is None:
        print("bubblewrap does not work here")
        return 0
    print(f"bound: bubblewrap at most {BOUND_MS:g} ms over plain: {'held' if best <= BOUND_MS else 'MISSED'}")
    return int(best > BOUND_MS)


if __name__ == "__main__":
    sys.exit(main())
