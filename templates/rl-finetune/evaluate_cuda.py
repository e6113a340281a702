"""Score the weights that a run has trained, in the `cuda` profile. Protected; it runs no edited code.

The weights are put into the model of `data/policy`, which answers the private problems of GSM8K, the likeliest token at
each place. As in `evaluate.py`, the share on the test problems is printed as text and is no metric.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arrays import opened
from evaluate import tell
from gsm8k import answers, loaded, number, problems, told
from safetensors import SafetensorError
from safetensors.torch import load

LARGEST_BYTES = 4_000_000_000
ROWS = 256  # problems that are answered beside each other


def read(path: Path) -> dict[str, torch.Tensor] | str:
    """The tensors in a file that a run has left, or what is wrong with it."""
    file = opened(path, LARGEST_BYTES)
    if isinstance(file, str):
        return file
    with file:
        try:
            found: dict[str, torch.Tensor] = load(file.read())
        except (SafetensorError, ValueError, KeyError):
            return f"{path.name} is no file as safetensors writes it"
    return found


def put(model: Any, weights: dict[str, torch.Tensor]) -> str:
    """Give the model its weights; what is wrong with them, empty where nothing is."""
    wanted = dict(model.named_parameters())
    if weights.keys() != wanted.keys():
        odd = sorted(weights.keys() ^ wanted.keys())
        return f"it must hold the parameters of data/policy and no others; {len(odd)} differ, {odd[0]} is one"
    for name, parameter in wanted.items():
        found = weights[name]
        if found.shape != parameter.shape or not found.is_floating_point() or not found.isfinite().all():
            return f"{name} must be {tuple(parameter.shape)} finite numbers"
        parameter.data.copy_(found)
    return ""


def right(model: Any, tokenizer: Any, path: Path) -> np.ndarray:
    """Which problems of a file the model answers as it should."""
    rows = problems(path)
    said: list[str] = []
    for start in range(0, len(rows), ROWS):
        said += answers(model, tokenizer, [row["question"] for row in rows[start : start + ROWS]])[2]
    return np.array([told(text) == number(row["answer"]) for text, row in zip(said, rows, strict=True)])


def main() -> int:
    """Print the share of validation problems that were answered right, its interval, and the test's beside it."""
    weights = read(Path(os.environ["AUTORESEARCHD_OUTPUT_DIR"]) / "weights.safetensors")
    if isinstance(weights, str):
        print(f"FAIL: {weights}")
        return 1
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, tokenizer = loaded(Path("data/policy"), device, torch.bfloat16)
    wrong = put(model, weights)
    if wrong:
        print(f"FAIL: weights.safetensors: {wrong}")
        return 1
    validation, test = (right(model, tokenizer, Path(f"data/{name}.jsonl")) for name in ("validation", "test"))
    tell(validation, test)
    return 0


if __name__ == "__main__":
    sys.exit(main())
