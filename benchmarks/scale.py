"""More slots: what they cost in progress, how well they are used, and what a run costs over ssh and on Ray.

    python benchmarks/scale.py worlds [--sessions 60] [--first 9000] [--slots 1 4 16]   # of keep.py, simulated
    python benchmarks/scale.py fleet [--slots 1 4 16 64] [--seconds 60] [--rounds 5]    # the daemon, jobs that sleep
    python benchmarks/scale.py ssh [--runs 20]                                          # needs sshd, ssh and rsync
    python benchmarks/scale.py ray [--runs 20]                                          # begins a cluster of one node

worlds: sessions of the same total number of runs. Runs take equally long, so with S slots an edit is made on the tip
of S - 1 decisions ago; what is better than its own parent but not than the tip is tried again on the tip, as is a tip
whose place was taken by an edit on an earlier one. A confirmation takes one slot. fleet: `start --slots S` with S
devices that a program on the PATH invents, from the first experiment on until all are decided; overhead is what
`experiments` tells, cpu the daemon's own share of a core, used the jobs' share of the time of all slots. ssh: from
the start of a run to the first line of its log here, less what the job itself takes on this machine, beside `ssh HOST
true`, against an sshd on loopback. ray: the same, beside a task and an actor of Ray's own that start a program, and a
run of the local executor. How progress on tables of networks depends on slots is told by `tables.py --slots`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from keep import EQUAL_WORLDS, HEAD, LAST, NOW, SEED, TASK, Ours, Tally, Truth, World, ours
from overhead import repository
from policies import environment

from autoresearchd.app.project import Project
from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.errors import StoreError
from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Outcome, Phase, Status
from autoresearchd.domain.ports import Executor
from autoresearchd.evaluator.keep.confirm import Ask, ConfirmRule, due, next_step
from autoresearchd.evaluator.keep.tip_belief import Step, follow, kept_on, look, regret
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.proposing.proposals import PATIENT_SLOTS
from autoresearchd.store.reader import Reader

EVERY = 40.0


# ---------------------------------------------------------------------- progress, simulated
@dataclass(frozen=True)
class Going:
    """A run under way of a set of edits, on the tip ``parent``; ask: for a confirmation."""

    edits: frozenset[int]
    parent: int = 0
    ask: Ask | None = None


@dataclass(frozen=True)
class Past:
    """What may be tried on the tip: an edit that gave ``value`` on an earlier one, or a tip that lost its place."""

    edits: frozenset[int]
    parent: int
    value: float | None
    gain: float = 0.0


@dataclass
class Test:
    """A confirmation. number: of the keep; again: whether the program it is compared with was itself kept."""

    number: int
    edits: frozenset[int]
    limit: int
    runs: list[Run]


class Parallel(Ours):
    """A session with several slots, decided in order, as `loop/session.py` has it; programs are all as noisy."""

    def __init__(self, world: World, runs: int, slots: int) -> None:
        super().__init__(world, runs, ConfirmRule(), EVERY)
        self._slots, self._going, self._test = slots, deque[Going](), None
        self._again: list[Past] = []  # what may be tried again
        self._effects: list[float] = []
        self._edits = self._proven = frozenset[int]()  # of the tip and of the confirmed program
        self._before: list[frozenset[int]] = []  # of what each open keep was kept on
        self._latest = 0  # number of the tip
        self._standing: list[Experiment] = []  # keeps that did not fall

    def session(self) -> Tally:
        while True:
            while len(self._going) < self._slots and (next_one := self._next()) is not None:
                self._going.append(next_one)
            if not self._going:
                break
            self._end(self._going.popleft())
        while self._kept:  # the last confirmation
            self._test = self._test or self._open(self._runs - self._world.runs)
            if self._test is None or (step := self._step()) is None:
                break
            self._end(step)
        return self._tally.ended(self._confirmed_worth, self._worth)

    def _left(self) -> int:
        return self._runs - self._world.runs - len(self._going) - LAST

    def _next(self) -> Going | None:
        """What a free slot takes."""
        testing = any(one.ask is not None for one in self._going)
        if self._test is None and self._left() >= 2 and self._kept:
            extra = self._tally.extra
            if due(self._kept, self._undecided, every=EVERY, runs=self._world.runs, extra=extra, rule=self._rule):
                self._test = self._open(self._left())
        if self._test is not None and not testing and (step := self._step()) is not None:
            return step
        reserve = (LAST if self._kept else 0) + (max(0, LAST - len(self._test.runs)) if self._test else 0)
        if self._world.runs + len(self._going) >= self._runs - reserve:
            return None
        if (edits := self._together()) != self._edits:
            return Going(edits, self._latest)
        self._effects.append(self._world.edit(Truth())[0])
        return Going(self._edits | {len(self._effects) - 1}, self._latest)

    def _together(self) -> frozenset[int]:
        """The tip with what has gained beside other keeps, once that is worth a run."""
        worth = [(edits, gain) for edits, gain in ((o.edits, self._gain(o)) for o in self._again) if gain > 0]
        least = max(1.0, self._slots / PATIENT_SLOTS) * self._belief.hope
        if not worth or sum(gain for _, gain in worth) < least:
            return self._edits
        self._again.clear()
        return self._edits.union(*(edits for edits, _ in worth))

    def _gain(self, old: Past) -> float:
        """What an edit would bring on the tip, in the metric."""
        since = sum(e.decision.delta or 0.0 for e in self._standing if e.number > old.parent and e.decision)
        return old.gain if old.value is None else look(self._belief, old.value + since).gain

    def _truth(self, edits: frozenset[int]) -> Truth:
        return Truth(sum(self._effects[i] for i in edits))

    def _end(self, one: Going) -> None:
        if one.ask is None:
            self._decide(one)
            return
        test, fresh = self._test, one.ask.seed is None
        assert test is not None
        self._seed += fresh
        seed = self._seed if one.ask.seed is None else one.ask.seed
        value = self._world.run(self._truth(one.edits), seed, again=one.ask.of_tip or self._against > 0)
        self._tally.extra += 1
        of = None if one.ask.of_tip else self._against
        test.runs.append(Run(0, test.number, 0, seed, NOW, NOW, value=value, of=of))

    def _decide(self, one: Going) -> None:
        self._number += 1
        truth = self._truth(one.edits)
        value = self._world.run(truth, SEED)
        posterior = look(self._belief, value)
        kept = posterior.gain > 0 and posterior.in_sigma > 0
        since = [e.decision.delta or 0.0 for e in self._standing if e.number > one.parent and e.decision]
        self._tally.judged(truth.value - self._worth, kept)
        if kept:
            if since:
                self._again.append(Past(self._edits, one.parent, None, sum(since)))
            decision = Decision(Status.KEEP, Label.NONE, value, delta=posterior.gain, sigma=self._belief.sigma)
            e = Experiment(1, self._number, 0, Phase.DECIDED, "", NOW, decision=decision)
            self._kept.append(e)
            self._standing.append(e)
            self._before.append(self._edits)
            self._edits, self._worth, self._latest = one.edits, truth.value, self._number
        elif since:
            moved = look(self._belief, value + sum(since))
            if moved.gain > 0:
                self._again.append(Past(one.edits, one.parent, value))
            self._belief = moved.discarded
            return
        self._belief = posterior.kept if kept else posterior.discarded
        while regret(self._belief) is not None:
            self._belief = follow(self._belief, Step(0.0, back=True))
            self._edits = self._before.pop()
            self._worth = self._truth(self._edits).value
            self._kept.pop()
            self._standing.pop()
            self._latest = self._kept[-1].number if self._kept else self._against
            self._tally.back += 1

    # -- confirmations
    def _open(self, left: int) -> Test | None:
        limit = min(self._rule.limit, left // 2)
        return Test(self._kept[-1].number, self._edits, limit, []) if limit > 0 else None

    def _step(self) -> Going | None:
        """The next run of the confirmation; None: it is over."""
        test = self._test
        assert test is not None
        if not any(e.number == test.number for e in self._kept):  # its keep was taken back meanwhile
            self._test = None
            return None
        level = test.number == self._kept[-1].number
        step = next_step(TASK, test.runs, self._belief, level=level, rule=replace(self._rule, limit=test.limit))
        if isinstance(step, Ask):
            return Going(test.edits if step.of_tip else self._proven, ask=step)
        self._test = None
        self._verdict(test, step, level)
        return None

    def _verdict(self, test: Test, verdict: Verdict, level: bool) -> None:
        above = [e for e in self._kept if e.number > test.number]
        if verdict.outcome is Outcome.CONFIRMED:
            self._tally.confirmed += 1
            worth = self._truth(test.edits).value
            self._tally.wrong += worth <= self._confirmed_worth
            self._proven, self._confirmed_worth, self._against = test.edits, worth, test.number
            values = [r.value for r in test.runs if r.of is None and r.value is not None]
            mean = Step(statistics.fmean(values), runs=len(values))
            self._belief = follow(self._belief, mean) if level else kept_on(self._belief, len(above))
            self._kept, self._before, self._undecided = above, self._before[len(self._before) - len(above) :], []
        elif verdict.outcome is Outcome.FELL and level:
            self._tally.fell += 1
            values = [r.value for r in test.runs if r.of is not None and r.value is not None]
            self._belief = follow(self._belief, Step(statistics.fmean(values), fell=True, runs=len(values)))
            self._edits, self._worth, self._latest = self._proven, self._confirmed_worth, self._against
            self._standing = self._standing[: len(self._standing) - len(self._kept)]
            self._kept, self._before, self._undecided = [], [], []
        else:
            self._undecided.append(self._number)


def simulate(job: tuple[str, str, str, int, range, int]) -> Tally:
    effects, noise, programs, slots, sessions, runs = job
    worlds = (World(effects, noise, s, programs) for s in sessions)
    return sum((ours(w, runs) if slots == 1 else Parallel(w, runs, slots).session() for w in worlds), Tally())


def worlds(o: argparse.Namespace) -> None:
    sessions = range(o.first, o.first + o.sessions)
    jobs = [(*world, slots, sessions, o.runs) for world in EQUAL_WORLDS for slots in o.slots]
    with multiprocessing.Pool(o.processes) as pool:
        tallies = pool.map(simulate, jobs, chunksize=1)
    print(f"{len(sessions)} sessions from {sessions.start} on, of {o.runs} runs each\n{HEAD}")
    for i, (effects, noise, _) in enumerate(EQUAL_WORLDS):
        print(f"{effects}; noise: {noise}")
        for slots, tally in zip(o.slots, tallies[i * len(o.slots) :], strict=False):
            print(tally.row(f"  {slots} slots"))
    print("all")
    totals = [sum(tallies[k :: len(o.slots)], Tally()) for k in range(len(o.slots))]
    for slots, tally in zip(o.slots, totals, strict=True):
        lost = 1 - tally.final / tally.sessions / (totals[0].final / totals[0].sessions)
        print(tally.row(f"  {slots} slots: {lost:+.1%} lost"))


# ---------------------------------------------------------------------- the daemon with jobs that sleep
PROGRAM = "SCALE = 1.0\nSHIFT = 0.5\nRATE = 1e-3\nprint(f'score: {abs(SCALE - 3) + abs(SHIFT - 2) + RATE}')\n"
SLEEPING = """\
name: sleep
workspace: {{target_file: train.py}}
execution: {{run_command: "sleep {seconds}; python3 -I -S train.py", budget: {budget}}}
scoring: {{metric: score, direction: minimize, metric_source: stdout}}
"""


@contextmanager
def invented_devices(count: int) -> Iterator[None]:
    """With a program on the PATH that tells of so many devices, each of which is a slot."""
    with tempfile.TemporaryDirectory(prefix="devices-") as folder:
        program = Path(folder) / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nfor i in $(seq {count}); do echo Invented; done\n")
        program.chmod(0o755)
        with environment(PATH=f"{folder}:{os.environ['PATH']}"):
            yield


def fleet(o: argparse.Namespace) -> None:
    print("| slots | experiments | used | overhead, ms: median, p95 | cpu of the daemon | took |")
    print("|---|---|---|---|---|---|")
    for slots in o.slots:
        with tempfile.TemporaryDirectory(prefix="scale-") as scratch, invented_devices(slots):
            top = Path(scratch)
            task = SLEEPING.format(seconds=o.seconds, budget=2 * o.seconds + 60)
            repository(top, {"train.py": PROGRAM, "task.yaml": task})
            words = ["start", "--foreground", "--tag", "t", "--policy", "random", "--slots", str(slots)]
            words += ["--max-experiments", str(slots * o.rounds), "--confirm-every", "1e6"]
            command = [sys.executable, "-m", "autoresearchd", *words]
            daemon = subprocess.Popen(command, cwd=top, stdout=subprocess.DEVNULL)
            begun, spent, before, decided = 0.0, 0.0, 0.0, list[Any]()
            while len(decided) < slots * o.rounds:
                if daemon.poll() is not None:
                    sys.exit(f"the daemon ended with {daemon.returncode}")
                time.sleep(0.5)
                spent = processor_time(daemon.pid)
                with (
                    suppress(StoreError, KeyError),
                    closing(Reader(Project.at(top).database)) as reader,
                ):  # it has yet to begin
                    found = [e for e in reader.experiments("t") if e["experiment"]]
                    decided = [e for e in found if e["status"]]
                    if found and not begun:
                        begun, before = datetime.fromisoformat(found[0]["started_at"]).timestamp(), spent
            took = time.time() - begun
            daemon.kill()  # its last confirmation takes one slot, and is no part of this
            daemon.wait()
            with closing(Reader(Project.at(top).database)) as reader:
                over = reader.status("t")["overhead"]
        used = sum(run["duration_s"] for e in decided for run in e["runs"]) / took / slots
        row = f"| {slots} | {len(decided)} | {used:.1%} | {over['median_ms']:.0f}, {over['p95_ms']:.0f}"
        print(f"{row} | {(spent - before) / took:.1%} | {took:.0f} s |", flush=True)


def processor_time(pid: int) -> float:
    """Seconds that a process itself has computed."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---------------------------------------------------------------------- the start of a run
