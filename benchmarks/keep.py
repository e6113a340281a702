"""Keeps that are not luck: the keep rule against simpler ones, in simulated sessions whose truth is known.

Each session spends the same total number of runs (*per 100*: the final true value for each 100 experiments). Edits
change nothing, harm or improve, with sizes for which a session under the strict rule looks like a published log
(``--logs`` prints both side by side); noise is independent, or has a part that belongs to the seed, or drifts with the
machine. Programs are all as noisy, or not. Rules: ours, also as it was with one σ for all programs; strict (any better
value is kept); MAD ≥ 2 (with a better value); 2σ (better by two standard deviations of the three runs of the baseline).

    python benchmarks/keep.py [--sessions 100] [--first 0] [--runs 130] [--frontier [--plot keep.png]] [--logs FOLDER]
    python benchmarks/keep.py --sly [--sessions 100] [--first 0] [--runs 130]

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
from pathlib import Path

import numpy as np

from autoresearchd.evaluator.keep.keep_rule import Action, KeepRule, control, look
from autoresearchd.evaluator.keep.noise import Noise, NoiseData, Sample

LARGE = 2.0
"""An improvement above so many σ should not be missed."""


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


EFFECTS = {
    "karpathy": Effects(0.31, 0.22, (-0.22, 1.35), (-0.51, 1.84)),
    "karpathy, few gains": Effects(0.76, 0.10, (1.01, 0.75), (1.74, 0.71)),
    "parameter golf": Effects(0.54, 0.08, (0.59, 0.69), (1.91, 1.68)),
    "late": Effects(0.30, 0.06, (0.30, 0.90), (-0.50, 1.20)),
}
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
WORSE = (1.5, 3.0, 6.0, 25.0)
"""By how many σ a kept program of ``Sly`` does worse when it runs again."""


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
        """One run's goodness. again: of a kept program beside a later experiment."""
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


@dataclass
class Tally:
    """Counts over sessions.

    final, squared: true value of the last incumbent in σ above the baseline; controls: runs of the baseline beside
    experiments.
    """

    sessions: int = 0
    experiments: int = 0
    extra: int = 0
    keeps: int = 0
    false: int = 0
    large: int = 0
    missed: int = 0
    final: float = 0.0
    squared: float = 0.0
    controls: int = 0

    def judged(self, effect: float, kept: bool) -> None:
        self.experiments += 1
        self.keeps += kept
        self.false += kept and effect <= 0
        self.large += effect > LARGE
        self.missed += effect > LARGE and not kept

    def ended(self, truth: float) -> Tally:
        self.sessions, self.final, self.squared = 1, truth, truth * truth
        return self

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def row(self, name: str) -> str:
        n = self.sessions
        mean = self.final / n
        error = math.sqrt(max(0.0, self.squared / n - mean**2) / n)
        return (
            f"{name:38s} {self.keeps / n:6.1f} {_share(self.false, self.keeps):>18s} "
            f"{_share(self.missed, self.large):>18s} {self.extra / self.experiments:7.1%} {mean:7.2f} ± {error:.2f}"
            f" {100 * self.final / self.experiments:9.1f}"
        )


HEAD = (
    f"{'':38s} {'keeps':>6s} {'false keeps':>18s} {'missed > 2σ':>18s} {'extra':>7s} {'final true value, σ':>14s}"
    f" {'per 100':>7s}"
)


def _share(count: int, of: int) -> str:
    """A share with its 95% Wilson interval."""
    if not of:
        return "–"
    p, z = count / of, 1.96
    centre, width = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    low, high = (centre - width) / (1 + z * z / of), (centre + width) / (1 + z * z / of)
    return f"{p:.1%} [{low:.0%}, {high:.0%}]"


# ---------------------------------------------------------------------- rules
def ours(
    world: World, runs: int, rule: KeepRule, baseline_runs: int = 3, recheck: bool = True, alike: bool = False
) -> Tally:
    """Our rule; alike: with one σ pooled over all programs."""
    tally, truth, incumbent, seed, worth = Tally(), Truth(), 0, baseline_runs, 0.0
    noise_data = NoiseData([Sample(0, 0, s, world.run(truth, s)) for s in range(1, baseline_runs + 1)])
    number = 0
    while world.runs < runs:
        number, seed = number + 1, seed + 1
        effect, edited = world.edit(truth)
        samples = [Sample(number, number, seed, world.run(edited, seed))]
        price, action = rule.price(noise_data.experiments, noise_data.extra), Action.AGAIN
        while action is Action.AGAIN:
            now = noise_data.with_samples(samples)
            noise = now.noise() if alike else now.noise(number, incumbent)
            assert noise is not None
            readings, again = now.readings(incumbent, samples), recheck and noise_data.unchecked(incumbent)
            verdict = look(readings, noise, rule, spent=len(samples) - 1, price=price, recheck=again)
            action, at = verdict.action, verdict.seed
            holds = control(now, number, incumbent, rule).holds if action is Action.KEEP else True
            if not holds:
                action = Action.AGAIN if holds is None else Action.DISCARD
                at = samples[-1].seed
            if action is Action.AGAIN and world.runs >= runs:
                break
            if action is Action.AGAIN:
                seed += at is None
                at = seed if at is None else at
                if holds is None:
                    samples.append(Sample(0, number, at, world.run(Truth(), at)))
                    tally.controls += 1
                elif verdict.own:
                    samples.append(Sample(number, number, at, world.run(edited, at)))
                else:
                    samples.append(Sample(incumbent, number, at, world.run(truth, at, again=incumbent > 0)))
        tally.extra += len(samples) - 1
        noise_data.take(samples)
        tally.judged(effect, action is Action.KEEP)
        if action is Action.KEEP:
            truth, incumbent, worth = edited, number, worth + effect
    return tally.ended(worth)


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
    return tally.ended(worth)


