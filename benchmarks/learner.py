"""Does a local policy learn from its own experiments? Each algorithm and its controls, on proposals that are run.

    python benchmarks/learner.py --model DIR --dir DIR --sessions 5 --experiments 48 --seeds 3

First the untrained model researches the bundled task ``terrain`` in several sessions of its own. From all but the last
each algorithm learns, with several seeds, and so do the controls: learning rate 0, and outcomes that are shuffled
among the answers. Then every policy is asked at the held-out sessions' states, with the same random numbers, and each
valid proposal is run. The difference to the untrained model is given with a 95% interval over the seeds (Student's t),
split into the share of valid edits and the reward of a valid edit. What has been done already is read from DIR.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoresearchd.app.compose import make_executor
from autoresearchd.app.start import StartOptions, start
from autoresearchd.domain.experiment import Limits
from autoresearchd.domain.labels import Label
from autoresearchd.learner.algorithms.learnable import Who
from autoresearchd.learner.algorithms.train_options import Algo
from autoresearchd.learner.data.read_sessions import material, read_sessions
from autoresearchd.learner.gate.gate import fresh
from autoresearchd.learner.gate.held_out_states import HeldOutState, opened
from autoresearchd.learner.gate.judge_answers import Outcome, RealJudge
from autoresearchd.learner.learn import LearnRequest, constants_of
from autoresearchd.learner.training.local_model import LocalModel
from autoresearchd.learner.training.train import train
from autoresearchd.models.model_files import base_model
from autoresearchd.resources import bundled

SETTINGS = """\
prompt: brief
context_tokens: 2000
max_tokens: {tokens}
temperature: 1.0
timeout: 600
reasks: 0
group: {group}
"""
CONTROLS = {"": {}, "rate 0": {"learning_rate": 0.0}, "shuffled": {"shuffle_rewards": True}}
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26}


def research(options: argparse.Namespace, number: int) -> Path:
    """A session of the untrained model; nothing where it is there already."""
    folder = options.dir / f"session{number}"
    done = folder / "done"
    if done.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bundled("templates") / "terrain", folder, ignore=shutil.ignore_patterns("__pycache__"))
    identity = ["-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "start"]):
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)
    config = options.dir / "config.yaml"
    config.write_text(SETTINGS.format(tokens=options.max_tokens, group=options.group))
    os.environ["AUTORESEARCHD_CONFIG"] = str(config)
    limits = Limits(max_experiments=options.experiments)
    start(StartOptions(None, folder, tag=f"s{number}", policy=f"local:{options.model}", limits=limits,
                       foreground=True, seed=number))  # fmt: skip
    done.touch()
    return folder


def learned(options: argparse.Namespace, algo: str, control: str, seed: int, parts: Any) -> dict[str, Any]:
    """An adapter of one algorithm, kept in DIR, with how long it took."""
    folder = options.dir / f"{algo}-{control or 'as it is'}-{seed}".replace(" ", "_")
    facts = folder / "facts.json"
    if facts.exists():
        return {"folder": folder, **json.loads(facts.read_text())}
    constants = constants_of(LearnRequest(algo, options={"seed": str(seed)}))
    said = {"learning_rate": options.rate, **CONTROLS[control]}
    plan = replace(constants.train, algo=Algo(algo), steps=options.steps, batch=options.batch, **said)
    model = LocalModel.load(options.model, replace(constants.model, value_head=algo == "ppo"))
    began, tokens = time.monotonic(), 0.0

    def on_step(step: Any) -> None:
        nonlocal tokens
        tokens += step.values.get("tokens", 0.0)
        print(f"\r  {folder.name}: step {step.step}/{step.steps}", end="", flush=True)

    found = train(model, parts.train, plan, on_step=on_step)
    seconds = time.monotonic() - began
    print(f"  {found.stopped} {found.cold_start}")
    folder.mkdir(exist_ok=True)
    model.save(folder)
    result = {
        "seconds": seconds,
        "tokens": tokens,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "stopped": found.stopped,
        "cold_start": found.cold_start,
        "counts": dict(found.counts),
    }
    facts.write_text(json.dumps(result))
    return {"folder": folder, **result}


def asked(
    options: argparse.Namespace, name: str, adapter: Path | None, seed: int, states: Sequence[HeldOutState],
    judge: RealJudge,
) -> list[Outcome]:  # fmt: skip
    """What a policy's proposals at the held-out states are worth."""
    kept = options.dir / f"outcomes-{name}-{seed}.json".replace(" ", "_")
    if kept.exists():
        return [Outcome(**{**row, "label": Label(row["label"])}) for row in json.loads(kept.read_text())]
    constants = constants_of(LearnRequest("grpo"))
    model = LocalModel.load(options.model, replace(constants.model, adapter=adapter))
    drawn = fresh(
        model, states, who=Who.BASE if adapter is None else Who.POLICY, count=options.count,
        max_tokens=options.max_tokens, temperature=1.0, seed=seed,
    )  # fmt: skip
    found = judge.judge_all(drawn)
    rows = [
        {
            "key": o.key, "session": o.session, "valid": o.valid, "label": o.label.value, "error": o.error,
            "reward": o.reward, "not_run": o.not_run, "novelty": o.novelty, "files_hash": o.files_hash,
        }
        for o in found
    ]  # fmt: skip
    kept.write_text(json.dumps(rows))
    return found


