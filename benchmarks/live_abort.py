"""What early abort brings in a real session: the bundled task with it and without it, from the same seed.

    python benchmarks/live_abort.py --experiments 100 --budget 5s --dir DIR   # some twenty minutes for each session

Both sessions run one after the other; nothing else should run on the machine. Experiments per hour are counted from the
first decision after the baseline to the last. Afterwards the complete curves of the session without abort are given to
the policy as if they were running: how many of those that improved on the incumbent by more than 2σ it would have
ended.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.app.start import StartOptions, start
from autoresearchd.domain.duration import parse_duration
from autoresearchd.domain.experiment import Experiment, Limits
from autoresearchd.domain.labels import Label, Status
from autoresearchd.evaluator.abort import AbortPolicy
from autoresearchd.evaluator.abort_caution import wilson_upper
from autoresearchd.loop.aborts import NOISE
from autoresearchd.loop.follow import curve_of
from autoresearchd.resources import bundled
from autoresearchd.store.repository import SqlStore

LOOKS = tuple(k / 10 for k in range(1, 10))


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


def replay(store: SqlStore) -> None:
    """What the policy would have ended in a session in which nothing was ended."""
    policy, incumbent = AbortPolicy(), None
    improved = lost = ended = full = 0
    spent = 0.0
    for e in decided(store):
        run = next((r for r in e.counted_runs if r.of is None), None)
        if run is None or run.label is not Label.NONE or run.value is None or e.decision is None:
            continue
        steps, losses = curve_of(store.curve(run.id))
        sigma = e.decision.sigma or 0.0
        policy.delta, stopped = NOISE * sigma, 1.0
        if e.number and incumbent is not None:
            for at in LOOKS:
                seen = [(s, x) for s, x in zip(steps, losses, strict=True) if s <= at]
                if seen and policy.look([s for s, _ in seen], [x for _, x in seen], 1.0, incumbent).abort:
                    stopped = at
                    break
            good = run.value < incumbent - NOISE * sigma
            improved, full, spent = improved + good, full + 1, spent + stopped
            ended, lost = ended + (stopped < 1), lost + (good and stopped < 1)
        policy.observe(steps, losses, 1.0, None if stopped < 1 else run.value, aborted=stopped < 1)
        if e.decision.status is Status.KEEP and e.decision.value is not None:
            incumbent = e.decision.value
    limit = 100 * wilson_upper(lost, improved)
    print(
        f"replay of the session without abort: {ended} of {full} ended, {lost} of {improved} improvements by more than "
        f"2σ lost (95% limit {limit:.0f}%), G {full / max(spent, 1e-9):.2f}"
    )


def main() -> int:
    """Two sessions and their figures; 1 when early abort made the session slower."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=100)
    parser.add_argument("--budget", default="5s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=Path("live-abort"), help="an empty folder; it is kept")
    options = parser.parse_args()
    rates = {}
    for name in ("without", "with"):
        folder = (options.dir / name).resolve()
        folder.parent.mkdir(parents=True, exist_ok=True)
        prepare(folder, abort=name == "with")
        limits = Limits(max_experiments=options.experiments)
        start(StartOptions(None, folder, tag="bench", policy="search", budget=parse_duration(options.budget),
                           limits=limits, foreground=True, seed=options.seed))  # fmt: skip
        store = Project.at(folder).open_store()
        rates[name] = report(name, store)
        if name == "without":
            replay(store)
        store.close()
    print(f"with abort {rates['with'] / rates['without']:.2f} times as many experiments per hour")
    return 0 if rates["with"] >= rates["without"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
