"""Policies compared on one task: the same budget and seeds, and the best of each session measured again on fresh seeds.

    python benchmarks/policies.py --policies random,search --repeats 10 --dir DIR
    python benchmarks/policies.py --task autoresearch --budget 15s --policies random,search,litellm:MODEL \
        --variants plain,single,roles,bandit,puct --dir DIR

Without --task it is benchmarks/tasks/quadratic, whose runs take a tenth of a second. A cell is one session: a policy, a
variant (`--list` explains them), a repeat. Repeat r has the same seed in every cell, so differences between policies
are taken pair by pair. Each cell has a folder below --dir: one that is finished is not run again, one that was
interrupted goes on where it was; one that fails is told and left out, so that the others do not wait for anybody.
Intervals are Student's t at 95%, over repeats. `--plan` runs nothing and tells what there is to do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from research import FIRST_FRESH_SEED, measure_again
from scipy.stats import t as student

from autoresearchd.app.compose import laboratory
from autoresearchd.app.project import Project
from autoresearchd.app.start import StartOptions, resume, start
from autoresearchd.config import Overrides, load_task
from autoresearchd.config.settings import ModelSettings
from autoresearchd.domain.errors import AutoresearchdError
from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.quantities import parse_duration
from autoresearchd.domain.task import Metric
from autoresearchd.policy.policy_names import parse_spec
from autoresearchd.resources import bundled
from autoresearchd.store.repository import SqlStore

TAG = "bench"
SIGNALLED = 128
CHEAP = Path(__file__).parent / "tasks" / "quadratic"
USUAL: Mapping[str, Any] = {"roles": False, "parents": "incumbent", "turns": "round_robin", "group": 1}


@dataclass(frozen=True)
class Variant:
    """A way of asking. options: of ``start``; settings: keys of config.yaml; models: whether it is for models only."""

    words: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: bool = True


VARIANTS = {
    "plain": Variant("in context with feedback, no roles, on the incumbent", models=False),
    "single": Variant(
        "single turn: no history, no feedback, no second try",
        settings={"feedback": False, "reasks": 0, "repairs": 0},
    ),
    "roles": Variant("roles in turn", {"roles": True}),
    "roles-alone": Variant(
        "roles in turn, none of which is shown what was tried", {"roles": True}, {"feedback": False}
    ),
    "bandit": Variant("turns to roles that pay", {"roles": True, "turns": "bandit"}),
    "puct": Variant("parents chosen from the tree of experiments", {"parents": "puct"}, models=False),
    "roles-puct": Variant(
        "roles that pay, parents from the tree", {"roles": True, "turns": "bandit", "parents": "puct"}
    ),
    "group": Variant("four proposals from one frozen state", {"group": 4}, models=False),
}


@dataclass(frozen=True)
class Cell:
    """One session of the comparison."""

    policy: str
    variant: str
    repeat: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', self.policy)[:80]}--{self.variant}--{self.repeat}"


@dataclass(frozen=True)
class Result:
    """What a cell came to. baseline, best: mean over the fresh seeds; session_best: as the session itself saw it."""

    baseline: float
    best: float
    session_best: float
    experiments: int
    keeps: int
    crashes: int
    duplicates: int
    usd: float | None
    tokens: int
    minutes: float
    best_so_far: list[float]


class Unfinished(Exception):
    """A cell whose session ended before all of its experiments were made."""


# ---------------------------------------------------------------------- one cell
def run_cell(cell: Cell, options: argparse.Namespace) -> Result:
    """The result of a cell: read, gone on with, or made."""
    folder = (options.dir / cell.name).resolve()
    asked = conditions(cell, options)
    done, plan = folder / "result.json", folder / "cell.json"
    if plan.exists() and json.loads(plan.read_text()) != asked:
        raise SystemExit(f"{folder} was made under other conditions (see cell.json): name another --dir, or delete it")
    if done.exists():
        return Result(**json.loads(done.read_text()))
    if not plan.exists():
        prepare(folder, options)
        (folder / "config.yaml").write_text(yaml.safe_dump(asked["settings"]))
        plan.write_text(json.dumps(asked, indent=1))
    with environment(AUTORESEARCHD_CONFIG=str(folder / "config.yaml")):
        try:
            session(folder / "project", cell, options)
        except AutoresearchdError:
            # A model none of whose answers could be used ends its session with an error: that is a result as well.
            if not begun(folder / "project") or made(folder / "project") < options.experiments:
                raise
        result = read(folder / "project", options)
    done.write_text(json.dumps(asdict(result), indent=1))
    return result


def conditions(cell: Cell, options: argparse.Namespace) -> dict[str, Any]:
    """All that decides what a cell gives."""
    base = yaml.safe_load(options.config.read_text()) or {} if options.config else {}
    return {
        "task": str(options.task),
        "policy": cell.policy,
        "options": {**USUAL, **VARIANTS[cell.variant].options},
        "settings": {**base, **VARIANTS[cell.variant].settings},
        "experiments": options.experiments,
        "budget": options.budget,
        "max_usd": options.max_usd,
        "seed": options.seed + cell.repeat,
        "again": options.again,
    }


def prepare(folder: Path, options: argparse.Namespace) -> None:
    """The task in a repository of its own."""
    shutil.rmtree(folder, ignore_errors=True)
    project = folder / "project"
    shutil.copytree(options.task, project, ignore=shutil.ignore_patterns("__pycache__", ".git", ".autoresearchd"))
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """With these variables set."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def session(project: Path, cell: Cell, options: argparse.Namespace) -> None:
    """Run the session, or go on with it."""
    limits = Limits(max_experiments=options.experiments, max_usd=options.max_usd)
    more = {**USUAL, **VARIANTS[cell.variant].options}
    roles, budget = more.pop("roles"), None if options.budget is None else parse_duration(options.budget)
    if begun(project):
        code = resume(project, TAG, foreground=True)
    else:
        code = start(
            StartOptions(
                None,
                project,
                tag=TAG,
                policy=cell.policy,
                overrides=Overrides(budget, **more),
                limits=limits,
                foreground=True,
                seed=options.seed + cell.repeat,
                roles=roles,
            )
        )
    if code > SIGNALLED:
        raise SystemExit(f"{cell.name} was interrupted; the same command goes on with it")


