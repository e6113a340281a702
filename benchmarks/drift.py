"""How many improvements the early-abort policy loses when the history drifts: streams made to mislead it.

    python benchmarks/drift.py --curves DIR [--seeds 2] [--policy module:factory]

DIR holds recorded curves and their referee (``replay.py``). Its families are replayed in orders and with distortions
that a daemon may meet; synthetic programs are added whose curves cross, cool down late, wait on a plateau, or change
in steps. On the last four of these (``UNSEEN``) nothing was chosen. The referee's own rules judge: G is full time over
time spent; lost is an aborted run that would have beaten the incumbent by more than delta.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from autoresearchd.evaluator.abort.abort_policy import AbortPolicy

Run = dict[str, Any]
LENGTH = 150
PROGRESS = np.arange(1, 121) / 120
DELTA = 0.02


class ReplayPolicy(AbortPolicy):
    """Ours behind the referee's interface: what is new in the history is observed, then the run is judged."""

    def __call__(self, history: list[Run], steps: Any, losses: Any, budget: float, incumbent: float) -> bool:
        for run in history[self.promise.aborted + self.promise.finished :]:
            self.observe(run["steps"], run["losses"], run["budget"], run["final"], aborted=bool(run["aborted"]))
        return self.look(steps, losses, budget, incumbent).abort