def mean(outcomes: Sequence[Outcome], of: Callable[[Outcome], float | None]) -> float:
    """Of those that have it."""
    values = [value for o in outcomes if (value := of(o)) is not None]
    return statistics.fmean(values) if values else math.nan


def interval(values: Sequence[float]) -> str:
    """Mean ± half of the 95% t interval over the seeds."""
    if len(values) < 2:
        return f"{values[0]:+.3f}"
    half = T_95.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):+.3f} ± {half:.3f}"


def main() -> int:
    """All of it; the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--dir", type=Path, default=Path("learner"), help="where all of it is kept")
    parser.add_argument("--sessions", type=int, default=5)
    parser.add_argument("--experiments", type=int, default=48)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--algos", default="grpo,ppo,sdpo")
    parser.add_argument("--controls", default="rate 0,shuffled")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--control-seeds", type=int, help="of the controls (default: as many)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="answers that a step learns from")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--states", type=int, default=20)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=24)
    options = parser.parse_args()
    options.dir = options.dir.resolve()
    options.dir.mkdir(parents=True, exist_ok=True)
    options.model = options.model.resolve()
    roots = [research(options, number) for number in range(1, options.sessions + 1)]
    reading = read_sessions(roots)
    found = material(reading, "replay", base_model(options.model))
    if found.parts is None:
        raise SystemExit(f"{found.problem}: {found.hint}")
    parts = found.parts
    print(f"{len(parts.train)} answers to learn from, {len(parts.held_out)} held out (by {parts.by})")
    rows: dict[tuple[str, str], list[tuple[float, float, float, float]]] = {}
    speed: dict[str, dict[str, Any]] = {}
    with opened(reading.sessions, {each.session for each in parts.held_out}) as held:
        states = held.states(parts.held_out, most=options.states).states
        # Its own sessions, one in each repository.
        judge = RealJudge(held, make_executor("local"), cancel=threading.Event(), run_foreign=True)
        for seed in range(options.seeds):
            base = asked(options, "untrained", None, seed, states, judge)
            print(f"untrained, seed {seed}: {len(base)} proposals, reward {mean(base, lambda o: o.reward):.3f}, "
                  f"valid {mean(base, lambda o: float(o.valid)):.0%}")  # fmt: skip
            for algo in options.algos.split(","):
                controlled = options.control_seeds is None or seed < options.control_seeds
                for control in ("", *(filter(None, options.controls.split(",")) if controlled else ())):
                    one = learned(options, algo, control, seed, parts)
                    speed.setdefault(algo, one)
                    new = asked(options, one["folder"].name, one["folder"], seed, states, judge)
                    rows.setdefault((algo, control), []).append((
                        mean(new, lambda o: o.reward) - mean(base, lambda o: o.reward),
                        mean(new, lambda o: float(o.valid)) - mean(base, lambda o: float(o.valid)),
                        mean(new, lambda o: o.reward if o.valid else None)
                        - mean(base, lambda o: o.reward if o.valid else None),
                        mean(new, lambda o: o.novelty if o.valid else None)
                        - mean(base, lambda o: o.novelty if o.valid else None),
                    ))  # fmt: skip
    print("\n| algorithm | control | reward | valid edits | reward of a valid edit | novelty of a valid edit |")
    print("|---|---|---|---|---|---|")
    for (algo, control), values in rows.items():
        print(f"| {algo} | {control or '–'} | {' | '.join(map(interval, zip(*values, strict=True)))} |")
    print("\n| algorithm | tokens of completions per second | peak memory of the process, MB |\n|---|---|---|")
    for algo, one in speed.items():
        print(f"| {algo} | {one['tokens'] / one['seconds']:.0f} | {one['peak_mb']:.0f} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