def begun(project: Path) -> bool:
    """Whether there is a session already."""
    if not Project.at(project).database.exists():
        return False
    store = Project.at(project).open_store()
    try:
        return any(s.tag == TAG for s in store.sessions())
    finally:
        store.close()


def made(project: Path) -> int:
    """How many experiments the session has decided, the baseline aside."""
    store = Project.at(project).open_store()
    try:
        return sum(1 for e in store.experiments(store.session(TAG).id) if e.number and e.decision)
    finally:
        store.close()


def read(folder: Path, options: argparse.Namespace) -> Result:
    """What a finished session came to."""
    project = Project.at(folder)
    store = project.open_store()
    try:
        found = store.session(TAG)
        decided = [e for e in store.experiments(found.id) if e.decision]
        tried = [e for e in decided if e.number]
        totals = store.totals(found.id)
        capped = options.max_usd is not None and totals.usd >= options.max_usd
        if len(tried) < options.experiments and not capped:
            raise Unfinished(f"ended after {len(tried)} experiments; the same command goes on with it")
        baseline, best = measured_again(project, store, options.again)
        course = so_far(decided)
        known = all(e.proposal is None or e.proposal.cost.usd is not None for e in tried)
        return Result(
            baseline=baseline,
            best=best,
            session_best=course[-1],
            experiments=len(tried),
            keeps=sum(e.decision is not None and e.decision.status is Status.KEEP for e in tried),
            crashes=sum(e.decision is not None and e.decision.status is Status.CRASH for e in tried),
            duplicates=sum(e.decision is not None and e.decision.label is Label.DUPLICATE for e in tried),
            usd=totals.usd if known else None,
            tokens=totals.tokens_in + totals.tokens_out,
            minutes=found.active_seconds / 60,
            best_so_far=course,
        )
    finally:
        store.close()


