"""The kernel's process in the evaluation, cpu profile: computes what it is sent with the edited kernel. Protected.

It runs in the experiment's workspace, in a sandbox of its own. Inputs and outputs lie in shared memory; the
processor time is read by `meter.py`, from outside of the process that the edited code runs in.
"""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`

from meter import Answer, serve


def prepare() -> Answer:
    """Import the kernel."""
    import kernel_cpu
    import numpy as np
    from problem import SHAPES, views

    def mapped(handle: int, **how: int) -> np.ndarray:
        return np.frombuffer(mmap.mmap(handle, 0, **how), np.float32)

    memory: dict[str, np.ndarray] = {}

    def answer(inputs: int, outputs: int, shape: int) -> int:
        if not memory:
            memory.update(inputs=mapped(inputs, prot=mmap.PROT_READ), outputs=mapped(outputs))
        rows, columns = SHAPES[shape]
        out = memory["outputs"][: rows * columns].reshape(rows, columns)
        kernel_cpu.fused(*views(memory["inputs"], rows, columns), out)
        return rows * columns * 4

    return answer


if __name__ == "__main__":
    sys.exit(serve(prepare))