def starts(executor: Executor, count: int) -> tuple[list[float], list[float]]:
    """Seconds from the start of a run to that of its job, and from a line of its log to where that is here."""
    from tests.contract.executor_contract import make_request, make_task

    begins, late = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(count + 1):
            folder = Path(scratch) / str(i)
            folder.mkdir()
            request = make_request(folder, make_task("date +%s.%N; sleep 1; echo val_bpb: 1.5"))
            log, begun = request.run_dir / "training.log", time.time()
            handle = executor.start(request)
            while not log.exists() or not log.read_text():
                time.sleep(0.005)
            seen, said = time.time(), float(log.read_text().split()[0])
            handle.wait()
            begins.append(said - begun)
            late.append(seen - said)
    return begins[1:], late[1:]


def tell_starts(base: str, rows: Sequence[tuple[str, Sequence[float]]]) -> None:
    floor = statistics.median(dict(rows)[base])
    print(f"| | median, s | p95, s | × {base} |\n|---|---|---|---|")
    for name, times in rows:
        p95 = sorted(times)[int(0.95 * (len(times) - 1))]
        print(f"| {name} | {statistics.median(times):.3f} | {p95:.3f} | {statistics.median(times) / floor:.2f} |")


def ssh(o: argparse.Namespace) -> None:
    from tests.integration.ssh_hosts import make_fleet

    with make_fleet() as machines:
        host = machines.add("box")
        words = ["ssh", "-F", str(machines.config), host.alias, "true"]
        plain = [timed(lambda: subprocess.run(words, check=True, capture_output=True)) for _ in range(o.runs + 1)]
        with closing(machines.executor(host)) as executor:
            runs, late = starts(executor, o.runs)
    told = (("ssh HOST true", plain[1:]), ("start of a run", runs), ("a line of its log is here", late))
    tell_starts("ssh HOST true", told)