def so_far(decided: Sequence[Experiment]) -> list[float]:
    """Value of the incumbent after each experiment, the baseline first."""
    course: list[float] = []
    for e in decided:
        kept = e.decision is not None and e.decision.status is Status.KEEP and e.decision.value is not None
        course.append(e.decision.value if kept and e.decision and e.decision.value is not None else course[-1])
    return course


def measured_again(project: Project, store: SqlStore, count: int) -> tuple[float, float]:
    """(baseline, best): means over fresh seeds, the same in every cell."""
    found = store.session(TAG)
    lab = laboratory(project, found, store, project.root, [])
    programs = {"baseline": found.base_commit, "best": found.confirmed}
    values: dict[str, list[float]] = {name: [] for name in programs}
    again = lab.site.runs / "again"
    for index in range(count):
        for name, commit in programs.items():
            if name == "best" and commit == found.base_commit:
                values[name] = values["baseline"]
                continue
            values[name].append(measure_again(lab, commit, FIRST_FRESH_SEED + index, again / f"{name}-{index}"))
    shutil.rmtree(again, ignore_errors=True)
    return statistics.mean(values["baseline"]), statistics.mean(values["best"])


# ---------------------------------------------------------------------- all cells
def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half the width of its 95% interval)."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    width = float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), width


Row = tuple[str, str]


def table(results: Mapping[Row, Mapping[int, Result]], metric: Metric) -> None:
    """Print what all rows came to; differences are to the first."""
    first = next(iter(results.values()))
    sign = metric.improvement(0.0, 1.0)  # 1 where lower is better, else −1
    print(f"\n{metric.name} ({metric.direction} it), best of each session on fresh seeds; ± is half a 95% interval\n")
    print("| policy | variant | n | best | gain over the baseline | better than the first by | keeps | crashes "
          "| duplicates | USD | tokens | minutes |")  # fmt: skip
    print("|---" * 12 + "|")
    for (policy, variant), cells in results.items():
        found = list(cells.values())
        best, gain = interval([r.best for r in found]), interval([sign * (r.baseline - r.best) for r in found])
        pairs = [sign * (first[n].best - r.best) for n, r in cells.items() if n in first]
        than = "" if cells is first or not pairs else show(*interval(pairs))
        prices = [r.usd for r in found if r.usd is not None]
        usd = "unknown" if len(prices) < len(found) else f"{sum(prices):.2f}"
        print(
            f"| {policy} | {variant} | {len(found)} | {show(*best)} | {show(*gain)} | {than} "
            f"| {mean(r.keeps for r in found):.1f} | {mean(r.crashes for r in found):.1f} "
            f"| {mean(r.duplicates for r in found):.1f} | {usd} | {sum(r.tokens for r in found)} "
            f"| {sum(r.minutes for r in found):.1f} |"
        )
    print()
    for (policy, variant), cells in results.items():
        values = " ".join(f"{r.best:.4f}" for _, r in sorted(cells.items()))
        print(f"{policy} {variant}: {values}")


def show(middle: float, width: float) -> str:
    """A mean with its interval."""
    return f"{middle:.4f}" if math.isnan(width) else f"{middle:.4f} ± {width:.4f}"


def mean(values: Iterator[float] | Iterator[int]) -> float:
    """Of a few numbers."""
    return statistics.fmean(values)


