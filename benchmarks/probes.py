"""What the probes of the bundled task add to its evaluation, and what they find.

    python benchmarks/probes.py               # 10 rounds
    OMP_NUM_THREADS=1 python benchmarks/probes.py --rounds 30
    python benchmarks/probes.py --power 100   # evaluations of each model that looks ahead

Each round scores the same untrained model with and without probes, in turn, and counts the processor time of both
processes from the first answer on, so that their start is not measured. On a machine that does other work as well the
difference between two rounds says little; the share is therefore taken within the rounds that have probes: what the
scorer spends on them, and of the model's time its part of the answers, all of which are of one shape.

The power is that of the scorer's own schedule, bets and comparisons, on the task's text, against a model of token pairs
that gives 95 % to the next token where it looks ahead, and knows nothing of earlier requests.
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

import numpy as np

TEMPLATE = Path(__file__).resolve().parents[1] / "templates" / "autoresearch"
TICK = os.sysconf("SC_CLK_TCK")


sys.path.insert(0, str(TEMPLATE))
PROBES = importlib.import_module("probes")  # the task's own, as its scorer imports it


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
            answer = receive(number) if isinstance(jobs[number], int) else self._counted(receive, number)
            if self.first is None:
                self.first, self.probes = (time.process_time(), spent(model), time.perf_counter()), 0.0
            return answer

        scorer.channel.receive = timed
        for of, name in ((scorer.bets, "foreseen"), (scorer, "compare")):
            method = getattr(of, name)
            setattr(of, name, lambda *given, method=method: self._counted(method, *given))

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
        part = (sum(not isinstance(job, int) for job in jobs) + self.scorer.plan.decoys) / len(jobs)
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


class Ahead:
    """A model of token pairs that sees the next token at some places.

    Which ones (places, from inputs (B, T), what follows them, and how likely it thought that) is up to the gate.
    """

    def __init__(self, pairs: Any, gate: Callable[..., Any]) -> None:
        self.pairs, self.gate = pairs, gate

    def looks(self, inputs: Any, rows: Any) -> Any:
        """Where (R, T) it looks ahead in some rows of a batch."""
        after = np.roll(inputs[rows], -1, axis=1)
        where = np.array(np.broadcast_to(self.gate(inputs[rows], after, self.pairs, inputs), after.shape))
        where[:, -1] = False
        return where

    def __call__(self, inputs: Any, rows: Any) -> Any:
        """Logits (R, T, V) of some rows."""
        chances = self.pairs[inputs[rows]].copy()
        row, at = np.nonzero(self.looks(inputs, rows))
        chances[row, at] *= 0.05
        chances[row, at, np.roll(inputs[rows], -1, axis=1)[row, at]] += 0.95
        return np.log(chances)


def mixed(*values: Any) -> Any:
    """A number in [0, 1) by content."""
    state = np.zeros(np.broadcast_shapes(*map(np.shape, values)), dtype=np.uint64)
    for value in values:
        state = (state ^ np.asarray(value).astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(29)
    return (state % np.uint64(10**6)).astype(float) / 1e6


def gates(width: int, share: float, frequency: Any, rng: Any) -> dict[str, Callable[..., Any]]:
    """By what a model could choose a share of all places."""
    at, few = np.arange(width), max(1, round(share * width))
    chosen = rng.choice(width - 1, few, replace=False)
    return {
        "nowhere (honest)": lambda s, a, p, b: np.zeros(s.shape, bool),
        "the same few positions": lambda s, a, p, b: np.isin(at, chosen),
        "the first positions": lambda s, a, p, b: at < few,
        "the last positions": lambda s, a, p, b: at >= width - 1 - few,
        "at random, each time": lambda s, a, p, b: rng.random(s.shape) < share,
        "by the token and the next": lambda s, a, p, b: mixed(s, a) < share,
        "by the two tokens before": lambda s, a, p, b: mixed(s, np.roll(s, 1, 1)) < share,
        "by the two that follow": lambda s, a, p, b: mixed(a, np.roll(a, -1, 1)) < share,
        "where the next fits what was before": lambda s, a, p, b: (p[s, a] > 100 * frequency[a]) & (p[s, a] < 0.3),
        "where the next fits, 1 in 5 of these": lambda s, a, p, b: (
            (p[s, a] > 100 * frequency[a]) & (p[s, a] < 0.3) & (mixed(s, a) < 0.2)
        ),
        "where what follows fits the next": lambda s, a, p, b: (
            (p[a, np.roll(a, -1, 1)] > 300 * frequency[np.roll(a, -1, 1)]) & (p[s, a] < 0.05)
        ),
        "whole rows, by their first tokens": lambda s, a, p, b: mixed(s[:, :1], s[:, 1:2], s[:, 2:3]) < share,
        "whole rows, 1 in 10": lambda s, a, p, b: mixed(s[:, :1], s[:, 1:2], s[:, 2:3]) < 0.1,
        "whole batches, 1 in 12": lambda s, a, p, b: np.full(s.shape, mixed(b.sum(), b[0, 0]) < 1 / 12),
    }


def found(plan: Any, given: tuple[Any, Any], vocab: int, model: Ahead, rng: Any) -> tuple[str, float]:
    """How one evaluation would refuse a model, and the logarithm of what the bets against it had come to."""
    how, answers, bets = "", [], PROBES.Bets()
    batches = PROBES.add_decoys(given[0], PROBES.Text(given[1], vocab), plan.rows, plan.decoys, rng)
    for job in PROBES.schedule(batches, vocab, plan.probes, rng):
        inputs, draws = batches.request(job)
        rows = np.unique(draws.rows)
        logits = np.zeros((*inputs.shape, vocab))
        logits[rows] = model(inputs, rows)
        if bets.foreseen(inputs, draws, logits):
            how = "bets"
        if isinstance(job, PROBES.Probe):
            answers.append((job, logits))
    for probe, first in answers:
        for row, (batch, source) in enumerate(zip(probe.batches, probe.rows, strict=True)):
            second = model(batches.windows[batch, :, :-1], np.array([source]))[0]
            if not how and np.abs(first[row, probe.places[row]] - second[probe.places[row]]).max() > plan.tolerance:
                how = "comparison"
    return how, bets.total


def power(rounds: int, share: float) -> None:
    """Print how many evaluations find each of the models that look ahead."""
    plan, rng = load("evaluate").PLANS["cpu"], np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        meta, _ = load("prepare").prepare(data, "cpu", train_bytes=400_000)
        vocab = int(meta["vocab_size"])
        text = np.fromfile(data / "train.bin", dtype="<u2").astype(np.int64)
        val = np.fromfile(data / "val.bin", dtype="<u2").astype(np.int64)
    given = PROBES.read_windows(val, plan.window, plan.rows, plan.batches)
    windows = given[0].reshape(-1, plan.rows, given[0].shape[1])
    frequency = np.bincount(text, minlength=vocab) + 1.0
    frequency /= frequency.sum()
    pairs = np.zeros((vocab, vocab)) + 20 * frequency
    np.add.at(pairs, (text[:-1], text[1:]), 1.0)
    pairs /= pairs.sum(axis=1, keepdims=True)
    print(f"n = {rounds} evaluations each, cpu profile, {plan.probes} probes")
    print(f"{'looks ahead':40} {'places':>8} {'gain':>7} {'found':>7} {'by bets':>8} {'ln(wealth)':>11} {'most':>6}")
    for label, gate in gates(windows.shape[2] - 1, share, frequency, rng).items():
        model = Ahead(pairs, gate)
        looks = np.array([model.looks(batch[:, :-1], np.arange(len(batch))) for batch in windows])
        nats = -np.log(pairs[windows[:, :, :-1], windows[:, :, 1:]])
        results = [found(plan, given, vocab, model, rng) for _ in range(rounds)]
        refused, bets = (sum(how in kinds for how, _ in results) for kinds in (("bets", "comparison"), ("bets",)))
        wealth = [value for _, value in results]
        middle = statistics.median(wealth)
        print(
            f"{label:40} {100 * looks.mean():6.2f} % {100 * (nats * looks).sum() / nats.sum():5.2f} % "
            f"{100 * refused / rounds:5.1f} % {100 * bets / rounds:6.1f} % {middle:11.1f} {max(wealth):6.1f}",
            flush=True,
        )


def main() -> int:
    """Print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--power", type=int, metavar="N", help="measure what N evaluations each find")
    options.add_argument("--share", type=float, default=0.01, help="of the places, for --power")
    given = options.parse_args()
    if given.power:
        power(given.power, given.share)
        return 0
    rounds = given.rounds
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
                scorer.PLANS["cpu"] = plan if probes else replace(plan, probes=0, decoys=0)
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
