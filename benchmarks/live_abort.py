"""What early abort brings in a real session: the bundled task with it and without it, from the same seed.

    python benchmarks/live_abort.py --experiments 100 --budget 5s --dir DIR   # some twenty minutes for each session
    python benchmarks/live_abort.py --replay DIR...                          # recorded sessions, seconds for each

Both sessions run one after the other; nothing else should run on the machine. Experiments per hour are counted from the
first decision after the baseline to the last. Afterwards the complete curves of the session without abort are given to
the policy as if they were running: how many of those that improved on the incumbent by more than 2σ it would have
ended. How a run that it ends would have come out is hidden from it.
``--replay`` does only that, with any number of sessions, runs that were ended early left out. The policy is told the σ
that was known by then, an improvement counts by what all runs of the session tell.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.app.start import StartOptions, start
from autoresearchd.config import Overrides, parse_task
from autoresearchd.domain.experiment import Experiment, Limits, Run
from autoresearchd.domain.labels import Label, Status
from autoresearchd.domain.quantities import parse_duration
from autoresearchd.evaluator.abort.abort_policy import AbortPolicy, wilson_upper
from autoresearchd.evaluator.keep.decide import belief_of, step_of
from autoresearchd.evaluator.keep.tip_belief import TipBelief, follow
from autoresearchd.loop.early_abort import NOISE, curve_of
from autoresearchd.resources import bundled
from autoresearchd.store.repository import SqlStore

LOOKS = tuple(k / 10 for k in range(1, 10))


@dataclass(frozen=True, slots=True)
class Tally:
    """What the policy did with recorded runs.

    runs: that were looked at; ended: by it; improved: of all, those that beat the incumbent by more than 2σ; lost: of
    these, the ended ones; spent: sum of the shares of the budget that the runs got.
    """

    runs: int = 0
    ended: int = 0
    improved: int = 0
    lost: int = 0
    spent: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.runs + other.runs,
            self.ended + other.ended,
            self.improved + other.improved,
            self.lost + other.lost,
            self.spent + other.spent,
        )

    def __str__(self) -> str:
        limit = 100 * wilson_upper(self.lost, self.improved)
        gain = self.runs / self.spent if self.spent else 1.0
        return (
            f"{self.ended} of {self.runs} ended, {self.lost} of {self.improved} improvements by more than 2σ lost "
            f"(95% limit {limit:.0f}%), G {gain:.2f}"
        )


def prepare(folder: Path, abort: bool) -> None:
    """The bundled task in a repository of its own, with early abort on or off."""
    shutil.copytree(bundled("templates") / "autoresearch", folder, ignore=shutil.ignore_patterns("__pycache__"))
    task = folder / "task.yaml"
    text, changed = re.subn(r"(?m)^  abort: true$", f"  abort: {str(abort).lower()}", task.read_text())
    if changed != 1:
        raise SystemExit(f"{task}: no line `abort: true`")
    task.write_text(text)
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "start"]):
        identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


def decided(store: SqlStore) -> list[Experiment]:
    """All decided experiments of the only session."""
    return [e for e in store.experiments(store.sessions()[0].id) if e.decision and e.finished_at]


def report(name: str, store: SqlStore) -> float:
    """Print a session's figures; its experiments per hour."""
    found = decided(store)
    first, last = found[0].finished_at, found[-1].finished_at
    assert first is not None and last is not None
    hours = (last - first).total_seconds() / 3600
    rate = (len(found) - 1) / hours
    aborted = sum(e.decision is not None and e.decision.label is Label.ABORTED_EARLY for e in found)
    kept = [e.decision.value for e in found if e.decision and e.decision.status is Status.KEEP]
    memory = store.abort_memory(store.sessions()[0].id)
    audited = memory.figures.get("audited") if memory else None
    print(f"{name:12}{len(found) - 1:5} experiments {rate:7.0f} per hour  baseline {kept[0]:.4f}  best {kept[-1]:.4f}"
          f"  kept {len(kept) - 1}  aborted {aborted}  audited {audited or 0:.0f}")  # fmt: skip
    return rate


