"""Progress that is no luck: the keep rule and its confirmations, in simulated sessions whose truth is known.

Each session spends the same total number of runs, those of confirmations included. Edits change nothing, harm or
improve, with sizes for which a session under the strict rule looks like a published log (``--logs`` prints both side by
side); noise is independent, or has a part that belongs to the seed, or drifts with the machine. Programs are all as
noisy, or not. Rules: ours, whose final value is that of the program that was confirmed last; strict (any better value
is kept), MAD ≥ 2 (with a better value) and 2σ (better by two standard deviations of the three runs of the baseline),
which confirm nothing. ``--attack``: programs that do worse when they run again, that are only noisier, and
that have a seed of their own.

    python benchmarks/keep.py [--sessions 100] [--first 0] [--runs 130] [--frontier] [--attack] [--logs FOLDER]

A session's number is its seed: with ``--first`` sessions are had that no constant was chosen on.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import numpy as np

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import Decision, Experiment, Run
from autoresearchd.domain.labels import Label, Outcome, Phase, Status
from autoresearchd.domain.task import Budget, Direction, Execution, Metric, MetricSource, Scoring, Task
from autoresearchd.evaluator.keep.confirm import Ask, ConfirmRule, due, next_step
from autoresearchd.evaluator.keep.tip_belief import Step, begin, follow, look, regret


@dataclass(frozen=True)
class Effects:
    """What edits truly do, in σ: shares of no change and of gains, and the log-normal sizes of gains and harms."""

    null: float
    gain: float
    gain_log: tuple[float, float]
    harm_log: tuple[float, float]

    def draw(self, random: np.random.Generator) -> float:
        kind, z = random.random(), random.normal()
        if kind < self.null:
            return 0.0
        if kind < self.null + self.gain:
            return math.exp(self.gain_log[0] + self.gain_log[1] * z)
        return -math.exp(self.harm_log[0] + self.harm_log[1] * z)


USUAL = {
    "karpathy": Effects(0.31, 0.22, (-0.22, 1.35), (-0.51, 1.84)),
    "karpathy, few gains": Effects(0.76, 0.10, (1.01, 0.75), (1.74, 0.71)),
    "parameter golf": Effects(0.54, 0.08, (0.59, 0.69), (1.91, 1.68)),
    "late": Effects(0.30, 0.06, (0.30, 0.90), (-0.50, 1.20)),
}
LARGE = "large effects"
EFFECTS = {**USUAL, LARGE: Effects(0.1, 0.35, (2.3, 1.2), (2.5, 1.2))}
"""Large: nearly each edit changes a young program by tens of σ, and one run of each cannot tell what σ is."""
NOISES = {"independent": (0.0, 0.0, 1.0), "seed": (0.5, 0.0, 0.5), "drift": (0.0, 0.7, 0.3)}
"""Shares of the variance: of the seed, of the machine (correlated over a dozen runs), of nothing in particular."""
DRIFT_RUNS = 12.0
EQUAL = "equal"
UNEQUAL = ("with the loss", "one odd program", "falling")
"""How the noise of programs differs: σ is a tenth of the loss; that of one early experiment is eightfold; that of new
programs falls to an eighth over a hundred experiments."""
ODD_EXPERIMENT = 4
ODD = 8.0
LOSS_IN_SIGMA = 10.0
LEAST_LOSS = 0.05
FIRST_GAIN = 5.0
WORSE = (1.5, 6.0, 25.0)
"""By how many σ a kept program of ``Sly`` does worse when it runs again."""
NOISIER = (3.0, 10.0)
"""How many times as noisy a program of ``Raiser`` is."""
LEFT = (0.0, 0.1)
"""Of a program's noise where it has a seed of its own: none, or what a GPU leaves."""


@dataclass(frozen=True)
class Truth:
    """What a program is truly worth, and the noise of its runs (1: the baseline's)."""

    value: float = 0.0
    sigma: float = 1.0


