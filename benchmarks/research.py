"""Does the daemon find anything? A session on the bundled task, then baseline and best measured again on fresh seeds.

    python benchmarks/research.py --experiments 40 --budget 15s --seeds 5

The two programs are run in turn under the same new seeds, so that a noisy moment of the machine hits both. σ is the
standard deviation of the baseline's fresh runs; the claim is that the best is better by more than 3σ.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from autoresearchd.app.compose import laboratory, make_executor
from autoresearchd.app.project import Project
from autoresearchd.domain.labels import Status
from autoresearchd.domain.ports import RunRequest
from autoresearchd.evaluator.measure.measurement import measure
from autoresearchd.loop.context import Context
from autoresearchd.loop.measuring.run_files import read_logs

FIRST_FRESH_SEED = 1_000_003


def measure_again(lab: Context, commit: str, seed: int, run_dir: Path) -> float:
    """The metric of a commit under a seed, measured as the daemon measures it."""
    result = lab.executor.start(
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
    ).wait(None)
    if result is None:
        raise SystemExit(f"{commit}: no result")
    found = measure(lab.task, result, read_logs(result))
    if found.value is None:
        raise SystemExit(f"{commit}: {found.label}: {found.detail}")
    return found.value


def main() -> int:
    """Run, measure again, print the table; 1 when the best is not better by 3σ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=40)
    parser.add_argument("--budget", default="15s")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--policy", default="search")
    parser.add_argument("--dir", type=Path, default=Path("research"), help="an empty folder; it is kept")
    options = parser.parse_args()
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
    lab = laboratory(project, session, store, project.root, [], make_executor("local"))
    programs = {"baseline": session.base_commit, "best": session.incumbent}
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
    gain = statistics.mean(values["baseline"]) - statistics.mean(values["best"])
    print(f"\n{'':34}{'mean':>10}{'σ':>10}   runs")
    for name, found in values.items():
        runs = " ".join(f"{value:.3f}" for value in found)
        label = f"{name}, {len(found)} fresh seeds"
        print(f"{label:34}{statistics.mean(found):10.4f}{statistics.stdev(found):10.4f}   {runs}")
    print(f"improvement {gain:.4f} = {gain / sigma:.1f}σ")
    print(f"{len(kept)} of {len(decided)} experiments kept in {minutes:.0f} minutes")
    for e in kept:
        assert e.proposal is not None
        assert e.decision is not None
        print(f"  #{e.number:<3} {e.decision.value:.4f}  {e.proposal.description}")
    store.close()
    return 0 if gain > 3 * sigma else 1


if __name__ == "__main__":
    sys.exit(main())
