"""What a run does before it is scored: the edited kernel on fresh inputs, against float64. Protected.

A wrong result ends the run here, before anybody measures its time. `--interpret` tries `kernel.py` in Triton's
interpreter, which needs no GPU: `pip install triton`, then `TRITON_INTERPRET=1 python rehearse.py --interpret`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from problem import HALF_TOLERANCE, SHAPES, TOLERANCE, Array, Inputs, draw, error, truth

SMALL = ((5, 160), (3, 1000), (2, 4096))  # for the interpreter, which takes its time
Compute = Callable[[Inputs, Array], None]


def on_numpy() -> Compute:
    """The kernel of the cpu profile."""
    import kernel_cpu

    return lambda inputs, out: kernel_cpu.fused(inputs.x, inputs.residual, inputs.bias, inputs.weight, out)


def on_triton(device: str) -> Compute:
    """The kernel of the cuda profile, on a device; its inputs are rounded to float16 before."""
    import kernel
    import torch

    def compute(inputs: Inputs, out: Array) -> None:
        parts: list[Any] = [torch.from_numpy(p).half().to(device) for p in inputs.parts()]
        result = torch.full(out.shape, float("nan"), dtype=torch.float16, device=device)
        kernel.fused(*parts, result)
        out[:] = result.float().cpu().numpy()

    return compute


def main() -> int:
    """Print the largest error, in units of the tolerance, and the time; exit 1 when a result is not close enough."""
    interpreted = "--interpret" in sys.argv
    if interpreted and os.environ.get("TRITON_INTERPRET") != "1":
        print("rehearse.py: set TRITON_INTERPRET=1 as well: Triton reads it when it is imported", file=sys.stderr)
        return 1
    half = interpreted or os.environ.get("AUTORESEARCHD_PROFILE") == "cuda"
    compute = on_triton("cpu" if interpreted else "cuda") if half else on_numpy()
    rng = np.random.default_rng()
    worst, took = 0.0, 0.0
    for rows, columns in SMALL if interpreted else SHAPES:
        inputs = draw(rng, rows, columns)
        inputs = inputs.rounded() if half else inputs
        out = np.full((rows, columns), np.nan, np.float32)
        began = time.perf_counter()
        compute(inputs, out)
        took += time.perf_counter() - began
        worst = max(worst, error(out, truth(inputs), HALF_TOLERANCE if half else TOLERANCE))
    print(f"rehearsed_error: {worst:.4f}\nrehearsed_ms: {1000 * took:.2f}")
    if worst > 1:
        print(f"FAIL: off by {worst:.3g} times the tolerance")
    return 0 if worst <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