class World:
    """One session's truth: effects of edits in order, in σ of the incumbent's runs, and the noise of each run."""

    def __init__(self, effects: str, noise: str, session: int, programs: str = EQUAL) -> None:
        self._effects, self._shares, self._programs = EFFECTS[effects], NOISES[noise], programs
        self._edits = np.random.default_rng([session, 1])
        self._noise = np.random.default_rng([session, 2])
        self._machine = self._noise.normal()
        self._luck: dict[int, float] = {}
        self._number = 0
        self.runs = 0

    def edit(self, incumbent: Truth) -> tuple[float, Truth]:
        """The next edit's effect, and the program that it makes of the incumbent."""
        effect, sigma = self._effects.draw(self._edits), incumbent.sigma
        self._number += 1
        if self._programs == "with the loss":
            loss = max(LEAST_LOSS, 1.0 - effect / LOSS_IN_SIGMA)
            effect, sigma = LOSS_IN_SIGMA * (1.0 - loss), sigma * loss
        elif self._programs == "one odd program":
            sigma = ODD if self._number == ODD_EXPERIMENT else 1.0
        elif self._programs == "falling":
            sigma = 8.0 ** (-self._number / 100.0)
        return effect, Truth(incumbent.value + effect * incumbent.sigma, sigma)

    def run(self, program: Truth, seed: int, *, again: bool = False) -> float:
        """One run's goodness. again: of a kept program in a confirmation."""
        self.runs += 1
        stay = math.exp(-1.0 / DRIFT_RUNS)
        self._machine = stay * self._machine + math.sqrt(1.0 - stay**2) * self._noise.normal()
        if seed not in self._luck:
            self._luck[seed] = self._noise.normal()
        parts = (self._luck[seed], self._machine, self._noise.normal())
        luck = sum(math.sqrt(share) * part for share, part in zip(self._shares, parts, strict=True))
        return program.value + program.sigma * luck


class Sly(World):
    """One true improvement of FIRST_GAIN σ, then programs equal to it, each of which does worse when it runs again."""

    def __init__(self, worse: float, noise: str, session: int) -> None:
        super().__init__("karpathy", noise, session)
        self._worse = worse

    def edit(self, incumbent: Truth) -> tuple[float, Truth]:
        return FIRST_GAIN - incumbent.value, Truth(FIRST_GAIN)

    def run(self, program: Truth, seed: int, *, again: bool = False) -> float:
        return super().run(program, seed) - (self._worse if again else 0.0)


class Raiser(World):
    """Every ``each``-th edit, and with 1 all of them, changes nothing but the noise of what it makes."""

    def __init__(self, factor: float, each: int, noise: str, session: int) -> None:
        super().__init__("karpathy", noise, session)
        self._factor, self._each = factor, each

    def edit(self, incumbent: Truth) -> tuple[float, Truth]:
        effect, edited = super().edit(replace(incumbent, sigma=1.0))
        return (effect, edited) if self._number % self._each else (0.0, Truth(incumbent.value, self._factor))


class Seeded(World):
    """Edits that change nothing, each of whose programs has a seed of its own; its runs differ by the noise left."""

    def __init__(self, left: float, noise: str, session: int) -> None:
        super().__init__("karpathy", noise, session)
        self._left = left

    def edit(self, incumbent: Truth) -> tuple[float, Truth]:
        return 0.0, Truth(self._edits.normal(), self._left)


