"""The kernel's process in the evaluation, cuda profile: computes what it is sent with the edited kernel. Protected.

It runs in the experiment's workspace, in a sandbox of its own. CUDA events tell the time of a launch in the
process that made it, which is this one: what edited code patches here could falsify them. `evaluate_cuda.py`
therefore holds against them what its own clock saw of many launches.

What is asked for, by the second number of a request: a shape (one launch on the inputs that were sent, timed by
events); a shape and DRAW (make many inputs from a seed); a shape and MANY (one launch on each of them).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`

from meter import REPLY, REQUEST, open_pipes
from problem_cuda import DRAW, FLUSH_BYTES, MANY, SHAPES, digest, draw_many, new_timer, views


def main() -> int:
    """Serve until the scorer closes its end."""
    folder = Path(os.environ["AUTORESEARCHD_EXCHANGE_DIR"])
    requests, replies = open_pipes(folder)
    inputs, outputs = os.open(folder / "inputs.bin", os.O_RDONLY), os.open(folder / "outputs.bin", os.O_WRONLY)
    import torch

    device = os.environ.get("KERNEL_DEVICE", "cuda")
    timed = new_timer(device)  # before the edited file is there
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device)
    import kernel

    def sent(dtype: Any, size: int) -> Any:
        raw = os.pread(inputs, size * dtype.itemsize, 0)
        return torch.frombuffer(bytearray(raw), dtype=dtype).to(device)

    def give(found: Any) -> int:
        data = memoryview(found.cpu().numpy()).cast("B")
        done = 0
        while done < len(data):
            done += os.pwrite(outputs, data[done:], done)
        return len(data)

    many: tuple[Any, Any] | None = None
    while len(record := os.read(requests, REQUEST.size)) == REQUEST.size:
        number, what = REQUEST.unpack(record)
        given, nanoseconds = 0, 0
        rows, columns = SHAPES[what % DRAW]
        if number and what < DRAW:
            parts = views(sent(torch.float16, 2 * (rows + 1) * columns), rows, columns)
            out = torch.full((rows, columns), float("nan"), dtype=torch.float16, device=device)
            flush.zero_()
            nanoseconds = timed(lambda: kernel.fused(*parts, out))  # noqa: B023  # called at once
            given = give(out)
        elif number and what < MANY:
            many = None  # two at once are more than a small GPU has room for
            many = draw_many(int(sent(torch.int64, 1)[0]), rows, columns, device)
            # The first product of a process takes a tenth of a second; and the device has yet to draw the inputs.
            out = torch.zeros((rows, columns), dtype=torch.float16, device=device)
            digest(out, many[0][0, 0]).sum().item()
        elif number and many is not None:
            bias, weight, vector = sent(torch.float16, 3 * columns).view(3, columns)
            out = torch.full((rows, columns), float("nan"), dtype=torch.float16, device=device)
            found = []
            for x, residual in zip(*many, strict=True):
                kernel.fused(x, residual, bias, weight, out)
                found.append(digest(out, vector))
            given = give(torch.stack(found))
        os.write(replies, REPLY.pack(number, given, nanoseconds))
    return 0


if __name__ == "__main__":
    try:
        status = main()
    except BrokenPipeError:  # the scorer has ended: so do we
        status = 0
    except TimeoutError as problem:
        print(f"serve_cuda.py: {problem}", file=sys.stderr)
        status = 1
    sys.exit(status)
