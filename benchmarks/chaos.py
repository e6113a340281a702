"""Kills daemons with SIGKILL hundreds of times and counts what got lost; and how long recovery takes after 10,000.

    python benchmarks/chaos.py                       # 200 kills and the recovery of 10,000 experiments
    python benchmarks/chaos.py --kills 1000 --first-seed 5000
    python benchmarks/chaos.py --seed 17             # one session again, kill by kill

Each session (8 experiments of a task that takes milliseconds) is killed 12 times: at transitions of the journal, at
random instants, when a file of a run appears, during recovery; then it is left alone and must end as a session that
nobody touched. Exit status 1 when anything was lost, duplicated, left behind, touched or done another way.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.labels import Status
from benchmarks.store import fill
from tests.chaos.harness import TRANSITIONS, Harness, Tally, schedule
from tests.chaos.invariants import KINDS, Breaches, Journal
from tests.chaos.mortal import Fate
from tests.chaos.nursery import Nursery
from tests.chaos.world import World

DEATHS = 12
PHASES = (
    "starting",
    "proposing",
    "committing",
    "launching",
    "training",
    "evaluating",
    "deciding",
    "settling",
    "confirming",
    "housekeeping",
    "recovery",
    "undisturbed",
)
EXPERIMENTS = 10_000
FEW = 3
RECOVERY_BOUND_S = 2.0
ROUNDS = 5


def chaos(folder: Path, nursery: Nursery, seeds: list[int] | None, first: int, kills: int, *, verbose: bool) -> Tally:
    """Sessions until there were enough kills, or those of the seeds."""
    harness = Harness(folder, nursery, tell=print if verbose else lambda line: None)
    for seed in seeds or itertools.count(first):
        if seeds is None and harness.tally.total >= kills:
            break
        # Where in the cycle of transitions a session begins follows from its seed alone, so that one can be replayed.
        transitions = itertools.islice(itertools.cycle(TRANSITIONS), seed * 5 % len(TRANSITIONS), None)
        before = len(harness.tally.lines())
        world = harness.session(seed, schedule(seed, DEATHS, transitions))
        found = harness.tally.lines()[before:]
        print(f"seed {seed}: {harness.tally.total} kills so far, {len(found)} breaches", flush=True)
        print("".join(f"  {line}\n" for line in found), end="", flush=True)
        if not found:
            shutil.rmtree(world.root, ignore_errors=True)
    return harness.tally


def table(tally: Tally) -> str:
    """Phase in which daemons died × what was found."""
    heads = ["phase", "kills", *KINDS]
    rows = [
        [phase, str(tally.kills[phase]), *(str(len(tally.at(phase).found[kind])) for kind in KINDS)] for phase in PHASES
    ]
    sums = [str(sum(int(row[i]) for row in rows)) for i in range(1, len(heads))]
    widths = [max(len(head), 12 if i == 0 else 6) for i, head in enumerate(heads)]
    lines = [heads, *rows, ["all", *sums]]
    return "\n".join("  ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True)) for line in lines)


def recovery(folder: Path, nursery: Nursery) -> list[float]:
    """Seconds from the start of a daemon to its having recovered, with 10,000 experiments behind it and one cut off."""
    harness = Harness(folder, nursery)
    breaches = Breaches()
    for seed in itertools.count(1):  # until a session ends with a discard, which can be copied
        world = harness.world(f"many-{seed}", seed, experiments=FEW)
        harness.finish(world, breaches, "recovery")
        if make_many(world):
            break
    killed(nursery, harness.start(world, fate=Fate("executor.start", "after")))
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        killed(nursery, harness.start(world, fate=Fate("event.recovered", "after")))
        times.append(time.perf_counter() - started)
    harness.check_orphans(world, breaches, "recovery")
    if breaches.lines():
        raise SystemExit("\n".join(breaches.lines()))
    return times


def killed(nursery: Nursery, pid: int) -> None:
    """Wait for a daemon to end itself."""
    status = nursery.wait(pid, 120.0)
    if status != -9:
        raise SystemExit(f"a daemon that was to be killed ended with {status}")


def make_many(world: World) -> bool:
    """The last experiment over and over, with a loose ref for each, the slowest way to store them.

    False when it is no discard.
    """
    last = Journal.read(world).experiments[-1]
    if last.decision is None or last.decision.status is Status.KEEP or last.commit is None:
        return False
    database = world.state / "state.db"
    fill(f"sqlite:///{database}", last.session_id, last.number, EXPERIMENTS)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE experiment SET commit_sha = ? WHERE number > ?", (last.commit, last.number))
    refs = world.root / ".git/refs/autoresearch/night"
    for number in range(last.number + 1, EXPERIMENTS):
        (refs / str(number)).write_text(f"{last.commit}\n")
    store = world.project.open_store()
    store.set_limits(last.session_id, Limits())
    store.close()
    return True


def main() -> int:
    """Kill, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--seed", type=int, action="append", help="only this session, each kill shown; may be repeated")
    parser.add_argument("--no-recovery", action="store_true", help="leave out the recovery of 10,000 experiments")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="autoresearchd-chaos-"))
    started = time.perf_counter()
    slow = False
    with Nursery(folder) as nursery:
        tally = chaos(
            folder / "sessions", nursery, options.seed, options.first_seed, options.kills, verbose=bool(options.seed)
        )
        print(f"\n{table(tally)}\n\n{tally.total} kills in {tally.sessions} sessions", end="")
        print(f", {time.perf_counter() - started:.0f} s")
        if not (options.no_recovery or options.seed):
            times = recovery(folder / "recovery", nursery)
            slow = statistics.median(times) > RECOVERY_BOUND_S
            print(
                f"recovery with {EXPERIMENTS:,} experiments: median {statistics.median(times):.2f} s, "
                f"worst {max(times):.2f} s (n = {ROUNDS}; bound {RECOVERY_BOUND_S:g} s)"
            )
    if tally.lines() or slow:
        print(f"what was left is in {folder}", *tally.lines(), sep="\n")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
