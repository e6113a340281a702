"""The scorer of the `triton-kernel` task, cuda profile: the kernel's time, as a share of PyTorch's. Protected.

It never imports the edited file: that runs in another process (`serve_cuda.py`). Every call has inputs of its own,
drawn from a seed that the system gives (`secrets`); before it the place of the result is filled with NaN and the
L2 cache is overwritten. Every result is compared with float64; one number that is further off than `problem.py`
allows, and there is no score (`LABEL gate_miss`, exit 3). CUDA events tell the times, of the kernel and of the
yardstick, which runs here, before any edited code does: a process beside it could keep the GPU busy.

Events are read in the process of the edited code. So this one's clock is held against them, for each shape: of
LAUNCHES launches on inputs of their own, from the moment when bias and weight are sent (nothing can be computed
without) until a digest of every row of every result is back. A kernel that claims less than HONEST of what that
leaves for a launch, each time that it is tried, is told `LABEL metric_tampering`, exit 3. That is coarse: it keeps a
kernel from claiming that it takes no time, and no more.

`relative_latency` is the geometric mean over the shapes of the ratio of both medians; `kernel_latency_us` is that of
the kernel's medians, in microseconds.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path

import numpy as np
import torch
from channel import Channel, EvaluationError
from problem import HALF_TOLERANCE
from problem_cuda import (
    DRAW,
    FLUSH_BYTES,
    LAUNCHES,
    MANY,
    SHAPES,
    SMALL,
    digest,
    draw,
    draw_many,
    new_timer,
    truth,
    views,
    yardstick,
)  # fmt: skip

CALLS = 2 if SMALL else 15  # for each shape
WARM_UP = 1 if SMALL else 3  # calls for each shape that are checked and not timed
HONEST = 0.5
TRIES = 5  # by the clock, which sees other programs' time as well; no kernel is faster than it is
OVERHEAD = 0.002  # seconds of the clock for requests and digests
LAUNCH = 30e-6  # seconds of the processor for a launch: a queue that runs empty is no lie
DEVICE = os.environ.get("KERNEL_DEVICE", "cuda")


class Refused(Exception):
    """No score. label: what to call it."""

    def __init__(self, label: str, what: str) -> None:
        super().__init__(what)
        self.label = label


def off(said: torch.Tensor, true: torch.Tensor, tolerance: float = HALF_TOLERANCE) -> float:
    """How far a result is off, as a multiple of what is allowed; infinite where it is no number."""
    found = (said.double() - true).abs() / (tolerance * (1 + true.abs()))
    return float(found.max()) if bool(found.isfinite().all()) else float("inf")


class Scorer:
    """Sends calls, checks results, takes times."""

    def __init__(self, folder: Path) -> None:
        largest = max(rows * columns * 2 for rows, columns in SHAPES)
        self.timed = new_timer(DEVICE)
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=DEVICE)
        turns = [[self.yardstick(*shape) for shape in SHAPES] for _ in range(WARM_UP + CALLS)]
        self.references = np.median(turns[WARM_UP:], axis=0)
        # From here on the edited file may run.
        self.channel = Channel(folder, 2 * largest + 4 * max(c for _, c in SHAPES), max(largest, 1 << 22))
        self.number = 0

    def yardstick(self, rows: int, columns: int) -> float:
        """Seconds that PyTorch's own kernels take."""
        memory = draw(torch.Generator(DEVICE).manual_seed(secrets.randbits(62)), rows, columns, DEVICE)
        parts = views(memory, rows, columns)
        out = torch.empty((rows, columns), dtype=torch.float16, device=DEVICE)
        self.flush.zero_()
        return self.timed(lambda: yardstick(*parts, out)) / 1e9

    def ask(
        self, what: int, sent: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
    ) -> tuple[torch.Tensor, float]:
        """What comes back, as a tensor on the device, and the seconds that it is said to have taken."""
        self.number += 1
        self.channel.write(memoryview(sent.cpu().numpy()))
        back = torch.full(shape, float("nan"), dtype=dtype)
        place = memoryview(back.numpy()).cast("B")
        self.channel.poison(bytes(place))
        given, seconds = self.channel.ask(self.number, what, 60.0)
        if given != len(place):
            raise EvaluationError(f"call {self.number} gave {given} bytes in the place of {len(place)}")
        self.channel.read(place)
        return back.to(DEVICE), seconds

    def call(self, shape: int) -> tuple[float, float]:
        """One launch: how far off it is, and seconds that it is said to have taken."""
        rows, columns = SHAPES[shape]
        memory = draw(torch.Generator(DEVICE).manual_seed(secrets.randbits(62)), rows, columns, DEVICE)
        parts = views(memory, rows, columns)
        said, seconds = self.ask(shape, memory, (rows, columns), torch.float16)
        return off(said, truth(*parts)), seconds

    def by_the_clock(self, shape: int) -> tuple[float, float]:
        """Seconds that a launch of a shape with a digest took, as this process saw it, and the digest alone."""
        rows, columns = SHAPES[shape]
        seed = secrets.randbits(62)
        self.ask(DRAW + shape, torch.tensor([seed]), (0,), torch.float32)
        many = draw_many(seed, rows, columns, DEVICE)
        bias, weight, vector = sent = torch.randn((3, columns), device=DEVICE).half()
        out = torch.empty((rows, columns), dtype=torch.float16, device=DEVICE)
        extra = min(self.timed(lambda: digest(out, vector)) for _ in range(5)) / 1e9
        began = time.perf_counter()
        said, _ = self.ask(MANY + shape, sent, (LAUNCHES, rows), torch.float32)
        took = time.perf_counter() - began
        for got, x, residual in zip(said, *many, strict=True):
            true = truth(x, residual, bias, weight)
            if off(got, true @ vector.double(), HALF_TOLERANCE * columns**0.5) > 1:
                raise Refused("gate_miss", "a digest of many launches is not right")
        return (took - OVERHEAD) / LAUNCHES, extra


