"""Does the daemon find anything, and nothing where nothing is?

    python benchmarks/research.py --experiments 40 --budget 15s --seeds 5
    python benchmarks/research.py --null 3 --dir DIR

A session on the bundled task; then the baseline and what was confirmed run in turn under the same new seeds, so that a
noisy moment of the machine hits both. σ is the standard deviation of the baseline's fresh runs; the claim is that the
confirmed program is better on each seed, and that at most 15% of the session's runs were repeats: runs of
confirmations, and all but the first of an experiment (the baseline's first three are none).

`--null`: so many sessions of a program that prints its metric with noise of σ = 0.05, each with 40 edits that change
nothing but that noise, none of which may be confirmed, and after them one that gains 5σ, which must be.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from autoresearchd.app.compose import laboratory
from autoresearchd.app.project import Project
from autoresearchd.domain.experiment import Measurement
from autoresearchd.domain.labels import Outcome, Status
from autoresearchd.domain.ports import RunHandle, RunRequest
from autoresearchd.evaluator.measure.measurement import measure
from autoresearchd.loop.context import Context
from autoresearchd.loop.measuring.run_files import read_logs

FIRST_FRESH_SEED = 1_000_003


def run_again(
    lab: Context, commit: str, seed: int, run_dir: Path, watch: Callable[[RunHandle], None] = lambda _: None
) -> Measurement:
    """A commit under a seed, run and measured as the daemon does it; watch: returns when it has seen enough."""
    handle = lab.executor.start(
        RunRequest(
            key=run_dir.name,
            task=lab.task,
            commit=commit,
            seed=seed,
            workspace=lab.workspace.checkout(0, commit),
            pristine=lab.site.pristine,
            setup=lab.site.setup,
            run_dir=run_dir,
            source=lab.site.source,
        )
    )
    watch(handle)
    result = handle.wait(None)
    if result is None:
        raise SystemExit(f"{commit}: no result")
    return measure(lab.task, result, read_logs(result))


def measure_again(lab: Context, commit: str, seed: int, run_dir: Path) -> float:
    """The metric of a commit under a seed."""
    found = run_again(lab, commit, seed, run_dir)
    if found.value is None:
        raise SystemExit(f"{commit}: {found.label}: {found.detail}")
    return found.value


NULLS = {
    "task.yaml": """\
name: nothing
workspace: {target_file: train.py}
execution: {run_command: python train.py, budget: 5, startup_grace: 5, training_time: budget}
scoring: {metric: loss, direction: minimize}
curve: {abort: false}
""",
    "train.py": """\
import os
import random

UNUSED = 0
GAIN = 0.0

# The noise is another one for each program, as it is where an edit changes the order of random numbers.
chance = random.Random(f"{os.environ['AUTORESEARCHD_SEED']}/{UNUSED}")
print(f"loss: {1 - GAIN + chance.gauss(0, 0.05):.6f}")
""",
}
EDIT = """\
import json, os, pathlib
state = json.loads(pathlib.Path(os.environ["AUTORESEARCHD_STATE"]).read_text())
file, number = pathlib.Path("train.py"), state["experiment"]
lines = file.read_text().splitlines(keepends=True)
lines = [f"UNUSED = {number}\\n" if line.startswith("UNUSED") else line for line in lines]
if number > EDITS:
    lines = ["GAIN = 0.25\\n" if line.startswith("GAIN") else line for line in lines]