def replay(store: SqlStore, policy: AbortPolicy | None = None) -> Tally:
    """What the policy would have done in a recorded session, had it looked at the runs that came to their end."""
    policy = policy or AbortPolicy()
    task = parse_task(store.sessions()[0].task_json)
    baseline, *others = decided(store)
    belief, whole = belief_of(task, baseline), belief_of(task, baseline, others)
    incumbent: float | None = None
    total = Tally()
    for e in (baseline, *others):
        policy.delta = delta_of(belief)
        if belief is not None and e is not baseline and (step := step_of(task, e)):
            belief = follow(belief, step)
        run = complete(e)
        if run is None or run.value is None or e.decision is None:
            continue
        curve = curve_of(store.curve(run.id))
        stopped = 1.0
        if e.number and incumbent is not None:
            stopped = first_abort(policy, curve, incumbent)
            ended, good = stopped < 1, run.value < incumbent - delta_of(whole)
            total += Tally(1, ended, good, good and ended, stopped)
        observe(policy, curve, None if stopped < 1 else run.value)
        if e.decision.status is Status.KEEP and e.decision.value is not None:
            incumbent = e.decision.value
    return total


def delta_of(belief: TipBelief | None) -> float:
    """The least improvement that counts."""
    return NOISE * belief.sigma if belief is not None else 0.0


def complete(e: Experiment) -> Run | None:
    """The experiment's first run, if it came to its end with a value."""
    run = next((r for r in e.counted_runs if r.of is None), None)
    return run if run is not None and run.label is Label.NONE and run.value is not None else None


def first_abort(policy: AbortPolicy, curve: tuple[list[float], list[float]], incumbent: float) -> float:
    """The share of the budget at which the policy ends a run; 1 where it lets it go on."""
    for at in LOOKS:
        seen = [(progress, loss) for progress, loss in zip(*curve, strict=True) if progress <= at]
        if seen and policy.look([x for x, _ in seen], [y for _, y in seen], 1.0, incumbent).abort:
            return at
    return 1.0


def observe(policy: AbortPolicy, curve: tuple[list[float], list[float]], value: float | None) -> None:
    """Let the policy learn from a run as the daemon does: each experiment is another program."""
    policy.observe(*curve, 1.0, value, aborted=value is None, another=True)


def replay_all(folders: Sequence[Path]) -> Tally:
    """Replay the newest session of each folder, print each and all of them."""
    total = Tally()
    for folder in folders:
        store = Project.at(folder).existing_store()
        try:
            tally = replay(store)
        finally:
            store.close()
        print(f"{folder}: {tally}", flush=True)
        total += tally
    if len(folders) > 1:
        print(f"all: {total}")
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Two sessions and their figures, or a replay; 1 when early abort made the session slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=100)
    parser.add_argument("--budget", default="5s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=Path("live-abort"), help="an empty folder; it is kept")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="DIR", help="repositories with a recorded session")
    options = parser.parse_args(arguments)
    if options.replay:
        replay_all(options.replay)
        return 0
    rates = {}
    for name in ("without", "with"):
        folder = (options.dir / name).resolve()
        folder.parent.mkdir(parents=True, exist_ok=True)
        prepare(folder, abort=name == "with")
        limits = Limits(max_experiments=options.experiments)
        start(StartOptions(None, folder, tag="bench", policy="search",
                           overrides=Overrides(parse_duration(options.budget)),
                           limits=limits, foreground=True, seed=options.seed))  # fmt: skip
        store = Project.at(folder).open_store()
        rates[name] = report(name, store)
        if name == "without":
            print(f"replay of the session without abort: {replay(store)}")
        store.close()
    print(f"with abort {rates['with'] / rates['without']:.2f} times as many experiments per hour")
    return 0 if rates["with"] >= rates["without"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
