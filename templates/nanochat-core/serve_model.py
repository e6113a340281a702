"""The model process of the evaluation: answers rows of bytes with logits. Protected.

`serving.py` says how, and why nothing can be gained here. A child imports the edited `train` and loads
`$AUTORESEARCHD_OUTPUT_DIR/checkpoint.pt` through `train.load_model`, after a filter of system calls has been laid over
it: it may read files, compute and start threads, no more. On a GPU, whose drivers want more, there is no filter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also under `python -P`

from serving import Answer, answer_with, confine, on_cuda, run, unsafe


def prepare(_: Path) -> tuple[Callable[[], Answer], bool]:
    """What a child does first, and whether it runs on a GPU."""
    checkpoint = Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]).resolve() / "checkpoint.pt"
    import torch

    problem = unsafe(torch, checkpoint)
    if problem:
        raise ValueError(problem)
    cuda = on_cuda(torch)

    def load() -> Answer:
        if not cuda:
            confine()
        import train

        device = torch.device("cuda" if cuda else "cpu")
        return answer_with(torch, train.load_model(checkpoint, device), device, torch.uint8)

    return load, cuda


if __name__ == "__main__":
    sys.exit(run(prepare, symbol=1))
