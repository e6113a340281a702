"""Score the weights that a run has trained, in the `cuda` profile. Protected; it runs no edited code.

The weights are put into the model of `data/policy`, which answers the private problems of GSM8K, the likeliest token at
each place. As in `evaluate.py`, the share on the test problems is printed as text and is no metric.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gsm8k import answers, loaded, number, problems, told
from safetensors import SafetensorError
from safetensors.torch import load

LARGEST_BYTES = 4_000_000_000
ROWS = 256  # problems that are answered beside each other
Z = 1.96


def read(path: Path) -> dict[str, torch.Tensor] | str:
    """The tensors in a file that a run has left, or what is wrong with it. It is opened once, no link is followed."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"{path.name} cannot be opened: {error.strerror}"
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > LARGEST_BYTES:
        os.close(handle)
        return f"{path.name} is no file of at most {LARGEST_BYTES} bytes"
    with os.fdopen(handle, "rb") as file:
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


def interval(hits: np.ndarray) -> tuple[float, float]:
    """Wilson's 95% interval of a share (Wilson 1927)."""
    share, count = hits.mean(), hits.size
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    reach = Z / (1 + Z**2 / count) * np.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, float(middle - reach)), min(1.0, float(middle + reach))


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
    hits = right(model, tokenizer, Path("data/validation.jsonl"))
    low, high = interval(hits)
    print(f"METRIC pass_at_1={hits.mean():.6f}")
    print(f"METRIC pass_at_1_low={low:.6f}")
    print(f"METRIC pass_at_1_high={high:.6f}")
    hits = right(model, tokenizer, Path("data/test.jsonl"))
    low, high = interval(hits)
    print(f"test_pass_at_1 = {hits.mean():.4f} ({low:.4f} to {high:.4f}), which is no metric: report it once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
