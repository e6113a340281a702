"""The program's process in the evaluation: renders what it is sent with the edited engine. Protected.

It runs in the experiment's workspace, in a sandbox of its own. All that leaves it are outputs, and the processor time
that they took, which `meter.py` reads from outside of the process that the edited code runs in.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`

from meter import Answer, serve
from workload import render_all


def prepare() -> Answer:
    """Import the engine."""
    import template

    def answer(inputs: int, outputs: int, size: int) -> int:
        said = render_all(template.Template, template.TemplateError, os.pread(inputs, size, 0))
        written = 0
        while written < len(said):
            written += os.pwrite(outputs, said[written:], written)
        return len(said)

    return answer


if __name__ == "__main__":
    sys.exit(serve(prepare))
