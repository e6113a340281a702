"""A toy program with twenty constants, and programs with other constants."""

from __future__ import annotations

from collections.abc import Mapping

from autoresearchd.policy.search.find_constants import find, replace
from autoresearchd.policy.search.parameter import Value

TOY = '''"""A toy."""

MATRIX_LR = 0.04  # Muon
EMBEDDING_LR = 6e-1
WEIGHT_DECAY = 0.2
BATCH_SIZE = 2**14  # tokens
DEPTH = 4
MODEL_DIM = 192
ADAM_BETAS = (0.8, 0.95)
WARMUP_RATIO = 0.0
WARMDOWN_RATIO = 0.5
SOFTCAP = 15.0
INIT_SCALE = 1.0
WINDOW_PATTERN = "SSSL"
USE_BIAS = True
DROPOUT = 0.0
MOMENTUM = 0.95
ROPE_BASE = 10_000
MLP_RATIO = 4
CLIP_NORM = 1.0
SHORT_WINDOW = 128
FINAL_LR_FRAC = 0.0
'''


def apply(text: str, changes: Mapping[str, Value], *, path: str = "train.py", profile: str = "cpu") -> str:
    """A program with other constants."""
    return replace(text, find(text, path=path, profile=profile), changes)
