"""How long `autoresearchd report` takes for many experiments, as a whole process, and how large its file is.

    python benchmarks/report.py [--experiments 10000] [--rounds 3] [--keep FOLDER]

The session is written through the store's own methods: twenty constants and some structure, a keep in forty,
crashes, aborts and refused edits among the rest, each with its diff, as models and the search make them.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from overhead import repository

from autoresearchd.app.project import Project
from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.experiment import Decision, Measurement, RunResult, StageResult
from autoresearchd.domain.labels import RULES, Label, Outcome, SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Cost, Proposal

TASK = {"name": "many", "scoring": {"metric": "val_bpb", "direction": "minimize", "source": "evaluator"}}
LABELS = (
    [Label.NO_GAIN] * 14 + [Label.ABORTED_EARLY] * 4 + [Label.OOM, Label.ERROR, Label.ILLEGAL_EDIT, Label.DUPLICATE]
)
IDEAS = ("residual gate", "rotary base", "warm-up in steps", "tied embeddings", "squared activation", "smaller batches")
START = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)


def fill(folder: Path, count: int) -> None:
    """A repository with a stopped session of so many experiments beside the baseline."""
    rng = random.Random(7)
    repository(folder, {"train.py": "x = 1\n"})
    with Project.at(folder).open_store() as store:
        new = NewSession("many", "autoresearch/many", json.dumps(TASK), "hybrid", "local", "0" * 40, seed=1)
        session = store.create_session(new, START)
        store.open_segment(session.id, "f", "start", "cpu", START)
        at, tip, best, confirmed = START, 0, 1.0, 0
        for number in range(count + 1):
            label = Label.NONE if number % 40 == 0 else rng.choice(LABELS)
            status = RULES[label] or Status.CRASH
            store.open_experiment(session.id, parent=f"{tip:040x}", segment=0, at=at)
            proposal, diff = made(rng, number)
            store.record_proposal(session.id, number, proposal, diff=diff, code_hash=str(number))
            value = None
            if label in (Label.NONE, Label.NO_GAIN):
                value = best - 0.0004 if label is Label.NONE and number else best + abs(rng.gauss(0, 0.004))
            if label not in (Label.ILLEGAL_EDIT, Label.DUPLICATE):
                store.record_commit(session.id, number, f"{number:040x}")
                run = store.open_run(session.id, number, number, at)
                at += timedelta(seconds=rng.uniform(60, 330))
                measured = Measurement(label, value, {"val_bpb": value, "peak_vram_mb": 45060.2} if value else {})
                stage = StageResult("training", "ok", 0, 300.0, "training.log")
                store.close_run(run.id, measured, RunResult((stage,), 300.0, "none"), at, last=True)
            reason = f"{label or 'kept'}: as measured in run {number} of {rng.random():.4f}"
            parts = {} if value is None else {"val_bpb": value, "peak_vram_mb": 45060.2}
            decision = Decision(
                status, label, value, 0.0004 if not label else -0.001, parts, 1.0, 0.0015, reason=reason
            )
            kept = f"{number:040x}" if status is Status.KEEP else None
            asi = ASI("h", result=reason)
            store.record_decision(session.id, number, decision, asi, at, incumbent=kept, confirmed=number == 0)
            store.record_overhead(session.id, number, 50.0)
            if kept and number:
                tip, best = number, value or best
                if number % 160 == 0:
                    at = confirm(store, session.id, number, confirmed, at)
                    confirmed = number
            at += timedelta(seconds=rng.uniform(5, 30))
        store.set_state(session.id, SessionState.STOPPED, at, pid=None, reason="")


def made(rng: random.Random, number: int) -> tuple[Proposal, str]:
    """A proposal and its diff: constants by the search, or an idea of a model."""
    if number and rng.random() < 0.7:
        names = rng.sample([f"CONSTANT_{i}" for i in range(20)], rng.choice((1, 1, 2)))
        changes = {f"train.py:{name}": round(rng.random(), 4) for name in names}
        lines = "".join(f"-{name} = 0.5\n+{name} = {changes[f'train.py:{name}']}\n" for name in names)
        text, policy, role = ", ".join(f"{name} → {value}" for name, value in changes.items()), "search", "tuner"
    else:
        changes, idea = {}, rng.choice(IDEAS)
        lines = "".join(f"-    y{i} = f{i}(x, {number})\n+    y{i} = g{i}(x, {rng.random():.3f})\n" for i in range(15))
        text = f"{idea} number {number}, since it may help the {rng.choice(('first', 'last'))} layers"
        policy, role = "litellm:model", "architecture"
    diff = f"--- a/train.py\n+++ b/train.py\n@@ -1,30 +1,30 @@\n{lines}"
    return Proposal({}, text, policy, text, 0.001, changes, role, cost=Cost(0.01, 12_000, 800, 9.0)), diff


def confirm(store, session_id: int, number: int, against: int, at: datetime) -> datetime:  # type: ignore[no-untyped-def]
    """A confirmation of two pairs that moves the branch; when it ended."""
    test = store.open_confirmation(session_id, experiment=number, against=against, why="gain", at=at)
    for pair in range(2):
        for of, value in ((None, 1 - number * 1e-5), (against, 1 - against * 1e-5)):
            run = store.open_confirmation_run(session_id, test.number, 100 + pair, at, of=of)
            at += timedelta(seconds=300)
            store.close_confirmation_run(run.id, Measurement(Label.NONE, value), None, at)
    verdict = Verdict(Outcome.CONFIRMED, (number - against) * 1e-5, 0.0004, 0.99, "It is better.")
    store.decide_confirmation(session_id, test.number, verdict, at)
    return at


def main() -> int:
    """Print the table; 1 when the bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="leave the session in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch, "many")
        if not folder.exists():
            folder.mkdir(parents=True)
            fill(folder, options.experiments)
        times: dict[str, float] = {}
        for name in ("report.html", "report.md"):
            command = [sys.executable, "-m", "autoresearchd", "report", "-o", name]
            for _ in range(options.rounds):
                begun = time.perf_counter()
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
                times[name] = min(times.get(name, 1e9), time.perf_counter() - begun)
            size = Path(folder, name).stat().st_size / 1e6
            print(f"{name:12} {options.experiments:>8,} experiments  {times[name]:6.2f} s  {size:6.2f} MB")
    return int(max(times.values()) > 5.0)


if __name__ == "__main__":
    sys.exit(main())
