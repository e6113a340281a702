"""What the daemon adds to each experiment, beside the floor that git and SQLite set and beside a peer, all in one run.

    python benchmarks/overhead.py                      # 200 experiments; status on 10,000; the peer if it installs
    python benchmarks/overhead.py --experiments 10000  # the flatness that the design promises (about ten minutes)

Columns: median and 95th percentile in ms, and the ratio to the floor. Floor: by subprocess a commit, a ref and a reset,
and three SQLite commits with synchronous=FULL. Ours: wall time of an experiment less the time of the job's own
processes and of the policy, as the daemon stores it. The job is a program that prints its metric and ends. The peer is
autoresearch-rl 0.5.0 from the package index in an environment of its own, its time per iteration less that of the same
program.
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

PROGRAM = """\
SCALE = 1.0
SHIFT = 0.5
RATE = 1e-3
print(f"score: {abs(SCALE - 3) + abs(SHIFT - 2) + RATE}")
"""
TASK = """\
name: overhead
workspace: {target_file: train.py}
execution: {run_command: python -I -S train.py, budget: 30}
scoring: {metric: score, direction: minimize, metric_source: stdout}
"""
PEER = """\
name: overhead
objective: {metric: score, direction: min}
target:
  {type: command, workdir: ., timeout_s: 30,
   train_cmd: [python3, -I, -S, train.py], eval_cmd: [python3, -I, -S, train.py]}