def score(scorer: Scorer) -> tuple[np.ndarray, float]:
    """Median seconds of the kernel, for each shape, and the largest error."""
    times = np.empty((CALLS, len(SHAPES)))
    worst = 0.0
    for turn in range(-WARM_UP, CALLS):
        for shape in range(len(SHAPES)):
            error, took = scorer.call(shape)
            if error > 1:
                raise Refused("gate_miss", f"shape {SHAPES[shape]}: off by {error:.3g} times the tolerance")
            worst, times[max(turn, 0), shape] = max(worst, error), took
    medians = np.median(times, axis=0)
    for shape, claimed in enumerate(medians):
        # Each at its best: a load that the kernel makes must not lengthen what is taken off.
        took = extra = float("inf")
        for _ in range(TRIES):
            took, extra = (min(pair) for pair in zip((took, extra), scorer.by_the_clock(shape), strict=True))
            least = took - extra
            if claimed + LAUNCH >= HONEST * least:
                break
        else:
            what = f"shape {SHAPES[shape]}: {claimed:.3g} s are claimed and {least:.3g} s were seen"
            raise Refused("metric_tampering", what)
    return medians, worst


def main() -> int:
    """Score, and say what came of it in `METRIC` lines and an exit code."""
    began = time.monotonic()
    try:
        scorer = Scorer(Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"]))
        medians, worst = score(scorer)
    except KeyError as missing:
        print(f"evaluate_cuda.py: {missing} is not set in the environment", file=sys.stderr)
        return 1
    except Refused as refused:
        print(f"METRIC correct=0\nLABEL {refused.label}", flush=True)
        print(f"evaluate_cuda.py: {refused}", file=sys.stderr)
        return 3
    except (EvaluationError, OSError) as problem:
        print(f"evaluate_cuda.py: {problem}", file=sys.stderr)
        return 1
    print(f"METRIC relative_latency={np.exp(np.log(medians / scorer.references).mean()):.5f}")
    print(f"METRIC kernel_latency_us={1e6 * np.exp(np.log(medians).mean()):.2f}")
    print(f"METRIC worst_error={worst:.4f}\nMETRIC correct=1")
    print(f"METRIC eval_seconds={time.monotonic() - began:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