@dataclass
class Tally:
    """Counts over sessions.

    keeps, false: of experiments, and those that truly bring nothing. confirmed, wrong: confirmations of a chain, and
    those of one that is truly no better; fell: chains that fell; back: keeps that were taken back. extra: runs of
    confirmations. final, squared: true value of what was confirmed last, in σ above the baseline; tip: of the tip.
    """

    sessions: int = 0
    experiments: int = 0
    keeps: int = 0
    false: int = 0
    extra: int = 0
    confirmed: int = 0
    wrong: int = 0
    fell: int = 0
    back: int = 0
    final: float = 0.0
    squared: float = 0.0
    tip: float = 0.0

    def judged(self, effect: float, kept: bool) -> None:
        self.experiments += 1
        self.keeps += kept
        self.false += kept and effect <= 0

    def ended(self, confirmed: float, tip: float) -> Tally:
        self.sessions, self.final, self.squared, self.tip = 1, confirmed, confirmed * confirmed, tip
        return self

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def row(self, name: str) -> str:
        n = self.sessions
        mean = self.final / n
        error = math.sqrt(max(0.0, self.squared / n - mean**2) / n)
        return (
            f"{name:34s} {self.keeps / n:6.1f} {_share(self.false, self.keeps):>18s} "
            f"{self.extra / self.experiments:6.1%} "
            f"{self.confirmed / n:6.1f} {_share(self.wrong, self.confirmed):>18s} "
            f"{self.fell / n:5.2f} {self.back / n:5.1f} {self.tip / n:7.2f} {mean:7.2f} ± {error:.2f}"
        )


HEAD = (
    f"{'':34s} {'keeps':>6s} {'bring nothing':>18s} {'extra':>6s} {'conf.':>6s} {'false':>18s} "
    f"{'fell':>5s} {'back':>5s} {'tip':>7s} {'final, σ':>7s}"
)


def _share(count: int, of: int) -> str:
    """A share with its 95% Wilson interval."""
    if not of:
        return "–"
    p, z = count / of, 1.96
    centre, width = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    low, high = (centre - width) / (1 + z * z / of), (centre + width) / (1 + z * z / of)
    return f"{p:.1%} [{max(0.0, low):.0%}, {high:.0%}]"


# ---------------------------------------------------------------------- rules
TASK = Task(
    "simulated",
    ("train.py",),
    Execution("python train.py", Budget(1.0, 1.0, 3.0)),
    Scoring(Metric("goodness", Direction.MAXIMIZE), MetricSource.STDOUT),
)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 1
"""Of all experiments; confirmations have fresh ones."""
EVERY = 40.0
"""Gain in σ that is believed before a confirmation is due (``scoring.confirm_every``)."""
LAST = 6
"""Runs that are left for the confirmation at the end."""


def _leave(runs: int) -> None:
    """In each process: so many runs are left for the last confirmation."""
    globals()["LAST"] = runs