# In a process of its own: Ray takes over the one that it is in.
RAY = """
import json, subprocess, sys, time
import ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
def date():
    return float(subprocess.check_output(["date", "+%s.%N"]))
class Actor:
    def date(self):
        return date()
actor, task = ray.remote(num_cpus=0)(Actor).remote(), ray.remote(num_cpus=0)(date)
def times(of):
    found = []
    for _ in range(int(sys.argv[2]) + 1):
        begun = time.time()
        found.append(ray.get(of.remote()) - begun)
    return found[1:]
print(json.dumps([times(task), times(actor.date)]))
"""


def ray(o: argparse.Namespace) -> None:
    from tests.integration.ray_cluster import make_cluster

    with make_cluster() as cluster:
        words = [sys.executable, "-c", RAY, cluster.head, str(o.runs)]
        settings = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # 127.0.0.1 is what it says
        said = subprocess.run(words, check=True, capture_output=True, text=True, env=settings).stdout
        task, actor = json.loads(said.splitlines()[-1])
        with closing(cluster.executor()) as executor:
            while not executor.ready(0):
                time.sleep(0.05)
            runs, late = starts(executor, o.runs)
    local, _ = starts(LocalExecutor(), o.runs)
    told = (("a task of Ray's", task), ("a call of an actor", actor), ("start of a local run", local),
            ("start of a run on Ray", runs), ("a line of its log is here", late))  # fmt: skip
    tell_starts("a task of Ray's", told)


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    simulated = parts.add_parser("worlds")
    simulated.set_defaults(work=worlds)
    simulated.add_argument("--sessions", type=int, default=60)
    simulated.add_argument("--first", type=int, default=9000)
    simulated.add_argument("--runs", type=int, default=130)
    simulated.add_argument("--slots", type=int, nargs="+", default=[1, 4, 16])
    simulated.add_argument("--processes", type=int, default=2)
    sleeping = parts.add_parser("fleet")
    sleeping.set_defaults(work=fleet)
    sleeping.add_argument("--slots", type=int, nargs="+", default=[1, 4, 16, 64])
    sleeping.add_argument("--seconds", type=int, default=60)
    sleeping.add_argument("--rounds", type=int, default=5)
    for work in (ssh, ray):
        remote = parts.add_parser(work.__name__)
        remote.set_defaults(work=work)
        remote.add_argument("--runs", type=int, default=20)
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).parents[1]))  # for what tests and benchmarks share
    options.work(options)


if __name__ == "__main__":
    main()
