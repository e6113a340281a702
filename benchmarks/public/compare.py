"""Who makes most of a program on other people's problems, at equal numbers of evaluations?

    pip install --no-deps cmaes==0.13.1
    python benchmarks/public/compare.py --dir DIR                                   # what needs no model: about an hour
    python benchmarks/public/compare.py --dir DIR --arms search,hybrid:local:MODEL --config config.yaml
    python benchmarks/public/compare.py --dir DIR --arms openevolve,shinka --venvs VENVS --base-url URL --model MODEL

The plan, as it was written before the first run:

Each arm starts from the problem's program.py and has 40 evaluations, all that it runs among them: the start itself, a
session's three runs of its baseline and its confirmations. A program that fails is an evaluation, too. It ends with
one program, which is then run on five fresh seeds, the same for all arms; the mean is the arm's result, higher is
better, and a run without a score counts 0. Five repeats (seeds); repeat r has the same seed in each arm, so that
differences are taken pair by pair; ± is half a 95% interval of Student's t over repeats. Beside it: the best score
that any of an arm's evaluations had, which is what the published figures are; the evaluations, failures, seconds by
the clock and tokens.

start: the program as it is. search: a session of the daemon, what is confirmed when it ends. tpe, cmaes, random:
samplers of Optuna with their defaults on the constants and axes that `search` has, the start as first trial, the best
trial; for cmaes a word is a number. Any other policy of the daemon (`hybrid:local:MODEL`, `local:MODEL`, …) is an arm
by its name, as `search` is. openevolve, shinka: see peers.py; the program that was best. Beforehand nothing was tuned
on these problems but the programs' step counts, for speed, and their first constants, so that each is worse than the
best of 40 random ones.

What is claimed if it holds: `search` is better than random on the mean over problems. What may well not hold: that it
is better than TPE with so few evaluations, of which a confirmation takes a tenth. (The plan did not say on which scale
a mean is taken; it is the share of what lies between the start and the best score known.)

Added before a model was first asked: hybrid:local:MODEL (Qwen2.5-Coder-0.5B, `prompt: brief`, a JSON schema) beside
hybrid:local:random, which has the same menu and draws its answer (../random_model.py), on all problems, five repeats,
differences to `search` pair by pair. Claimed if it holds: the model is better than the drawn answers. What may well not
hold: that either is better than `search` alone.

What DIR has is not made again. A session that made more runs than it has is made again with fewer experiments (how many
confirmations take is not known before); its seconds are those of all tries, its tokens those of the last.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
from policies import SIGNALLED, TAG, environment, interval, prepare, show
from research import FIRST_FRESH_SEED
from scoring import PROBLEMS, TIMEOUT, Scored, score

from autoresearchd.app.project import Project
from autoresearchd.app.start import StartOptions, start
from autoresearchd.config import load_task
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.experiment import Limits
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.policy.search.find_constants import constants, movable, new_files

BEST = {
    "circle_packing": 2.63586, "distance_ratio": 0.27854, "function_min": 1.5187, "heilbronn": 0.0365, "k_module": 4.0,
}  # fmt: skip
"""The best score known: what is between the start and it can be gained."""
PEERS = ("openevolve", "shinka")
FRESH = 5
_BASELINE, _CONFIRMING = 3, 4
"""Runs of a session's baseline, and those that it is thought to need for its confirmations."""


# ---------------------------------------------------------------------- the arms
@dataclass
class Bench:
    """What an arm has. seed: of all its runs, and of its own chance. course: the score of each evaluation."""

    problem: Path
    seed: int
    evaluations: int
    folder: Path
    options: argparse.Namespace
    course: list[float | None] = field(default_factory=list)
    best: str = ""
    tokens: int = 0

    @property
    def start(self) -> str:
        """The program as it is."""
        return (self.problem / "program.py").read_text()

    def evaluate(self, program: str) -> Scored:
        """Run a program; it is the best where its score is higher than all before it."""
        found = score(program, self.problem, self.seed, TIMEOUT)
        before = max((s for s in self.course if s is not None), default=-math.inf)
        if found.score is not None and found.score > before:
            self.best = program
        self.course.append(found.score)
        return found


