"""Memory that runs out is explained; what a learner frees, and what it starts, is for others."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch

from autoresearchd.domain.errors import MissingCapability
from autoresearchd.learner.algorithms.learnable import Sample
from autoresearchd.learner.training.out_of_memory import explain_out_of_memory, lift_memory_limit, trial_step
from tests.fakes.learnable import TinyLearnable


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_runs_out_all_the_same_is_told_as_that(error: Exception) -> None:
    used_up = pytest.raises(MissingCapability, match="scoring: the memory is used up")
    with used_up as caught, explain_out_of_memory("scoring"):
        raise error
    assert "--set micro=1" in caught.value.hint


def test_a_limit_that_is_lifted_for_a_while_is_there_again_afterwards() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (2**40, before[1]))
    try:
        with pytest.raises(RuntimeError, match="in the middle"), lift_memory_limit():
            assert resource.getrlimit(resource.RLIMIT_DATA)[0] == before[1]
            raise RuntimeError("in the middle")
        assert resource.getrlimit(resource.RLIMIT_DATA) == (2**40, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def test_memory_that_a_learner_frees_is_there_for_others_at_once() -> None:
    program = """
import ctypes
from pathlib import Path
from autoresearchd.learner.training.out_of_memory import give_large_blocks_back
def taken():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
give_large_blocks_back()
bytearray(30_000_000)  # which glibc by itself takes for a reason to keep blocks of that size
blocks = [bytearray(b"x") * 4_000_000 for _ in range(40)]
before = taken()
del blocks[:-1:2]
print(before - taken())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 70_000_000, "every other of 40 blocks of 4 MB"


def test_a_trial_step_leaves_no_gradient_and_explains_that_the_memory_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, samples = TinyLearnable(), [Sample((1, 2), (3, 4))]
    trial_step(model, samples)
    assert all(each.grad is None for each in model.trainable())

    def used_up(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA")

    monkeypatch.setattr(model, "statistics", used_up)
    with pytest.raises(MissingCapability, match="a trial step with 1 completions: the memory is used up") as caught:
        trial_step(model, samples)
    assert "--set micro=1" in caught.value.hint
