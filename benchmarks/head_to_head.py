"""The daemon against Optuna and against keeping every better run, at equal time on bundled tasks.

    python benchmarks/head_to_head.py --dir DIR [--tasks terrain] [--repeats 5] [--jobs 2]   # all of it: hours

Each arm has the same minutes for a task, three runs of the baseline among them, and runs programs as the daemon does:
the same executor, evaluation, budget and seed. Set-up does not count. Each chooses a program:

autoresearchd: what a session with `search` has confirmed. optuna: the best trial of TPE over the constants and ranges
that `search` finds, on the same axes, with the task's constraints and the baseline as the first trial; where the task
has early abort, MedianPruner sees the losses that the daemon's sees, at each twentieth of the budget. strict: the
proposals of `search`, each better run kept, the last one.

Afterwards what an arm ends with and the baseline are run on five fresh seeds in turn, and once more what it had chosen
in between (of more than two such programs, two of them). What fails there, or breaks a constraint on average,
counts as the baseline. A gain is told in per cent of that baseline. Medians and quartiles are over repeats; differences
are taken repeat by repeat, with a bootstrap interval of their mean at 95%. What benchmarks/head_to_head.json has is not
made again, repeats that an arm lacks are left out; DIR gets head_to_head.png.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from policies import SIGNALLED, TAG, environment, prepare
from research import FIRST_FRESH_SEED, run_again
from tables import Strict

from autoresearchd.app.compose import laboratory
from autoresearchd.app.project import Project
from autoresearchd.app.start import StartOptions, resume, start
from autoresearchd.config import Overrides, load_task
from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.experiment import Limits, Measurement
from autoresearchd.domain.labels import Label, Outcome, Status
from autoresearchd.domain.ports import RunHandle
from autoresearchd.domain.task import Task
from autoresearchd.evaluator.keep.decide import broken_constraint
from autoresearchd.loop.context import Context
from autoresearchd.loop.early_abort import TRAINING_LOG, LogFollower
from autoresearchd.policy.search.find_constants import constants, movable, new_files
from autoresearchd.resources import bundled
from autoresearchd.store.repository import SqlStore

TASKS: Mapping[str, tuple[float, float | None]] = {
    "terrain": (2.5, None), "sft-classifier": (6, None), "cifar-speedrun": (10, None), "autoresearch": (8, 5),
}  # fmt: skip
"""With the minutes of an arm, for thirty runs or so, and the seconds of a run where not the task's own."""
DATA = Path(__file__).with_suffix(".json")
ARMS = {"autoresearchd": "#2ca05a", "optuna": "#d64545", "strict": "#4a6fa5"}
FRESH, BETWEEN, PARTS = 5, 2, 20
Course = list[tuple[float, str]]  # seconds, and the commit that was chosen then


# ---------------------------------------------------------------------- the arms
@dataclass
class Bench:
    """A task for arms that are not the daemon. first: values of the baseline; seed: of all runs; ends: on the clock."""

    lab: Context
    base: str
    first: Sequence[float]
    seed: int
    ends: float
    course: Course = field(default_factory=list)
    tried: int = 0

    def left(self) -> float:
        """Seconds."""
        return self.ends - time.monotonic()

    def run(self, files: Mapping[str, str], watch: Callable[[RunHandle], None] = lambda _: None) -> Measurement:
        """Run a program."""
        self.tried += 1
        number, now = 1000 + self.tried, datetime.now(UTC)
        self.commit = self.lab.workspace.commit(
            number=number, parent=self.base, files=files, message="a program\n", when=now
        )
        return run_again(self.lab, self.commit, self.seed, self.lab.site.runs / f"own-{self.tried}", watch)


def holds(task: Task, found: Measurement) -> bool:
    """Whether a run ended well and within the constraints."""
    return found.value is not None and broken_constraint(task, found.metrics, {})[0] is Label.NONE