def load_referee(folder: Path) -> ModuleType:
    """The module ``replay.py`` of the folder that holds the curves."""
    spec = importlib.util.spec_from_file_location("replay", folder / "replay.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"no replay.py in {folder}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["replay"] = module
    spec.loader.exec_module(module)
    return module


# ---------------------------------------------------------------------- real curves, distorted
def distorted(runs: list[Run], delta: float, seed: int) -> Iterator[tuple[str, list[Run]]]:
    """Streams made of one family's runs."""
    rng = np.random.default_rng(seed)
    finals = np.array([run["final"] for run in runs])
    finals = np.where(np.isfinite(finals), finals, finals[np.isfinite(finals)].max())
    spread = float(min(finals.std(), np.subtract(*np.percentile(finals, [75, 25])) / 1.35))
    some = rng.permutation(len(runs))[:LENGTH]
    loose = some[np.argsort(-(finals[some] + rng.normal(0, 0.5 * spread, len(some))))]
    tight = some[np.argsort(-(finals[some] + rng.normal(0, 0.15 * spread, len(some))))]
    count = len(some)
    walk = np.cumsum(rng.normal(0, delta, count))
    shifts = rng.normal(0, 10 * delta, count)
    nats = float(np.log2(np.e))

    def stream(order: np.ndarray, change: Callable[[int, np.ndarray], np.ndarray] | None = None) -> list[Run]:
        made = [dict(runs[i]) for i in order]
        for k, run in enumerate(made if change else []):
            run["y"] = change(k, np.array(run["y"], float))  # type: ignore[misc]
        return made

    def noisy(k: int, y: np.ndarray) -> np.ndarray:
        return y + np.random.default_rng(seed * 1000 + k).normal(0, 6 * delta, len(y))

    yield "improving, noisy", stream(loose)
    yield "improving steadily", stream(tight)
    yield "getting worse", stream(loose[::-1])
    yield "offset rises", stream(loose, lambda k, y: y + 15 * delta * k / count)
    yield "offset falls", stream(loose, lambda k, y: y - 15 * delta * k / count)
    yield "offset walks", stream(some, lambda k, y: y + walk[k])
    yield "offset scatters", stream(some, lambda k, y: y + shifts[k])
    yield "noisier log", stream(loose, noisy)
    yield "unit changes, improving", stream(loose, lambda k, y: y * nats if k > count / 2 else y)
    yield "unit changes, shuffled", stream(some, lambda k, y: y * nats if k > count / 2 else y)


# ---------------------------------------------------------------------- synthetic programs
def curve(end: float, fall: float, power: float, *, cool: float = 0.0, share: float = 0.3) -> np.ndarray:
    """A power law that would end near ``end``, with a cool-down of depth ``cool`` over the last ``share``."""
    law = end + fall * ((PROGRESS + 0.02) / 1.02) ** -power
    return np.asarray(law - cool * np.clip((PROGRESS - (1 - share)) / share, 0, 1) ** 1.3)


def logged(
    y: np.ndarray, rng: np.random.Generator, *, offset: float = 0.3, noise: float = 0.02, gift: float = 0.0
) -> Run:
    """A run whose log has noise and an offset from the metric, which the evaluation lowers by ``gift``."""
    final = float(y[-1] - gift + rng.normal(0, DELTA / 2))
    return {"x": PROGRESS, "y": y + offset + rng.normal(0, noise, len(y)), "final": final, "full": 1.0}


def power_laws(k: int, rng: np.random.Generator) -> Run:
    gap = rng.exponential(0.3) * (1 - 0.5 * k / LENGTH) + 0.3 * (1 - k / LENGTH)
    return logged(curve(2.5 + gap, rng.uniform(0.2, 0.6), rng.uniform(0.3, 0.8)), rng)


def cool_downs(k: int, rng: np.random.Generator) -> Run:
    gap = rng.exponential(0.2) * (1 - 0.5 * k / LENGTH) + 0.2 * (1 - k / LENGTH)
    shape = {"cool": rng.uniform(0.1, 0.4), "share": rng.uniform(0.1, 0.9)}
    return logged(curve(2.5 + gap, rng.uniform(0.2, 0.6), rng.uniform(0.3, 0.8), **shape), rng)


def longer_cool_downs(k: int, rng: np.random.Generator) -> Run:
    age = k / LENGTH
    gap = 0.25 * (1 - age) + rng.exponential(0.1)
    return logged(curve(2.5 + gap, 0.4, 0.5, cool=0.1 + 0.4 * age, share=0.2 + 0.6 * age), rng, gift=-0.25 * age)


def crossing(k: int, rng: np.random.Generator) -> Run:
    slow = rng.uniform(0, 1)
    end = 2.6 - 0.3 * slow + rng.exponential(0.1) + 0.2 * (1 - k / LENGTH)
    return logged(curve(end, 0.2 + 0.4 * slow, 0.3 + 0.3 * slow), rng)


def ever_slower_starts(k: int, rng: np.random.Generator) -> Run:
    slow = k / LENGTH + rng.uniform(-0.2, 0.2)
    return logged(curve(2.6 - 0.3 * slow + rng.exponential(0.1), 0.2 + 0.5 * max(slow, 0), 0.5), rng)


def plateaus(k: int, rng: np.random.Generator) -> Run:
    y = curve(2.5 + rng.exponential(0.2) + 0.2 * (1 - k / LENGTH), 0.3, 0.5)
    if rng.random() < 0.3:
        y = y - rng.uniform(0.1, 0.6) / (1 + np.exp(-(PROGRESS - rng.uniform(0.2, 0.8)) / 0.03))
    return logged(y, rng)


def near_ties(k: int, rng: np.random.Generator) -> Run:
    return logged(curve(2.5 - 0.004 * (k // 12) + rng.normal(0, 0.008), 0.4, 0.5, cool=0.1), rng, noise=0.01)


def wandering_offset(k: int, rng: np.random.Generator) -> Run:
    y = curve(1.1 + 0.15 * (1 - k / LENGTH) + rng.exponential(0.015), 0.2, 0.4, cool=0.06, share=rng.uniform(0.1, 0.6))
    return logged(y, rng, offset=0.1 * np.sin(k / 15) + rng.normal(0, 0.15) + 0.2 * k / LENGTH, noise=0.03)


def authors_in_turn(k: int, rng: np.random.Generator) -> Run:
    author, era = np.random.default_rng(2000 + k // 8), np.random.default_rng(3000 + k // 20)
    end = 1.2 - 0.0004 * k + author.normal(0, 0.01)
    y = curve(
        end, 0.2 + 0.02 * author.normal(), 0.4, cool=0.06 + 0.02 * author.uniform(), share=author.uniform(0.2, 0.6)
    )
    return logged(y, rng, offset=0.05 * era.normal(), gift=0.015 * (k // 20))


def late_bloomers(k: int, rng: np.random.Generator) -> Run:
    if rng.random() < 0.1:
        return logged(curve(2.55 + 0.15 * rng.random(), 0.6, 0.5, cool=0.3, share=0.7), rng)
    return logged(curve(2.6 + rng.exponential(0.25), 0.3, 0.5, cool=0.05), rng)


def regimes(k: int, rng: np.random.Generator) -> Run:
    era = np.random.default_rng(1000 + k // 25)
    end = 2.6 - 0.05 * (k // 25) + rng.exponential(0.08)
    y = curve(
        end, 0.2 + 0.5 * era.uniform(), 0.3 + 0.4 * era.uniform(), cool=0.4 * era.uniform(), share=era.uniform(0.2, 0.8)
    )
    return logged(y, rng, offset=0.2 + 0.3 * era.uniform())


def warm_restarts(k: int, rng: np.random.Generator) -> Run:
    """The learning rate goes down in cycles: the loss rises anew at each, and only the last one counts."""
    cycles = rng.integers(1, 5)
    y = curve(2.5 + rng.exponential(0.25), rng.uniform(0.2, 0.5), rng.uniform(0.4, 0.7))
    return logged(y + rng.uniform(0.05, 0.3) * (1 - (PROGRESS * cycles - 1e-9) % 1.0), rng)


def growing_batches(k: int, rng: np.random.Generator) -> Run:
    """The loss falls in steps, and its noise with it."""
    y = curve(2.6 + rng.exponential(0.25), 0.3, 0.5)
    for at in rng.uniform(0.2, 0.95, rng.integers(0, 4)):
        y = y - rng.uniform(0.02, 0.15) * (at < PROGRESS)
    return logged(y + rng.normal(0, 0.08, len(y)) * (1 - PROGRESS), rng)


def another_metric(k: int, rng: np.random.Generator) -> Run:
    """The metric is an error rate, a curved function of the loss, on data that not all programs suit alike."""
    run = logged(curve(1.5 + rng.exponential(0.4), rng.uniform(0.3, 0.8), rng.uniform(0.3, 0.8)), rng)
    return {**run, "final": float(1 - np.exp(-0.4 * run["final"] ** 1.5) + rng.normal(0, 0.03))}


def larger_models(k: int, rng: np.random.Generator) -> Run:
    """They get slower and end lower; one in three is spoiled by its learning rate."""
    size = rng.uniform(0, 1) * (0.5 + 0.5 * k / LENGTH)
    spoiled = rng.exponential(0.5) if rng.random() < 0.35 else 0.0
    return logged(curve(2.7 - 0.4 * size + spoiled + rng.normal(0, 0.03), 0.15 + 0.6 * size, 0.6 - 0.2 * size), rng)


SYNTHETIC: tuple[Callable[[int, np.random.Generator], Run], ...] = (
    power_laws,
    cool_downs,
    longer_cool_downs,
    crossing,
    ever_slower_starts,
    plateaus,
    near_ties,
    wandering_offset,
    authors_in_turn,
    late_bloomers,
    regimes,
    warm_restarts,
    growing_batches,
    another_metric,
    larger_models,
)


UNSEEN = tuple(make.__name__.replace("_", " ") for make in SYNTHETIC[-4:])


def all_streams(referee: ModuleType, folder: Path, seeds: int) -> Iterator[tuple[str, str, list[Run], float]]:
    """(kind, name, runs, delta) of every stream."""
    for family, runs in referee.load_families(str(folder)).items():
        delta = referee.DELTA[family]
        for seed in range(seeds):
            for kind, stream in distorted(runs, delta, 11 + seed):
                yield kind, family, stream, delta
    for make in SYNTHETIC:
        for seed in range(2 * seeds):
            rng = np.random.default_rng(seed)
            yield "synthetic", make.__name__.replace("_", " "), [make(k, rng) for k in range(LENGTH)], DELTA


def measure(
    referee: ModuleType, folder: Path, factory: Callable[[], Any], seeds: int
) -> dict[tuple[str, str], dict[str, float]]:
    """Sums of the referee's counts for each kind of stream, synthetic ones by program."""
    sums: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kind, name, stream, delta in all_streams(referee, folder, seeds):
        key = (kind, name) if kind == "synthetic" else ("real curves", kind)
        for what, value in referee.replay(stream, factory(), delta).items():
            sums[key][what] += value
    return sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--curves", type=Path, required=True, help="folder with replay.py and its data")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--policy", default="drift:ReplayPolicy")
    args = parser.parse_args()
    referee = load_referee(args.curves)
    module, _, name = args.policy.partition(":")
    factory = getattr(importlib.import_module(module), name)
    total: dict[str, float] = defaultdict(float)
    unseen: dict[str, float] = defaultdict(float)
    print(f"{'':13s} {'stream':26s} {'improvements':>12s} {'lost':>5s} {'G':>6s}")
    for (kind, what), row in measure(referee, args.curves, factory, args.seeds).items():
        print(f"{kind:13s} {what:26s} {row['imp']:12.0f} {row['false']:5.0f} {row['full'] / row['spent']:6.2f}")
        for key in ("imp", "false", "full", "spent"):
            total[key] += row[key]
            unseen[key] += row[key] * (what in UNSEEN)
    for words, sums in (("all", total), ("unseen", unseen)):
        rate, limit = sums["false"] / sums["imp"], referee.wilson(sums["false"], sums["imp"])
        print(
            f"{words:13s} {'':26s} {sums['imp']:12.0f} {sums['false']:5.0f} {sums['full'] / sums['spent']:6.2f}"
            f"   lost {rate:.1%}, 95% limit {limit:.1%}"
        )


if __name__ == "__main__":
    main()