Arm = Callable[[Bench], str]
"""Gives the program that an arm ends with."""


def unedited(bench: Bench) -> str:
    """The start."""
    bench.evaluate(bench.start)
    return bench.start


def session(policy: str, bench: Bench) -> str:
    """What is confirmed when a session of the daemon ends that has made so many runs at most."""
    experiments, project = bench.evaluations - _BASELINE - _CONFIRMING, bench.folder / "project"
    config = bench.options.config.resolve() if bench.options.config else "/dev/null"
    while True:
        prepare(bench.folder, argparse.Namespace(task=bench.problem))
        limits = Limits(max_experiments=experiments)
        asked = StartOptions(None, project, tag=TAG, policy=policy, limits=limits, foreground=True, seed=bench.seed)
        # A policy with nothing left to propose, or a model of useless answers, ends its session: a result, too.
        code = 0
        with environment(AUTORESEARCHD_CONFIG=str(config)), suppress(AutoresearchdError):
            code = start(asked)
        if code > SIGNALLED:
            raise SystemExit("interrupted; the same command makes what is missing")
        with Project.at(project).open_store() as store:
            found = store.session(TAG)
            runs = sorted((r for e in store.experiments(found.id) for r in e.runs), key=lambda r: r.id)
            totals = store.totals(found.id)
        if len(runs) <= bench.evaluations:
            break
        experiments -= len(runs) - bench.evaluations
    bench.course, bench.tokens = [run.value for run in runs], totals.tokens_in + totals.tokens_out
    words = ["git", "show", f"{found.confirmed or found.base_commit}:program.py"]
    return subprocess.run(words, cwd=project, check=True, capture_output=True, text=True).stdout