class Ours:
    """One session under our rule, with the functions that the daemon calls."""

    def __init__(self, world: World, runs: int, rule: ConfirmRule, every: float) -> None:
        self._world, self._runs, self._rule, self._every = world, runs, rule, every
        self._tally, self._seed, self._number = Tally(), 3, 0
        self._tip = self._confirmed = Truth()
        self._worth = self._confirmed_worth = 0.0
        self._kept: list[Experiment] = []
        self._past: list[tuple[Truth, float]] = []
        self._undecided: list[int] = []
        self._against = 0
        self._belief = begin([world.run(Truth(), s) for s in range(SEED, SEED + 3)])

    def session(self) -> Tally:
        while self._world.runs < self._runs - (LAST if self._kept else 0):
            self._experiment()
            left = self._runs - self._world.runs - LAST
            known = self._kept, self._undecided
            if left >= 2 and due(
                *known, every=self._every, runs=self._world.runs, extra=self._tally.extra, rule=self._rule
            ):
                self._confirm(min(self._rule.limit, left // 2))
        if self._kept:
            self._confirm((self._runs - self._world.runs) // 2)
        return self._tally.ended(self._confirmed_worth, self._worth)

    def _experiment(self) -> None:
        self._number += 1
        effect, edited = self._world.edit(self._tip)
        value = self._world.run(edited, SEED)
        posterior = look(self._belief, value)
        kept = posterior.gain > 0 and posterior.in_sigma > 0
        self._tally.judged(effect, kept)
        if kept:
            decision = Decision(Status.KEEP, Label.NONE, value, delta=posterior.gain, sigma=self._belief.sigma)
            e = Experiment(1, self._number, 0, Phase.DECIDED, "", NOW, decision=decision)
            self._kept.append(e)
            self._past.append((self._tip, self._worth))
            self._tip, self._worth = edited, self._worth + effect
        self._belief = posterior.kept if kept else posterior.discarded
        while regret(self._belief) is not None:
            self._belief = follow(self._belief, Step(0.0, back=True))
            self._tip, self._worth = self._past.pop()
            self._kept.pop()
            self._tally.back += 1

    def _confirm(self, limit: int) -> None:
        runs: list[Run] = []
        while limit > 0:
            step = next_step(TASK, runs, self._belief, rule=replace(self._rule, limit=limit))
            if isinstance(step, Verdict):
                self._settle(step, runs)
                break
            runs.append(self._run(step))

    def _run(self, ask: Ask) -> Run:
        self._seed += ask.seed is None
        seed = self._seed if ask.seed is None else ask.seed
        program, of = (self._tip, None) if ask.of_tip else (self._confirmed, self._against)
        value = self._world.run(program, seed, again=ask.of_tip or self._against > 0)
        self._tally.extra += 1
        return Run(0, self._kept[-1].number, 0, seed, NOW, NOW, value=value, of=of)

    def _settle(self, verdict: Verdict, runs: Sequence[Run]) -> None:
        if verdict.outcome is Outcome.UNDECIDED:
            self._undecided.append(self._number)
            return
        if verdict.outcome is Outcome.CONFIRMED:
            self._tally.confirmed += 1
            self._tally.wrong += self._worth <= self._confirmed_worth
            self._confirmed, self._confirmed_worth, self._against = self._tip, self._worth, self._kept[-1].number
            value = statistics.fmean(r.value for r in runs if r.of is None and r.value is not None)
            self._belief = follow(self._belief, Step(value, runs=sum(r.of is None for r in runs)))
        else:
            self._tally.fell += 1
            self._tip, self._worth = self._confirmed, self._confirmed_worth
            value = statistics.fmean(r.value for r in runs if r.of is not None and r.value is not None)
            self._belief = follow(self._belief, Step(value, fell=True, runs=len(runs) // 2))
        self._kept, self._past, self._undecided = [], [], []


def ours(world: World, runs: int, rule: ConfirmRule | None = None, every: float = EVERY) -> Tally:
    """Keep by expected gain, confirm chains."""
    return Ours(world, runs, rule or ConfirmRule(), every).session()


def single(world: World, runs: int, keep: Callable[[float, float, list[float]], bool], baseline_runs: int) -> Tally:
    """Rules that look at one run and compare it with the value that the incumbent was kept with."""
    tally, truth, worth = Tally(), Truth(), 0.0
    values = [world.run(truth, s) for s in range(1, baseline_runs + 1)]
    best, seed = statistics.fmean(values), baseline_runs
    while world.runs < runs:
        seed += 1
        effect, edited = world.edit(truth)
        value = world.run(edited, seed)
        values.append(value)
        kept = keep(value, best, values)
        tally.judged(effect, kept)
        if kept:
            truth, best, worth = edited, value, worth + effect
    return tally.ended(worth, worth)


def _strict(value: float, best: float, values: list[float]) -> bool:
    return value > best


def _mad(value: float, best: float, values: list[float]) -> bool:
    centre = statistics.median(values)
    mad = statistics.median(abs(v - centre) for v in values)
    return value > best and len(values) >= 3 and mad > 0 and (value - values[0]) / mad >= 2


def _two_sigma(value: float, best: float, values: list[float]) -> bool:
    return value - best > 2 * statistics.stdev(values[:3])


DEFAULT = ConfirmRule()
RULES: dict[str, Callable[[World, int], Tally]] = {
    "ours": ours,
    "strict": lambda world, runs: single(world, runs, _strict, 1),
    "MAD ≥ 2": lambda world, runs: single(world, runs, _mad, 1),
    "2σ": lambda world, runs: single(world, runs, _two_sigma, 3),
}
VARIANTS: dict[str, tuple[ConfirmRule, float]] = {
    "default": (DEFAULT, EVERY),
    **{f"every {x:g}": (DEFAULT, x) for x in (0.0, 10.0, 25.0, 80.0)},
    **{f"at {x:g}": (replace(DEFAULT, at=x), EVERY) for x in (0.97, 0.99)},
    **{f"fall {x:g}": (replace(DEFAULT, fall=x), EVERY) for x in (0.1, 0.5)},
    **{f"least {x}": (replace(DEFAULT, least=x), EVERY) for x in (1, 3)},
    **{f"limit {x}": (replace(DEFAULT, limit=x), EVERY) for x in (4, 8)},
    **{f"share {x:g}": (replace(DEFAULT, share=x), EVERY) for x in (0.04, 0.16)},
}
EQUAL_WORLDS = [(e, n, EQUAL) for n in NOISES for e in USUAL]
UNEQUAL_WORLDS = [(e, "independent", p) for p in UNEQUAL for e in ("karpathy", "parameter golf")]
LARGE_WORLDS = [(LARGE, n, EQUAL) for n in NOISES]


def _compare(job: tuple[str, str, str, str, range, int]) -> Tally:
    effects, noise, programs, rule, sessions, runs = job
    return sum((RULES[rule](World(effects, noise, s, programs), runs) for s in sessions), Tally())


def _vary(job: tuple[str, str, str, str, range, int]) -> Tally:
    effects, noise, programs, variant, sessions, runs = job
    return sum((ours(World(effects, noise, s, programs), runs, *VARIANTS[variant]) for s in sessions), Tally())


def _attack(job: tuple[str, float, str, str, range, int]) -> Tally:
    kind, size, noise, rule, sessions, runs = job
    make: dict[str, Callable[[int], World]] = {
        "worse when it runs again, by σ": lambda s: Sly(size, noise, s),
        "as noisy, times": lambda s: Raiser(size, 1, noise, s),
        "one in five as noisy, times": lambda s: Raiser(size, 5, noise, s),
        "a seed of its own, noise left": lambda s: Seeded(size, noise, s),
    }
    return sum((RULES[rule](make[kind](s), runs) for s in sessions), Tally())


def attack(pool: multiprocessing.pool.Pool, sessions: range, runs: int, rules: Sequence[str]) -> None:
    """Programs that fool a single run."""
    kinds = [("worse when it runs again, by σ", x) for x in WORSE]
    kinds += [(kind, x) for kind in ("as noisy, times", "one in five as noisy, times") for x in NOISIER]
    kinds += [("a seed of its own, noise left", x) for x in LEFT]
    jobs = [(kind, x, noise, rule, sessions, runs) for kind, x in kinds for noise in NOISES for rule in rules]
    tallies = pool.map(_attack, jobs, chunksize=1)
    print(f"{len(sessions)} sessions from {sessions.start} on, of {runs} runs each\n{HEAD}")
    for i, (kind, x, noise, rule, *_) in enumerate(jobs):
        if i % len(rules) == 0:
            print(f"{kind}: {x:g}; noise: {noise}")
        print(tallies[i].row(f"  {rule}"))


def compare(pool: multiprocessing.pool.Pool, sessions: range, runs: int, rules: Sequence[str]) -> None:
    groups = {
        "programs of equal noise": EQUAL_WORLDS, "programs of unequal noise": UNEQUAL_WORLDS,
        "large effects": LARGE_WORLDS,
    }  # fmt: skip
    worlds = [world for group in groups.values() for world in group]
    jobs = [(*world, rule, sessions, runs) for world in worlds for rule in rules]
    tallies = pool.map(_compare, jobs, chunksize=1)
    print(f"{len(sessions)} sessions from {sessions.start} on, of {runs} runs each\n{HEAD}")
    for i, (effects, noise, programs) in enumerate(worlds):
        print(f"{effects}; noise: {noise}; of programs: {programs}")
        for rule, tally in zip(rules, tallies[i * len(rules) :], strict=False):
            print(tally.row(f"  {rule}"))
    left = iter(tallies)
    for name, group in groups.items():
        some = list(islice(left, len(group) * len(rules)))
        print(f"all worlds with {name}")
        for k, rule in enumerate(rules):
            print(sum(some[k :: len(rules)], Tally()).row(f"  {rule}"))


def frontier(pool: multiprocessing.pool.Pool, sessions: range, runs: int) -> None:
    worlds = EQUAL_WORLDS + UNEQUAL_WORLDS
    jobs = [(*world, v, sessions, runs) for v in VARIANTS for world in worlds]
    tallies = pool.map(_vary, jobs, chunksize=1)
    print(f"\nfrontier over {len(worlds)} worlds")
    print(f"{len(sessions)} sessions from {sessions.start} on, of {runs} runs each\n{HEAD}")
    for i, name in enumerate(VARIANTS):
        print(sum(tallies[i * len(worlds) : (i + 1) * len(worlds)], Tally()).row(f"  {name}"))


# ---------------------------------------------------------------------- logs
def gains_of_log(path: Path) -> tuple[list[float], list[str]]:
    """Gain of each row of a published log over the best before it, and the rows' descriptions."""
    best, gains, names = None, [], []
    with path.open(newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            value = float(row["val_bpb"] or 0)
            if row["status"] not in ("keep", "discard", "baseline") or value <= 0:
                continue
            if best is not None and row["status"] != "baseline":
                gains.append(best - value)
                names.append(row.get("exp_id") or row.get("commit") or "")
            best = value if best is None else min(best, value)
    return gains, names


def replay(folder: Path) -> None:
    """Whether simulated sessions look like published logs."""
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95)
    for name, sigma, world in (
        ("karpathy-autoresearch-mar8.tsv", 5e-4, "karpathy"),
        ("recipes-pg-lineage-on.tsv", 7e-4, "parameter golf"),
    ):
        gains, _ = gains_of_log(folder / name)
        simulated = _observed(world, len(gains))
        print(f"\n{name}: {len(gains)} rows, σ taken as {sigma:g}; {sum(g > 0 for g in gains)} strict keeps")
        for who, observed in (("log", [g / sigma for g in gains]), (f"simulated, {world}", simulated)):
            found = " ".join(f"{q:7.2f}" for q in np.quantile(observed, quantiles))
            better = sum(g > 0 for g in observed) / len(observed)
            print(f"  {who:28s} gains in σ, quantiles 5 25 50 75 95%: {found}; better {better:.0%}")


def _observed(world: str, rows: int) -> list[float]:
    """Gains over the best so far, as a log of the strict rule would show them (20 sessions)."""
    found = []
    for session in range(20):
        w, truth = World(world, "independent", session), Truth()
        best = w.run(truth, 0)
        for seed in range(1, rows + 1):
            _, edited = w.edit(truth)
            value = w.run(edited, seed)
            found.append(value - best)
            if value > best:
                truth, best = edited, value
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first session")
    parser.add_argument("--runs", type=int, default=130)
    parser.add_argument("--frontier", action="store_true")
    parser.add_argument("--attack", action="store_true", help="programs that fool a single run")
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--last", type=int, default=LAST, help="runs that are left for the last confirmation")
    options = parser.parse_args(arguments)
    sessions = range(options.first, options.first + options.sessions)
    with multiprocessing.Pool(options.processes, _leave, (options.last,)) as pool:
        if options.frontier:
            frontier(pool, sessions, options.runs)
        elif options.attack:
            attack(pool, sessions, options.runs, options.rules)
        else:
            compare(pool, sessions, options.runs, options.rules)
    if options.logs:
        replay(options.logs)


if __name__ == "__main__":
    main()