def optuna(bench: Bench, code: Mapping[str, str], seed: int) -> None:
    """TPE, and MedianPruner where the task has early abort."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task, ended, kinds = bench.lab.task, optuna.trial.TrialState, optuna.distributions
    space, bounds = [p for p in constants(task, code).values() if movable(p)], task.scoring.constraints
    axes: dict[str, Any] = {p.name: kinds.CategoricalDistribution(p.range.choices) for p in space if not p.numeric}
    axes |= {p.name: kinds.FloatDistribution(*p.bounds) for p in space if p.numeric}
    home = {p.name: min(max(p.home, p.bounds[0]), p.bounds[1]) if p.numeric else p.value for p in space}
    sampler, pruner = optuna.samplers.TPESampler(seed=seed), optuna.pruners.MedianPruner()
    study = optuna.create_study(direction=task.metric.direction.value, sampler=sampler, pruner=pruner)
    best, within = fmean(bench.first), {c.metric: -1.0 for c in bounds}
    first = optuna.trial.create_trial(params=home, distributions=axes, value=best, constraints=within)
    study.add_trial(first)

    def look(handle: RunHandle) -> None:
        """Report the losses; end the run where the trial is to be pruned."""
        budget, told, began = task.execution.budget.training, 0, time.monotonic()
        follower = LogFollower(handle.run_dir / TRAINING_LOG, task.curve.pattern, budget)
        while handle.wait(0.1) is None:
            follower.read()
            curve = list(zip(*follower.curve(min(1.0, (time.monotonic() - began) / budget)), strict=True))
            while told + 1 < PARTS and (after := [y for x, y in curve if x >= (told + 1) / PARTS]):
                told += 1
                trial.report(after[0], told)
            if told and trial.should_prune():
                handle.kill()
                break
        follower.close()

    while bench.left() > 0:
        trial = study.ask(axes)
        moves = [(p, p.at(trial.params[p.name]) if p.numeric else trial.params[p.name]) for p in space]
        files = new_files(code, [(p, value) for p, value in moves if value != p.value])
        found = bench.run(files, look if task.curve.abort else lambda _: None)
        if bench.left() <= 0:
            return
        for c in bounds:  # how far beyond its bound; of a run that was ended nobody knows
            value = found.metrics.get(c.metric)
            far = [sign * (value - bound) for bound, sign in ((c.min, -1), (c.max, 1)) if None not in (value, bound)]
            trial.set_constraint(c.metric, max(far, default=-1.0))
        failed = ended.PRUNED if found.label is Label.INTERRUPTED else ended.FAIL
        study.tell(trial, found.value, state=None if found.value is not None else failed)
        if found.value is not None and holds(task, found) and task.metric.improvement(found.value, best) > 0:
            best = found.value
            bench.course.append((bench.left(), bench.commit))


def strict(bench: Bench, code: Mapping[str, str], seed: int) -> None:
    """Each better run is kept."""
    way = Strict(bench.lab.task, code, bench.first, seed)
    while bench.left() > 0:
        try:
            found = bench.run(way.ask())
        except PolicyError:  # all has been tried
            return
        label = Label.NONE if holds(bench.lab.task, found) else Label.CONSTRAINT
        if bench.left() > 0 and way.tell(found.value, label):
            bench.course.append((bench.left(), bench.commit))


def daemon(folder: Path, store: SqlStore, spent: float, seconds: float) -> tuple[Course, Course, int, list[str]]:
    """What was confirmed and what was the tip, how many programs a session has tried, and what confirmations said."""
    begun, more = datetime.now(UTC), store.session(TAG).active_seconds + seconds - spent
    if resume(folder, TAG, foreground=True, limits=Limits(max_experiments=10**6, max_seconds=more)) > SIGNALLED:
        raise SystemExit("interrupted; the same command makes what is missing")
    tried = {e.number: e for e in store.experiments(store.session(TAG).id) if e.decision}
    tests = [(c, c.verdict.outcome) for c in store.confirmations(store.session(TAG).id) if c.verdict]
    won = [(c.finished_at, tried[c.experiment]) for c, outcome in tests if outcome is Outcome.CONFIRMED]
    tips = [(e.finished_at, e) for e in tried.values() if e.number and e.decision.status is Status.KEEP]
    tips += [(c.finished_at, tried[c.against]) for c, outcome in tests if outcome is Outcome.FELL]
    timed = [[(spent + (at - begun).total_seconds(), e.commit) for at, e in found] for found in (won, tips)]
    said = [f"{c.verdict.outcome}: {c.verdict.reason}" for c in store.confirmations(store.session(TAG).id) if c.verdict]
    return timed[0], sorted(timed[1]), len(tried) - 1, said


# ---------------------------------------------------------------------- one cell
def make(name: str, arm: str, repeat: int, folder: Path) -> dict[str, Any]:
    """Give an arm its time, and run again what it has chosen."""
    shutil.rmtree(folder, ignore_errors=True)  # of a try that was interrupted
    minutes, budget = TASKS[name]
    seconds = 60 * minutes
    prepare(folder, argparse.Namespace(task=bundled("templates") / name))
    project, tip = Project.at(folder / "project"), Course()
    with environment(AUTORESEARCHD_CONFIG="/dev/null"):
        limits, over = Limits(max_experiments=0), Overrides(budget)
        asked = StartOptions(None, project.root, overrides=over, limits=limits, foreground=True, seed=repeat, tag=TAG)
        start(asked)
        with project.open_store() as store:
            session = store.session(TAG)
            lab = laboratory(project, session, store, project.root, [])
            base, runs, said = session.base_commit, store.experiments(session.id)[0].runs, list[str]()
            spent = sum(run.duration_s for run in runs)
            if arm == "autoresearchd":
                course, tip, tried, said = daemon(project.root, store, spent, seconds)
            else:
                first, ends = [run.value or math.nan for run in runs], time.monotonic() + seconds - spent
                bench = Bench(lab, base, first, runs[0].seed, ends)
                code = {path: lab.workspace.read(base, path) for path in lab.task.editable}
                {"optuna": optuna, "strict": strict}[arm](bench, code, repeat)
                course, tried = [(seconds - left, commit) for left, commit in bench.course], bench.tried
            found = again(lab, base, spread(course), spread(tip))
    shutil.rmtree(folder)
    return {**found, "tried": tried, "confirmations": said}


def spread(course: Course) -> Course:
    """The last, and of those before it so many as are run again."""
    before = course[:-1]
    chosen = {round(i) for i in np.linspace(0, len(before) - 1, min(len(before), BETWEEN))}
    return [at for i, at in enumerate(before) if i in chosen] + course[-1:]


def again(lab: Context, base: str, course: Course, tip: Course) -> dict[str, Any]:
    """Gains over the baseline, in per cent, of all that was chosen, on fresh seeds."""
    last, metric = course[-1][1] if course else base, lab.task.metric
    plan = [(commit, i) for i in range(FRESH) for commit in dict.fromkeys((base, last))]
    plan += [(commit, 0) for commit in dict.fromkeys(c for _, c in course + tip) if commit not in (base, last)]
    runs: dict[str, list[Measurement]] = {}
    for commit, i in plan:
        place = lab.site.runs / f"again-{commit[:12]}-{i}"
        runs.setdefault(commit, []).append(run_again(lab, commit, FIRST_FRESH_SEED + i, place))
    means: dict[str, Measurement] = {}
    for commit, found in runs.items():
        names, values = (
            [c.metric for c in lab.task.scoring.constraints],
            [m.value for m in found if m.value is not None],
        )
        metrics = {name: fmean(m.metrics.get(name, math.nan) for m in found) for name in names}
        means[commit] = Measurement(Label.NONE, fmean(values) if len(values) == len(found) else None, metrics)
    held, plain = {c: holds(lab.task, m) for c, m in means.items()}, means[base].value
    if plain is None:
        raise SystemExit("the baseline failed on a fresh seed")
    of = {
        c: 100 * metric.improvement(plain if m.value is None else m.value, plain) / abs(plain) * held[c]
        for c, m in means.items()
    }
    timed = {
        key: [(round(at), round(of[c], 3)) for at, c in found] for key, found in (("course", course), ("tip", tip))
    }
    return {"baseline": plain, "end": means[last].value, "gain": of[last], "held": held[last], **timed}


# ---------------------------------------------------------------------- what came of it
def tell(name: str, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """The rows of a task."""
    chance, ours = np.random.default_rng(0), np.array([r["gain"] for r in results["autoresearchd"]])
    for arm, found in results.items():
        gains = np.array([r["gain"] for r in found])
        low, middle, high = np.quantile(gains, (0.25, 0.5, 0.75))
        ends = np.quantile(chance.choice(ours - gains, (10_000, len(gains))).mean(axis=1), (0.025, 0.975))
        than = "" if arm == "autoresearchd" else f"{(ours - gains).mean():+.2f} [{ends[0]:+.2f}, {ends[1]:+.2f}]"
        programs, plain, end = (median(r[key] or math.nan for r in found) for key in ("tried", "baseline", "end"))
        held = f"{sum(r['held'] for r in found)} of {len(found)}"
        values = f"{plain:.4f} | {end:.4f} | {middle:+.2f} [{low:+.2f}, {high:+.2f}]"
        print(f"| {name} | {arm} | {len(found)} | {programs:g} | {values} | {than} | {held} |", flush=True)


def plot(results: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], target: Path) -> None:
    """Medians of what each arm had chosen, with their quartiles as bands, over time; the tip as a thin line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = math.ceil(len(results) / 2)
    figure = Figure(figsize=(12, 1 + 3.5 * rows), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for i, (name, arms) in enumerate(results.items(), 1):
        axes, grid = figure.add_subplot(rows, min(2, len(results)), i), np.linspace(0, 60 * TASKS[name][0], 400)
        for arm, key, label in (
            ("autoresearchd", "course", "autoresearchd: confirmed"),
            ("autoresearchd", "tip", "autoresearchd: tip, believed"),
            ("optuna", "course", "Optuna TPE: best trial"),
            ("strict", "course", "every better run kept"),
        ):
            lines = [[next((g for at, g in reversed(r[key]) if at <= s), 0.0) for s in grid] for r in arms[arm]]
            low, middle, high = np.quantile(lines, (0.25, 0.5, 0.75), axis=0)
            width, style = (0.9, "--") if key == "tip" else (2.2, "-")
            axes.step(grid / 60, middle, where="post", color=ARMS[arm], lw=width, ls=style, label=label)
            if key == "course":
                axes.fill_between(grid / 60, low, high, step="post", color=ARMS[arm], alpha=0.15, lw=0)
        metric = load_task(bundled("templates") / name).metric.name
        axes.set(title=name, xlabel="minutes", ylabel=f"{metric}: better than the baseline by, %")
        axes.grid(visible=True, color="#ececec", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(target)


def main() -> None:
    """Make what is missing, and tell what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="where sessions run, and where the picture goes")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="cells at once; each wants a core of its own")
    o = parser.parse_args()
    arms, names = list(ARMS), o.tasks.split(",")
    # Arms of one repeat follow each other, in another order each time: how busy the machine is hits all alike.
    cells = [(n, arms[(r + i) % 3], r) for r in range(o.repeats) for n in names for i in range(3)]
    done = json.loads(DATA.read_text()) if DATA.exists() else {}
    with ProcessPoolExecutor(o.jobs, mp_context=get_context("spawn")) as pool:
        names_of = {c: "--".join(map(str, (*c, TASKS[c[0]][0]))) for c in cells}
        made = {pool.submit(make, *c, o.dir.resolve() / n): n for c, n in names_of.items() if n not in done}
        for future in as_completed(made):
            if error := future.exception():
                print(f"{made[future]} failed, and the same command makes it again: {error}", flush=True)
                continue
            done[made[future]] = future.result()
            DATA.write_text(json.dumps(done, indent=None, sort_keys=True).replace('}, "', '},\n"') + "\n")
    whole = [(n, r) for n in names for r in range(o.repeats) if all(names_of[n, a, r] in done for a in arms)]
    found = {n: {a: [done[names_of[n, a, r]] for m, r in whole if m == n] for a in arms} for n in dict(whole)}
    print("\n| task | arm | n | programs | baseline | end | gain, % | autoresearchd's minus it, points | held |")
    print("|---" * 9 + "|")
    for name, results in found.items():
        tell(name, results)
    plot(found, o.dir / "head_to_head.png")


if __name__ == "__main__":
    main()