def optuna_arm(name: str, bench: Bench) -> str:
    """One of Optuna's samplers on the constants that `search` finds."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    samplers, kinds = optuna.samplers, optuna.distributions
    kind = {"tpe": samplers.TPESampler, "cmaes": samplers.CmaEsSampler, "random": samplers.RandomSampler}[name]
    code = {"program.py": bench.start}
    space = [p for p in constants(load_task(bench.problem), code).values() if movable(p)]
    words = name != "cmaes"  # it draws what is no number by chance: it is given a number for each word
    axes: dict[str, Any] = {p.name: kinds.FloatDistribution(*p.bounds) for p in space if p.numeric}
    coded = [p for p in space if not p.numeric]
    axes |= {
        p.name: kinds.CategoricalDistribution(p.range.choices)
        if words
        else kinds.FloatDistribution(-0.5, len(p.range.choices) - 0.5)
        for p in coded
    }
    first = {p.name: p.home if p.numeric else p.value for p in space}
    first |= {} if words else {p.name: float(p.range.choices.index(p.value)) for p in coded}
    study = optuna.create_study(direction="maximize", sampler=kind(seed=bench.seed))
    study.enqueue_trial(first)
    for number in range(bench.evaluations):
        trial = study.ask(axes)
        drawn = trial.params
        values = [
            (p, p.at(drawn[p.name]) if p.numeric else drawn[p.name] if words else _word(p.range.choices, drawn[p.name]))
            for p in space
        ]
        moves = [(p, value) for p, value in values if number and value != p.value]
        found = bench.evaluate(new_files(code, moves)["program.py"] if moves else bench.start)
        failed = optuna.trial.TrialState.FAIL if found.score is None else None
        study.tell(trial, found.score, state=failed)
    return bench.best or bench.start


def _word(choices: tuple[Any, ...], place: float) -> Any:
    return choices[min(max(round(place), 0), len(choices) - 1)]


def peer(name: str, bench: Bench) -> str:
    """Another tool, which has its evaluations from ``bench``."""
    from peers import run

    o = bench.options
    shutil.rmtree(bench.folder, ignore_errors=True)
    found = run(
        name, bench.problem, bench.evaluations, bench.seed, o.base_url, o.model, bench.folder, o.max_tokens,
        venvs=o.venvs, score=lambda program, *_, **__: bench.evaluate(program),
    )  # fmt: skip
    bench.tokens = found.tokens_in + found.tokens_out
    return bench.best or bench.start


def arm_of(name: str) -> Arm:
    """An arm by its name; SystemExit where there is none."""
    if name == "start":
        return unedited
    if name in ("random", "tpe", "cmaes"):
        return partial(optuna_arm, name)
    if name in PEERS:
        return partial(peer, name)
    try:
        return partial(session, str(parse_spec(name)))
    except AutoresearchdError as error:
        raise SystemExit(f"no arm {name!r}: {error}") from error


# ---------------------------------------------------------------------- one cell
@dataclass(frozen=True)
class Cell:
    """What an arm came to in a repeat. fresh: scores of its program on fresh seeds; program, course: of ``Bench``."""

    problem: str
    fresh: list[float]
    course: list[float | None]
    seconds: float
    tokens: int
    program: str

    @property
    def seen(self) -> float:
        """The best score of any evaluation."""
        return max((s for s in self.course if s is not None), default=0.0)


def cell_of(problem: Path, arm: str, seed: int, options: argparse.Namespace) -> Cell:
    """Read, or made; what an interrupted run left is made anew."""
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in arm)[:80]
    folder = options.dir.resolve() / f"{problem.name}--{name}--{options.evaluations}--{seed}"
    done, stamp = folder.with_name(f"{folder.name}.json"), _stamp(problem)
    if done.exists():
        try:
            found = Cell(**json.loads(done.read_text()))
        except (ValueError, TypeError) as error:
            raise SystemExit(f"{done} cannot be read: {error}; delete it, and it is made again") from None
        if found.problem != stamp:
            raise SystemExit(f"{done} is of another version of {problem.name}: name another --dir, or delete it")
        return found
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    bench = Bench(problem, seed, options.evaluations, folder, options)
    began = time.monotonic()
    program = arm_of(arm)(bench)
    seconds = time.monotonic() - began
    fresh = [score(program, problem, FIRST_FRESH_SEED + i, TIMEOUT).score or 0.0 for i in range(FRESH)]
    cell = Cell(stamp, fresh, bench.course, round(seconds, 1), bench.tokens, program)
    part = done.with_suffix(".part")
    part.write_text(json.dumps(asdict(cell)))
    part.replace(done)
    shutil.rmtree(folder, ignore_errors=True)
    return cell


def _stamp(problem: Path) -> str:
    """What a score depends on, in short."""
    found = hashlib.sha256()
    for path in sorted(problem.iterdir()):
        if path.is_file() and path.suffix != ".md":
            found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


# ---------------------------------------------------------------------- what came of it
def table(results: Mapping[str, Mapping[str, Mapping[int, Cell]]], first: str) -> None:
    """Print all rows: problem → arm → seed → cell; differences are those of an arm to the first one."""
    print(f"\n| problem | arm | n | on fresh seeds | less {first} | best seen | the very best | evaluations | failed "
          "| seconds | tokens |")  # fmt: skip
    print("|---" * 11 + "|")
    for problem, arms in results.items():
        for arm, cells in arms.items():
            means = {seed: statistics.fmean(cell.fresh) for seed, cell in cells.items()}
            pairs = [means[s] - statistics.fmean(arms[first][s].fresh) for s in means if s in arms.get(first, {})]
            than = "" if arm == first or not pairs else show(*interval(pairs))
            seen, every = [cell.seen for cell in cells.values()], list(cells.values())
            counts = [len(cell.course) for cell in every]
            failed = sum(s is None for cell in every for s in cell.course)
            print(f"| {problem} | {arm} | {len(every)} | {show(*interval(list(means.values())))} | {than} "
                  f"| {show(*interval(seen))} | {max(seen):.4f} | {statistics.fmean(counts):.1f} | {failed} "
                  f"| {statistics.fmean(c.seconds for c in every):.0f} | {sum(c.tokens for c in every)} |")  # fmt: skip
    goal = BEST["k_module"]
    for arm, cells in results.get("k_module", {}).items():
        reached = [cell.course.index(goal) + 1 for cell in cells.values() if goal in cell.course]
        print(f"k_module, {arm}: all right in {len(reached)} of {len(cells)}, after {sorted(reached)} evaluations")


def shares(results: Mapping[str, Mapping[str, Mapping[int, Cell]]], first: str) -> None:
    """Print each arm's mean share of what can be gained, over the problems; a repeat's mean is one observation."""
    plain = {name: statistics.fmean(arms["start"][1].fresh) for name, arms in results.items()}
    base: dict[int, float] = {}
    for arm in dict.fromkeys(arm for arms in results.values() for arm in arms):
        found = {
            seed: statistics.fmean(
                (statistics.fmean(arms[arm][seed].fresh) - plain[name]) / (BEST[name] - plain[name])
                for name, arms in results.items()
            )
            for seed in results[next(iter(results))][arm]
        }
        base = found if arm == first else base
        than = (
            "" if arm in ("start", first) else f", less {first} {show(*interval([found[s] - base[s] for s in found]))}"
        )
        print(f"share of what can be gained, {arm}: {show(*interval(list(found.values())))}{than}")


def main() -> None:
    """Make what is missing, and tell what came of it."""
    problems = sorted(p.name for p in PROBLEMS.iterdir() if (p / "task.yaml").exists())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, required=True, help="where results go")
    parser.add_argument("--problems", default=",".join(problems))
    parser.add_argument("--arms", default="start,random,search,tpe,cmaes")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=40)
    parser.add_argument("--config", type=Path, help="a config.yaml for sessions of the daemon")
    parser.add_argument("--venvs", type=Path, help="where peers.py has installed the peers")
    parser.add_argument("--base-url", help="of a model's server, for the peers")
    parser.add_argument("--model", help="its name, for the peers")
    parser.add_argument("--max-tokens", type=int, default=1024, help="of an answer, for the peers")
    o = parser.parse_args()
    arms, names = o.arms.split(","), o.problems.split(",")
    if unknown := set(names) - set(problems):
        parser.error(f"no problem {', '.join(sorted(unknown))}: there are {', '.join(problems)}")
    if o.repeats < 1 or o.evaluations <= _BASELINE + _CONFIRMING:
        parser.error(f"at least one repeat, and more than {_BASELINE + _CONFIRMING} evaluations")
    for arm in arms:
        arm_of(arm)
        if arm in PEERS and not (o.base_url and o.model and o.venvs):
            parser.error(f"{arm} needs --base-url, --model and --venvs")
    results: dict[str, dict[str, dict[int, Cell]]] = {name: {arm: {} for arm in arms} for name in names}
    for seed in range(1, o.repeats + 1):  # repeat by repeat, so that a table of what there is can be had at any time
        for name in names:
            for arm in arms:
                try:
                    cell = cell_of(PROBLEMS / name, arm, seed, o)
                except AutoresearchdError as error:
                    raise SystemExit(f"{name} {arm} {seed}: {error}") from error
                results[name][arm][seed] = cell
                told = f"{statistics.fmean(cell.fresh):.4f}, best seen {cell.seen:.4f}, {len(cell.course)} evaluations"
                print(f"{name} {arm} {seed}: {told} in {cell.seconds:.0f} s", file=sys.stderr, flush=True)
    first = "random" if "random" in arms else arms[0]
    table(results, first)
    if {"start", first} <= set(arms) and first != "start":
        shares(results, first)


if __name__ == "__main__":
    main()
