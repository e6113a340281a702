"""Memory of a learner run: a trial step before training, advice where memory runs out, allocator and limits."""

from __future__ import annotations

import contextlib
import ctypes
import resource
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from autoresearchd.domain.errors import MissingCapability

if TYPE_CHECKING:
    from autoresearchd.learner.algorithms.learnable import Learnable, Sample

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of glibc's mallopt."""
_LARGE = 2**20


def trial_step(model: Learnable, samples: Sequence[Sample]) -> None:
    """Score the largest batch with gradients, and forget them: a run that does not fit ends here, and not hours later.

    Raises MissingCapability: the memory is used up; it says what to lower.
    """
    with explain_out_of_memory(f"a trial step with {len(samples)} completions"):
        scored = model.statistics(samples)
        torch.autograd.backward(scored.logprobs[scored.batch.mask].sum())
    for parameter in model.trainable():
        parameter.grad = None


@contextlib.contextmanager
def explain_out_of_memory(what: str) -> Iterator[None]:
    """Raise MissingCapability with advice where the memory runs out. what: is being done, to begin a sentence with."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is one; on a CPU torch raises a plain one
        known = isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)
        if not known:
            raise
        raise MissingCapability(
            f"{what}: the memory is used up",
            hint="lower what is in memory at once: --set micro=1, --set generated=1, --set checkpointing=true, "
            "--set max_length=TOKENS, or --set dtype=bfloat16; or take a smaller model, or raise memory_mb of "
            "config.yaml where it is set",
        ) from error


def give_large_blocks_back() -> None:
    """From now on, blocks of a megabyte and more go back to the system as soon as they are free, in this process.

    By itself glibc keeps blocks of up to 32 MB, between which tensors of other sizes find no place.
    """
    with contextlib.suppress(AttributeError, OSError):  # another C library, which has no such setting
        libc = ctypes.CDLL(None)
        for setting in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            libc.mallopt(setting, _LARGE)


@contextlib.contextmanager
def lift_memory_limit() -> Iterator[None]:
    """Without the limit on this process's memory: what is started meanwhile does not inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