def rows(policies: Sequence[str], variants: Sequence[str]) -> list[Row]:
    """Policies with the variants that mean something to them."""
    for name in variants:
        if name not in VARIANTS:
            raise SystemExit(f"no variant {name!r}: there are {', '.join(VARIANTS)}")
        unknown = set(VARIANTS[name].settings) - set(ModelSettings.model_fields)
        if unknown:
            raise SystemExit(f"variant {name}: config.yaml of this version has no {', '.join(sorted(unknown))}")
    try:
        specs = {policy: parse_spec(policy) for policy in policies}
    except AutoresearchdError as error:
        raise SystemExit(str(error)) from error
    models = {policy: specs[policy].asks_model or policy.startswith("command:") for policy in policies}
    found = [(p, v) for p in policies for v in variants if models[p] or not VARIANTS[v].models]
    if not found:
        raise SystemExit("these variants are for policies with a model only, and none is named")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default=str(CHEAP), help="a bundled task, or a folder with a task.yaml")
    parser.add_argument("--policies", default="random,search", help="specs as of --policy; the first is compared with")
    parser.add_argument("--variants", default="plain", help="of: " + ", ".join(VARIANTS))
    parser.add_argument("--experiments", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", default=None, help="of one run; default: the task's")
    parser.add_argument("--seed", type=int, default=1, help="of the first repeat")
    parser.add_argument("--again", type=int, default=3, help="fresh seeds for baseline and best")
    parser.add_argument("--max-usd", type=float, default=None, help="spend cap of one session")
    parser.add_argument("--config", type=Path, default=None, help="a config.yaml that every cell begins with")
    parser.add_argument("--dir", type=Path, default=Path("policies"), help="a folder for the cells; it is kept")
    parser.add_argument("--list", action="store_true", help="explain the variants")
    parser.add_argument("--plan", action="store_true", help="tell which cells are finished, and run none")
    options = parser.parse_args()
    template = bundled("templates") / options.task
    options.task = (template if (template / "task.yaml").is_file() else Path(options.task)).resolve()
    return options


def main() -> int:
    """Run all cells and print the table; 1 where search and random were both run and search is not better."""
    options = arguments()
    if options.list:
        for name, known in VARIANTS.items():
            print(f"{name:12} {known.words}" + (" (policies with a model only)" if known.models else ""))
        return 0
    results: dict[Row, dict[int, Result]] = {}
    wanted = rows(options.policies.split(","), options.variants.split(","))
    if options.plan:
        plan(wanted, options)
        return 0
    failed = []
    for repeat in range(options.repeats):  # repeat by repeat, so that a table of what there is can be had at any time
        for policy, variant in wanted:
            cell = Cell(policy, variant, repeat)
            try:
                result = run_cell(cell, options)
            except (AutoresearchdError, Unfinished) as error:
                failed.append(f"{cell.name}: {error}")
                continue
            results.setdefault((policy, variant), {})[repeat] = result
            print(f"{cell.name}: {result.baseline:.4f} → {result.best:.4f}, {result.keeps} kept", file=sys.stderr)
    for line in failed:
        print(line, file=sys.stderr)
    if not results:
        return 1
    metric = metric_of(options)
    table({row: results[row] for row in wanted if row in results}, metric)
    search, random = results.get(("search", "plain"), {}), results.get(("random", "plain"), {})
    gains = [metric.improvement(search[n].best, random[n].best) for n in search if n in random]
    if gains:
        print(f"\n{'holds' if statistics.fmean(gains) > 0 else 'FAILS'}  search better than random")
    return 1 if failed or (gains and statistics.fmean(gains) <= 0) else 0


def plan(wanted: Sequence[Row], options: argparse.Namespace) -> None:
    """Print what there is to do, cell by cell, and how long the finished ones took."""
    took: dict[Row, list[float]] = {}
    for repeat in range(options.repeats):
        for policy, variant in wanted:
            cell = Cell(policy, variant, repeat)
            folder = options.dir / cell.name
            if (folder / "result.json").exists():
                minutes = Result(**json.loads((folder / "result.json").read_text())).minutes
                took.setdefault((policy, variant), []).append(minutes)
                print(f"finished  {cell.name} in {minutes:.0f} minutes")
            else:
                print(f"{'begun   ' if (folder / 'cell.json').exists() else 'to do   '}  {cell.name}")
    left = [statistics.fmean(found) * (options.repeats - len(found)) for found in took.values()]
    if sum(left):
        print(f"about {sum(left):.0f} minutes are left for {', '.join(' '.join(row) for row in took)}")


def metric_of(options: argparse.Namespace) -> Metric:
    """The task's metric."""
    return load_task(options.task).metric


if __name__ == "__main__":
    sys.exit(main())
