"""What the probes for causality, independence and determinism add to the evaluation of the bundled task.

    python benchmarks/probes.py               # 10 rounds
    OMP_NUM_THREADS=1 python benchmarks/probes.py --rounds 30

Each round scores the same untrained model with and without probes, in turn, and counts the processor time of both
processes from the first answer on, so that their start is not measured. On a machine that does other work as well the
difference between two rounds says little; the share is therefore taken within the rounds that have probes: what the
scorer spends on them, and of the model's time its part of the answers, all of which are of one shape.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

TEMPLATE = Path(__file__).resolve().parents[1] / "templates" / "autoresearch"
TICK = os.sysconf("SC_CLK_TCK")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bundled_{name}", TEMPLATE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def prepare(folder: Path) -> None:
    """Data and a checkpoint in ``folder``."""
    import torch

    meta, _ = load("prepare").prepare(folder / "data", "cpu", train_bytes=400_000)
    train = load("train")
    torch.manual_seed(0)
    model = train.GPT(train.build_config(meta["vocab_size"]))
    model.init_weights()
    torch.nn.init.normal_(model.lm_head.weight)
    config = train.asdict(model.config)
    torch.save({"model": model.state_dict(), "config": config}, folder / "checkpoint.pt")


def spent(pid: int) -> float:
    """Processor seconds of a process so far, and of those children that have ended: one answers each batch."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return sum(map(int, fields[11:15])) / TICK


class Meter:
    """Adds up the processor time that the scorer spends in some of its methods for probes."""

    def __init__(self, scorer: Any, model: int) -> None:
        self.scorer, self.model, self.probes = scorer, model, 0.0
        self.first: tuple[float, float, float] | None = None
        jobs, receive = scorer.jobs, scorer.channel.receive

        def timed(number: int) -> Any:
            answer = self._counted(receive, number) if jobs[number].probe else receive(number)
            if self.first is None:
                self.first, self.probes = (time.process_time(), spent(model), time.perf_counter()), 0.0
            return answer

        scorer.channel.receive = timed
        for name in ("bet", "compare"):
            method = getattr(scorer, name)
            setattr(scorer, name, lambda *given, method=method: self._counted(method, *given))

    def _counted(self, method: Callable[..., Any], *given: Any) -> Any:
        began = time.process_time()
        try:
            return method(*given)
        finally:
            self.probes += time.process_time() - began

    def read(self) -> tuple[float, float, float]:
        """Processor seconds, wall-clock seconds, and the share of the probes."""
        assert self.first is not None
        scorer, model = time.process_time() - self.first[0], spent(self.model) - self.first[1]
        jobs = self.scorer.jobs
        part = sum(job.probe is not None for job in jobs) / len(jobs)
        return scorer + model, time.perf_counter() - self.first[2], (self.probes + part * model) / (scorer + model)


def evaluate(folder: Path, scorer_module: Any) -> tuple[float, float, float, float]:
    """One evaluation: what its meter reads, and the score."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as exchange:
        env = {
            **os.environ, "AUTORESEARCHD_EXCHANGE_DIR": exchange, "AUTORESEARCHD_OUTPUT_DIR": str(folder),
            "AUTORESEARCHD_PROFILE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        model = subprocess.Popen([sys.executable, str(TEMPLATE / "serve_model.py")], env=env)
        try:
            scorer = scorer_module.Scorer(folder / "data", Path(exchange), "cpu")
            meter = Meter(scorer, model.pid)
            score = scorer.score()
            return *meter.read(), score
        finally:
            model.kill()
            model.wait()


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=10)
    rounds = options.parse_args().rounds
    scorer = load("evaluate")
    plan = scorer.PLANS["cpu"]
    seconds: dict[int, list[tuple[float, float, float]]] = {plan.probes: [], 0: []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        scores: set[float] = set()
        shares = 0.0
        for _ in range(rounds):
            for probes, found in seconds.items():
                scorer.PLANS["cpu"] = replace(plan, probes=probes)
                processor, wall, share, score = evaluate(folder, scorer)
                found.append((processor, wall, share))
                scores.add(round(score, 6))
    assert len(scores) == 1, f"the probes change the score: {scores}"
    print(f"n = {rounds} rounds, cpu profile, {plan.batches} batches, medians in seconds")
    print(f"{'probes':>8} {'processor':>10} {'wall':>8}")
    for probes, found in seconds.items():
        processor, wall, share = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{probes:8} {processor:10.3f} {wall:8.3f}")
        if probes:
            shares = share
    print(f"share: {100 * shares:.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