file.write_text("".join(lines))
"""


def null(folder: Path, sessions: int, edits: int = 40) -> int:
    """Sessions of edits without an effect, then one with; 1 where one without was confirmed, or that one was not."""
    wrong = missed = 0
    for number in range(1, sessions + 1):
        place = (folder / str(number)).resolve()
        place.mkdir(parents=True)
        for name, text in NULLS.items():
            (place / name).write_text(text)
        edit = place.with_suffix(".py")
        edit.write_text(EDIT.replace("EDITS", str(edits)))
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
            who = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
            subprocess.run(["git", *who, *words], cwd=place, check=True)
        own = [sys.executable, "-m", "autoresearchd"]
        asked = ["start", "--foreground", "--tag", "null", "--seed", str(number), "--policy"]
        first = [*asked, f"command:{sys.executable} {edit}", "--max-experiments", str(edits)]
        after = ["resume", "null", "--foreground", "--max-experiments", str(edits + 1)]
        found = []
        for words in (first, after):
            with place.with_suffix(".log").open("a") as log:
                subprocess.run([*own, *words], cwd=place, check=True, stdout=log, stderr=log)
            with Project.at(place).open_store() as store:
                found.append([c for c in store.confirmations(store.session("null").id) if c.verdict])
        confirmed = [[c for c in cs if c.verdict and c.verdict.outcome is Outcome.CONFIRMED] for cs in found]
        gained = len(confirmed[1]) > len(confirmed[0])
        wrong, missed = wrong + len(confirmed[0]), missed + (not gained)
        print(f"session {number}: {len(confirmed[0])} of {edits} edits without an effect confirmed, in {len(found[0])} "
              f"confirmations; a gain of 5σ was {'' if gained else 'NOT '}confirmed", flush=True)  # fmt: skip
    return int(wrong + missed > 0)


def main() -> int:
    """Run, measure again, print the table; 1 when a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=40)
    parser.add_argument("--budget", default="15s")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--policy", default="search")
    parser.add_argument("--dir", type=Path, default=Path("research"), help="an empty folder; it is kept")
    parser.add_argument("--null", type=int, default=0, metavar="N", help="N sessions of edits without an effect")
    options = parser.parse_args()
    if options.null:
        return null(options.dir, options.null)
    options.dir.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "autoresearchd",
        "start",
        "--foreground",
        "--task",
        "autoresearch",
        "--tag",
        "bench",
    ]
    command += ["--policy", options.policy, "--budget", options.budget, "--max-experiments", str(options.experiments)]
    started = time.monotonic()
    subprocess.run(command, cwd=options.dir, check=True)
    minutes = (time.monotonic() - started) / 60
    project = Project.at(options.dir.resolve())
    store = project.open_store()
    session = store.session("bench")
    lab = laboratory(project, session, store, project.root, [])
    programs = {"baseline": session.base_commit, "confirmed": session.confirmed}
    values: dict[str, list[float]] = {name: [] for name in programs}
    again = lab.site.runs / "again"
    for index in range(options.seeds):
        for name, commit in programs.items():
            values[name].append(measure_again(lab, commit, FIRST_FRESH_SEED + index, again / f"{name}-{index}"))
            print(f"{name:10} seed {FIRST_FRESH_SEED + index}: {values[name][-1]:.4f}", flush=True)
    shutil.rmtree(again)
    decided = [e for e in store.experiments(session.id) if e.decision and e.number]
    kept = [e for e in decided if e.decision and e.decision.status is Status.KEEP]
    sigma = statistics.stdev(values["baseline"])
    better = [b - c for b, c in zip(values["baseline"], values["confirmed"], strict=True)]
    runs = sum(len(e.runs) for e in store.experiments(session.id))
    repeats = runs - 3 - sum(bool(e.counted_runs) for e in decided)
    print(f"\n{'':34}{'mean':>10}{'σ':>10}   runs")
    for name, found in values.items():
        told = " ".join(f"{value:.3f}" for value in found)
        label = f"{name}, {len(found)} fresh seeds"
        print(f"{label:34}{statistics.mean(found):10.4f}{statistics.stdev(found):10.4f}   {told}")
    gain = statistics.mean(better)
    print(
        f"improvement {gain:.4f} = {gain / sigma:.1f}σ; better on {sum(x > 0 for x in better)} of {len(better)} seeds"
    )
    proven = sum(e.confirmed is True for e in kept)
    print(f"{len(kept)} of {len(decided)} experiments kept, {proven} of these confirmed, in {minutes:.0f} minutes")
    print(f"repeats: {repeats} of {runs} runs, {repeats / runs:.0%}")
    for e in kept:
        assert e.proposal is not None
        assert e.decision is not None
        print(f"  #{e.number:<3} {e.decision.value:.4f}  {e.proposal.description}")
    store.close()
    return 0 if min(better) > 0 and repeats <= 0.15 * runs else 1


if __name__ == "__main__":
    sys.exit(main())
