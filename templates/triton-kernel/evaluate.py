"""The scorer of the `triton-kernel` task, cpu profile: the kernel's time, as a share of plain NumPy's. Protected.

It never imports the edited file. That runs in another process (`serve.py`), whose processor time a third one reads
(`meter.py`, which says why that can be believed). Every call has inputs of its own, drawn from a seed that the
system gives (`secrets`); before it, the place of the outputs is filled with NaN, and other data are read until the
caches hold nothing of the inputs. Every result is compared with float64: one number that is further off than
`problem.py` allows, and there is no score (`LABEL gate_miss`, exit 3). The yardstick runs here, right before, on
the same inputs.

`relative_latency` is the geometric mean over the shapes of the median over the calls of the kernel's time by the
yardstick's. `kernel_latency_us` is the geometric mean of the kernel's median times, in microseconds of this machine.

Exit codes: 0 scored · 1 no score (one line on stderr says why) · 3 a result that is not close enough.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from pathlib import Path

import numpy as np
from channel import Channel, EvaluationError
from exchange import Refused, tell
from problem import SHAPES, draw, error, truth, yardstick

CALLS = 16  # for each shape
WARM_UP = 2  # calls for each shape that are checked and not timed
FLUSH = np.zeros(1 << 23, np.float32)  # 32 MiB: more than most caches hold
SCRATCH = [np.zeros((2, *shape), np.float32) for shape in SHAPES]  # of the yardstick


def flush() -> None:
    """Drive everything else out of the caches."""
    np.add(FLUSH, 1, out=FLUSH)


def call(channel: Channel, number: int, shape: int) -> tuple[float, float, float]:
    """One call: how far off it is (in what is allowed), and seconds of the kernel and of the yardstick."""
    rows, columns = SHAPES[shape]
    inputs = draw(np.random.default_rng(secrets.randbits(128)), rows, columns)
    out = np.empty((rows, columns), np.float32)
    flush()
    began = time.process_time_ns()
    yardstick(inputs, out, *SCRATCH[shape])
    reference = (time.process_time_ns() - began) / 1e9
    channel.write(inputs.bytes())
    out.fill(np.nan)
    channel.poison(out.tobytes())
    flush()
    given, seconds = channel.ask(number, shape)
    if given != out.nbytes:
        raise EvaluationError(f"call {number} gave {given} bytes in the place of {out.nbytes}")
    channel.read(memoryview(out).cast("B"))
    return error(out, truth(inputs)), seconds, reference


def metrics() -> dict[str, str]:
    """The kernel's time beside the yardstick's, and alone; how far off it was at most."""
    sizes = [rows * columns * 4 for rows, columns in SHAPES]
    times = np.empty((CALLS, len(SHAPES), 2))
    worst, number = 0.0, 0
    largest = max(2 * size + 8 * columns for size, (_, columns) in zip(sizes, SHAPES, strict=True))
    channel = Channel(Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"]), largest, max(sizes))
    for turn in range(-WARM_UP, CALLS):
        for shape in np.random.default_rng(secrets.randbits(128)).permutation(len(SHAPES)).tolist():
            number += 1
            off, *took = call(channel, number, shape)
            worst = max(worst, off)
            if off > 1:
                raise Refused("gate_miss", "correct=0", f"shape {SHAPES[shape]}: off by {off:.3g} times the tolerance")
            times[max(turn, 0), shape] = took
    ratios = np.median(times[:, :, 0] / times[:, :, 1], axis=0)
    return {
        "relative_latency": f"{np.exp(np.log(ratios).mean()):.5f}",
        "kernel_latency_us": f"{1e6 * np.exp(np.log(np.median(times[:, :, 0], axis=0)).mean()):.2f}",
        "worst_error": f"{worst:.4f}",
        "correct": "1",
    }


if __name__ == "__main__":
    sys.exit(tell(metrics))