policy: {type: random, params: {lr: [0.1, 0.2, 0.3, 0.4, 0.5]}}
controller: {max_wall_time_s: 300, max_iterations: %d, no_improve_limit: 100000}
"""


def run(arguments: Sequence[str], cwd: Path, **more: object) -> None:
    """Run a program that must succeed."""
    subprocess.run(arguments, cwd=cwd, check=True, capture_output=True, **more)  # type: ignore[call-overload]


def timed(action: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of each of ``repeats`` calls."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - started))
    return times


def repository(folder: Path, files: dict[str, str]) -> None:
    """A git repository with one commit."""
    for name, text in files.items():
        (folder / name).write_text(text)
    run(["git", "init", "-q", "-b", "main"], folder)
    run(["git", "config", "user.name", "benchmark"], folder)
    run(["git", "config", "user.email", "benchmark@localhost"], folder)
    run(["git", "add", "-A"], folder)
    run(["git", "commit", "-qm", "start"], folder)


def floor(folder: Path, repeats: int) -> list[float]:
    """The least that an experiment needs: git commit + ref + reset by subprocess, and three FULL commits."""
    repository(folder, {"train.py": PROGRAM})
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE t (n INTEGER, x TEXT)")
    count = 0

    def once() -> None:
        nonlocal count
        count += 1
        (folder / "train.py").write_text(f"{PROGRAM}# {count}\n")
        run(["git", "commit", "-qam", f"experiment {count}"], folder)
        run(["git", "update-ref", f"refs/floor/{count}", "HEAD"], folder)
        run(["git", "reset", "-q", "--hard", "HEAD~1"], folder)
        for _ in range(3):
            connection.execute("INSERT INTO t VALUES (?, ?)", (count, PROGRAM))

    times = timed(once, repeats)
    connection.close()
    return times


def daemon(folder: Path, experiments: int) -> tuple[list[float], float, set[str]]:
    """(overhead of each experiment in ms, resident memory of the daemon in MB, heavy modules that it imported)."""
    repository(folder, {"train.py": PROGRAM, "task.yaml": TASK})
    code = (
        "import sys, resource\n"
        "from autoresearchd.__main__ import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = [m for m in ('torch', 'litellm', 'transformers') if m in sys.modules]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, *heavy, file=open('memory.txt', 'w'))\n"
    )
    arguments = ["start", "--foreground", "--policy", "search", "--max-experiments", str(experiments)]
    environment = {**os.environ, "TERM": "dumb"}
    started = time.perf_counter()
    run([sys.executable, "-c", code, *arguments], folder, env=environment)
    print(f"  {experiments} experiments in {time.perf_counter() - started:.0f} s", file=sys.stderr)
    listing = subprocess.run(
        [sys.executable, "-m", "autoresearchd", "experiments", "--json"], cwd=folder, capture_output=True, check=True
    )
    overhead = [e["overhead_ms"] for e in json.loads(listing.stdout) if e["experiment"] > 0 and e["runs"]]
    memory, *heavy = (folder / "memory.txt").read_text().split()
    return overhead, float(memory), set(heavy)


def peer(folder: Path, iterations: int) -> float | None:
    """Milliseconds per iteration of the peer beyond its program, None when it cannot be installed."""
    environment = folder / "environment"
    venv.create(environment, with_pip=True)
    try:
        run([str(environment / "bin" / "pip"), "install", "-q", "autoresearch-rl==0.5.0"], folder)
    except subprocess.CalledProcessError:
        return None
    (folder / "train.py").write_text(PROGRAM.replace("score: ", "score="))  # the form that the peer reads
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    totals = []
    for count in (2, 2 + iterations):
        (folder / "config.yaml").write_text(PEER % count)
        for left in ("artifacts", "traces"):
            subprocess.run(["rm", "-rf", left], cwd=folder, check=True)
        started = time.perf_counter()
        run([str(environment / "bin" / "autoresearch-rl"), "run", "config.yaml"], folder, env=clean)
        totals.append(1000 * (time.perf_counter() - started))
    program = statistics.median(timed(lambda: run(["python3", "-I", "-S", "train.py"], folder), 10))
    return (totals[1] - totals[0]) / iterations - program


def status(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Milliseconds of whole processes in a repository with many experiments."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "status": [sys.executable, "-m", "autoresearchd", "status"],
        "status --json": [sys.executable, "-m", "autoresearchd", "status", "--json"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):  # in turn, so that a noisy moment hits all alike
        for name, command in commands.items():
            times[name] += timed(lambda command=command: run(command, folder), 1)  # type: ignore[misc]
    return times


def many(folder: Path, count: int) -> None:
    """A repository whose store holds ``count`` decided experiments, written through the store's own methods."""
    from datetime import UTC, datetime

    from autoresearchd.app.project import Project
    from autoresearchd.domain.experiment import CurvePoint, Decision, Measurement, RunResult, StageResult
    from autoresearchd.domain.labels import Label, Status
    from autoresearchd.domain.ports import NewSession
    from autoresearchd.domain.proposal import ASI, Proposal

    repository(folder, {"train.py": PROGRAM, "task.yaml": TASK})
    store = Project.at(folder).open_store()
    now = datetime.now(UTC)
    task = json.dumps(
        {"name": "many", "scoring": {"metric": "score", "direction": "minimize", "source": "self-reported"}}
    )
    session = store.create_session(
        NewSession("many", "autoresearch/many", task, "search", "local", "0" * 40, seed=1), now
    )
    store.open_segment(session.id, "f", "start", "cpu", now)
    stage = StageResult("training", "ok", 0, 1.0, "training.log")
    curve = tuple(CurvePoint(float(i), 3.0 - i / 100) for i in range(30))
    for number in range(count):
        e = store.open_experiment(session.id, parent="0" * 40, segment=0, at=now)
        policy = "search" if number else "baseline"
        store.record_proposal(
            session.id,
            number,
            Proposal({}, f"idea {number}", policy, description=f"RATE → {number}"),
            diff="",
            code_hash=str(number),
        )
        store.record_commit(session.id, number, f"{number:040x}")
        measured = Measurement(Label.NONE, 3.0 - number / 1e5, {"score": 3.0 - number / 1e5}, curve=curve)
        run_row = store.open_run(session.id, e.number, number, now)
        store.close_run(run_row.id, measured, RunResult((stage,), 1.0, "none"), now, last=True)
        kept = number % 50 == 0
        decision = Decision(
            Status.KEEP if kept else Status.DISCARD,
            Label.NONE if kept else Label.NO_GAIN,
            measured.value,
            delta=1e-5,
            metrics=measured.metrics,
        )
        store.record_decision(session.id, number, decision, ASI("h"), now, incumbent=f"{number:040x}" if kept else None)
        store.record_overhead(session.id, number, 50.0)
    store.close()


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile by rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> int:
    """Print the tables; 1 when a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--rows", type=int, default=10_000, help="experiments in the store for `status`")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        top = Path(scratch)
        folders = {name: top / name for name in ("floor1", "floor2", "ours", "peer", "many")}
        for folder in folders.values():
            folder.mkdir()
        floors = floor(folders["floor1"], 30)
        overhead, memory, heavy = daemon(folders["ours"], options.experiments)
        floors += floor(folders["floor2"], 30)  # before and after: these machines are noisy
        peer_ms = None if options.no_peer else peer(folders["peer"], 10)
        many(folders["many"], options.rows)
        times = status(folders["many"], options.repeats)
    base = statistics.median(floors)
    rows = [("floor: git + SQLite", base, percentile(floors, 0.95), 1.0)]
    median = statistics.median(overhead)
    rows.append((f"autoresearchd, {len(overhead)} experiments", median, percentile(overhead, 0.95), median / base))
    if peer_ms is not None:
        rows.append(("autoresearch-rl 0.5.0, 10 iterations", peer_ms, float("nan"), peer_ms / base))
    print(f"{'overhead per experiment':40} {'median ms':>10} {'p95 ms':>10} {'× floor':>8}")
    for name, middle, high, ratio in rows:
        print(f"{name:40} {middle:10.1f} {high:10.1f} {ratio:8.2f}")
    tenth = max(1, len(overhead) // 10)
    first, last = statistics.median(overhead[:tenth]), statistics.median(overhead[-tenth:])
    print(f"\nfirst tenth {first:.1f} ms, last tenth {last:.1f} ms, ratio {last / first:.2f}")
    print(f"daemon: {memory:.0f} MB resident at most; heavy modules imported: {', '.join(sorted(heavy)) or 'none'}")
    print(f"\n{f'whole process, {options.rows} experiments':40} {'median ms':>10} {'':>10} {'× python':>8}")
    python = statistics.median(times["python -c pass"])
    for name, values in times.items():
        print(f"{name:40} {statistics.median(values):10.1f} {'':10} {statistics.median(values) / python:8.2f}")
    bounds = {
        "overhead ≤ 4 × floor": median <= 4 * base,
        "last tenth ≤ 1.2 × first": last <= 1.2 * first,
        "status ≤ 0.4 s": all(statistics.median(v) <= 400 for v in times.values()),
        "memory ≤ 250 MB, nothing heavy": memory <= 250 and not heavy,
    }
    print()
    for name, holds in bounds.items():
        print(f"{'holds' if holds else 'FAILS'}  {name}")
    return 0 if all(bounds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