def _strict(value: float, best: float, values: list[float]) -> bool:
    return value > best


def _mad(value: float, best: float, values: list[float]) -> bool:
    centre = statistics.median(values)
    mad = statistics.median(abs(v - centre) for v in values)
    return value > best and len(values) >= 3 and mad > 0 and (value - values[0]) / mad >= 2


def _two_sigma(value: float, best: float, values: list[float]) -> bool:
    return value - best > 2 * statistics.stdev(values[:3])


BEFORE = replace(KeepRule(), fallen=math.inf)
RULES: dict[str, Callable[[World, int], Tally]] = {
    "strict": lambda world, runs: single(world, runs, _strict, 1),
    "MAD ≥ 2": lambda world, runs: single(world, runs, _mad, 1),
    "2σ": lambda world, runs: single(world, runs, _two_sigma, 3),
    "ours": lambda world, runs: ours(world, runs, KeepRule()),
    "ours before ADR 32": lambda world, runs: ours(world, runs, replace(BEFORE, start_at=0.05, own=1), alike=True),
    "ours before ADR 37": lambda world, runs: ours(world, runs, replace(BEFORE, start_at=0.056, own=1)),
    "ours before ADR 38": lambda world, runs: ours(world, runs, BEFORE),
    "ours, baseline run 5 times": lambda world, runs: ours(world, runs, KeepRule(), 5),
}
VARIANTS = {
    "default": KeepRule(),
    **{f"start_at {x:g}": replace(KeepRule(), start_at=x) for x in (0.03, 0.08, 0.2)},
    **{f"keep_at {x:g}": replace(KeepRule(), keep_at=x) for x in (0.85, 0.9, 0.97)},
    **{f"go_on_at {x:g}": replace(KeepRule(), go_on_at=x) for x in (0.1, 0.3)},
    **{f"beside_at {x:g}": replace(KeepRule(), beside_at=x) for x in (0.0,)},
    **{f"fallen {x:g}": replace(KeepRule(), fallen=x) for x in (1.0, 3.0)},
    **{f"most {x}": replace(KeepRule(), most=x) for x in (4, 12)},
}


def _compare(job: tuple[str, str, str, str, range, int]) -> Tally:
    effects, noise, programs, rule, sessions, runs = job
    return sum((RULES[rule](World(effects, noise, s, programs), runs) for s in sessions), Tally())


def _vary(job: tuple[str, str, str, range, int]) -> Tally:
    effects, noise, variant, sessions, runs = job
    return sum((ours(World(effects, noise, s), runs, VARIANTS[variant]) for s in sessions), Tally())


def _deceive(job: tuple[float, str, str, range, int]) -> Tally:
    worse, noise, rule, sessions, runs = job
    return sum((RULES[rule](Sly(worse, noise, s), runs) for s in sessions), Tally())


def deceive(pool: multiprocessing.pool.Pool, sessions: range, runs: int, rules: Sequence[str]) -> None:
    """Kept programs that do worse when they run again, so that equal ones look better."""
    jobs = [(worse, noise, rule, sessions, runs) for rule in rules for noise in NOISES for worse in WORSE]
    tallies = pool.map(_deceive, jobs, chunksize=1)
    print(f"{len(sessions)} sessions from {sessions.start} on, of {runs} runs each: equal programs that were kept")
    for (worse, noise, rule, *_), t in zip(jobs, tallies, strict=True):
        share = f"{_share(t.false, t.experiments):>18s} of {t.experiments:5d}"
        print(f"  {rule:28s} {noise:12s} {worse:4g}σ worse: {share}, {t.controls} controls")


def compare(pool: multiprocessing.pool.Pool, sessions: range, runs: int, rules: Sequence[str]) -> None:
    equal = [(e, n, EQUAL) for n in NOISES for e in EFFECTS]
    unequal = [(e, "independent", p) for p in UNEQUAL for e in ("karpathy", "parameter golf")]
    worlds = equal + unequal
    jobs = [(*world, rule, sessions, runs) for world in worlds for rule in rules]
    tallies = pool.map(_compare, jobs, chunksize=1)
    print(f"{len(sessions)} sessions from {sessions.start} on, of {runs} runs each\n{HEAD}")
    for i, (effects, noise, programs) in enumerate(worlds):
        print(f"{effects}; noise: {noise}; of programs: {programs}")
        for rule, tally in zip(rules, tallies[i * len(rules) :], strict=False):
            print(tally.row(f"  {rule}"))
    split = len(equal) * len(rules)
    for name, some in (("programs of equal noise", tallies[:split]), ("programs of unequal noise", tallies[split:])):
        print(f"all worlds with {name}")
        for k, rule in enumerate(rules):
            print(sum(some[k :: len(rules)], Tally()).row(f"  {rule}"))


