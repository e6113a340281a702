"""Random streams derived from (session, experiment, purpose): the same after any restart, different everywhere else."""

from __future__ import annotations

import hashlib


def derive_seed(session_seed: int, number: int, purpose: str, index: int = 0) -> int:
    """A 31-bit seed, a pure function of its arguments (SHA-256, so that neighbouring numbers share nothing)."""
    text = f"{session_seed}/{number}/{purpose}/{index}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1
