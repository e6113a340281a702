"""The problem of `problem.py` on a GPU: shapes, tensors, and how a launch is timed. Protected.

Tensors are float16. On a machine without a GPU all of it runs on the processor as well (`KERNEL_DEVICE=cpu`), with
Triton's interpreter and far smaller shapes: that tries the programs and measures nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from problem import CUBE, EPSILON, SCALES, SLOPE

SMALL = os.environ.get("KERNEL_DEVICE") == "cpu"
SHAPES = ((6, 160), (3, 1000)) if SMALL else ((16384, 2048), (4096, 1024), (8192, 4096), (2047, 5000))
FLUSH_BYTES = 1 << 20 if SMALL else 256 << 20  # more than an L2 cache holds
LAUNCHES = 4 if SMALL else 48  # of each shape, by the scorer's clock
DRAW, MANY = 1000, 2000  # see serve_cuda.py


def views(memory: Any, rows: int, columns: int) -> Any:
    """The four arguments in a piece of memory."""
    x, residual, bias, weight = memory.split([rows * columns, rows * columns, columns, columns])
    return x.view(rows, columns), residual.view(rows, columns), bias, weight


def draw(generator: Any, rows: int, columns: int, device: str) -> Any:
    """Fresh inputs in one piece of memory; rows are of very different size."""
    import torch

    def normal(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, device=device)

    scales = torch.tensor(SCALES, dtype=torch.float32, device=device)
    chosen = scales[torch.randint(len(scales), (2, rows, 1), generator=generator, device=device)]
    wide = normal(2, rows, columns) * chosen
    return torch.cat([wide.flatten(), normal(columns), 1 + normal(columns) / 4]).half()


def draw_many(seed: int, rows: int, columns: int, device: str) -> tuple[Any, Any]:
    """Inputs for LAUNCHES launches, but for bias and weight; both processes draw them from one seed."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    kind = {"generator": generator, "device": device, "dtype": torch.float16}
    return torch.randn((LAUNCHES, rows, columns), **kind), torch.randn((LAUNCHES, rows, columns), **kind)


def digest(out: Any, vector: Any) -> Any:
    """Each row of a result in one number, which nobody knows without the row; float32."""
    return out.float() @ vector.float()


def truth(x: Any, residual: Any, bias: Any, weight: Any) -> Any:
    """The result in float64."""
    z = x.double() + bias.double()
    h = residual.double() + z / 2 * (1 + (SLOPE * (z + CUBE * z**3)).tanh())
    return h / (h.square().mean(1, keepdim=True) + EPSILON).sqrt() * weight.double()


def yardstick(x: Any, residual: Any, bias: Any, weight: Any, out: Any) -> None:
    """The same with PyTorch's own kernels, one after another: what times are compared with."""
    import torch

    h = residual + torch.nn.functional.gelu(x + bias, approximate="tanh")
    out.copy_(h * (h.float().square().mean(1, keepdim=True) + EPSILON).rsqrt().half() * weight)


def new_timer(device: str) -> Callable[[Callable[[], None]], int]:
    """Something that runs a function and gives nanoseconds: by CUDA events, on the processor by the clock."""
    import torch

    if device == "cpu":

        def by_clock(run: Callable[[], None]) -> int:
            began = time.perf_counter_ns()
            run()
            return time.perf_counter_ns() - began

        return by_clock
    event, synchronize, elapsed = torch.cuda.Event, torch.cuda.synchronize, torch.cuda.Event.elapsed_time

    def by_events(run: Callable[[], None]) -> int:
        start, end = event(enable_timing=True), event(enable_timing=True)
        synchronize()
        start.record()
        run()
        end.record()
        synchronize()
        return int(1e6 * elapsed(start, end))

    return by_events