def frontier(pool: multiprocessing.pool.Pool, sessions: range, runs: int, plot: Path | None) -> None:
    worlds = [("karpathy", "independent"), ("karpathy, few gains", "drift"), ("parameter golf", "seed")]
    jobs = [(e, n, v, sessions, runs) for v in VARIANTS for e, n in worlds]
    tallies = pool.map(_vary, jobs, chunksize=1)
    sums = {v: sum(tallies[i * len(worlds) : (i + 1) * len(worlds)], Tally()) for i, v in enumerate(VARIANTS)}
    print(f"\nfrontier over {len(worlds)} worlds")
    print(f"{len(sessions)} sessions from {sessions.start} on, of {runs} runs each\n{HEAD}")
    for name, tally in sums.items():
        print(tally.row(f"  {name}"))
    if plot is not None:
        draw(sums, plot)


def draw(sums: dict[str, Tally], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    x = [100 * t.extra / t.experiments for t in sums.values()]
    y = [100 * t.missed / t.large for t in sums.values()]
    colour = [100 * t.false / t.keeps for t in sums.values()]
    points = axes.scatter(x, y, c=colour, cmap="viridis_r", s=70)
    for name, a, b in zip(sums, x, y, strict=True):
        axes.annotate(name, (a, b), textcoords="offset points", xytext=(6, 4), fontsize=8)
    axes.axhline(15, color="0.7", lw=0.8)
    axes.axvline(30, color="0.7", lw=0.8)
    axes.set_xlabel("extra runs, % of experiments")
    axes.set_ylabel("missed improvements above 2σ, %")
    figure.colorbar(points, label="false keeps, %")
    figure.savefig(path, dpi=130)


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
    """What the first look says about each row, were it the first after a baseline of three runs with this σ."""
    quantiles = (0.05, 0.25, 0.5, 0.75, 0.95)
    for name, sigma, world in (
        ("karpathy-autoresearch-mar8.tsv", 5e-4, "karpathy"),
        ("recipes-pg-lineage-on.tsv", 7e-4, "parameter golf"),
    ):
        gains, names = gains_of_log(folder / name)
        simulated = _observed(world, len(gains))
        print(f"\n{name}: {len(gains)} rows, σ taken as {sigma:g}")
        for who, observed in (("log", [g / sigma for g in gains]), (f"simulated, {world}", simulated)):
            found = " ".join(f"{q:7.2f}" for q in np.quantile(observed, quantiles))
            better = sum(g > 0 for g in observed) / len(observed)
            print(f"  {who:28s} gains in σ, quantiles 5 25 50 75 95%: {found}; better {better:.0%}")
        actions = [_first_look(g / sigma) for g in gains]
        counts = {a.value: actions.count(a) for a in (Action.KEEP, Action.AGAIN, Action.DISCARD)}
        print(f"  strict keeps {sum(g > 0 for g in gains)}; our first look: {counts}")
        for row in ("053", "054"):
            if row in names:
                print(
                    f"  row {row}: {gains[names.index(row)]:.6f} better; first look: {actions[names.index(row)].value}"
                )
    print(f"\nbyte-identical programs, about 1000 of them: {_twins()} kept by the test alone")


def _first_look(gain: float) -> Action:
    noise_data = NoiseData([Sample(0, 0, 1, -1.0), Sample(0, 0, 2, 0.0), Sample(0, 0, 3, 1.0)])
    samples = [Sample(1, 1, 4, gain)]
    now = noise_data.with_samples(samples)
    return look(now.readings(0, samples), now.noise(1, 0) or Noise(1.0, 2), KeepRule()).action


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


def _twins() -> int:
    null = replace(EFFECTS["karpathy"], null=1.0, gain=0.0)
    EFFECTS["identical"] = null
    return sum((ours(World("identical", "independent", s), 53, KeepRule()) for s in range(20)), Tally()).keeps


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first session")
    parser.add_argument("--runs", type=int, default=130)
    parser.add_argument("--frontier", action="store_true")
    parser.add_argument("--sly", action="store_true", help="kept programs that do worse when they run again")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    options = parser.parse_args(arguments)
    sessions = range(options.first, options.first + options.sessions)
    with multiprocessing.Pool(options.processes) as pool:
        if options.frontier:
            frontier(pool, sessions, options.runs, options.plot)
        elif options.sly:
            deceive(pool, sessions, options.runs, options.rules)
        else:
            compare(pool, sessions, options.runs, options.rules)
    if options.logs:
        replay(options.logs)


if __name__ == "__main__":
    main()
