"""A run that does not fit is refused before it starts, with what to lower; one that fits is not."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoresearchd.errors import MissingCapability
from autoresearchd.learner.constants import values_of
from autoresearchd.learner.loading import LoraOptions, ModelOptions
from autoresearchd.learner.memory import Plan, Shape, check, estimate, out_of_memory_told, shape_of
from autoresearchd.learner.room import Room
from tests.unit.learner import tiny

SMOL = Shape(
    parameters=134_515_008, adapted=30 * (4 * 576 + 2 * (576 + 192) + 3 * (576 + 1536)), layers=30, hidden=576,
    intermediate=1536, vocabulary=49_152, queries=576, keys=192, width=4,
)  # fmt: skip


def plan(longest: int = 1024, together: int = 4, teacher: bool = False, **options: object) -> Plan:
    return Plan(longest, together, ModelOptions(**options), teacher)  # type: ignore[arg-type]


@given(st.integers(64, 8192), st.integers(1, 16), st.booleans(), st.sampled_from([2, 4]))
def test_more_takes_more(longest: int, together: int, checkpointing: bool, width: int) -> None:
    shape, less = replace(SMOL, width=width), plan(longest, together, checkpointing=checkpointing)
    total = sum(estimate(shape, less).learning.values())
    for more in (replace(less, longest=longest + 1), replace(less, together=together + 1), replace(less, teacher=True)):
        assert sum(estimate(shape, more).learning.values()) > total
    assert sum(estimate(shape, replace(less, options=ModelOptions(checkpointing=True))).learning.values()) <= total


def test_the_parts_are_those_of_the_model() -> None:
    found = estimate(SMOL, plan(teacher=True, lora=LoraOptions(rank=8)))
    assert found.learning["weights"] == 4 * SMOL.parameters
    assert found.learning["adapter and optimiser"] == 28 * 8 * SMOL.adapted
    assert estimate(replace(SMOL, width=2), plan()).learning["weights"] == 2 * SMOL.parameters
    assert estimate(replace(SMOL, gguf=True), plan()).loading == 8 * SMOL.parameters
    assert estimate(SMOL, plan(), waste=1.5).learning["weights"] == found.learning["weights"]
    assert estimate(SMOL, plan(), waste=1.5).learning["activations"] > found.learning["activations"]
    assert estimate(replace(SMOL, bent=True), plan()).learning["logits"] > 1024 * 4 * 49_152 * 8


def test_a_prompt_that_is_shared_is_counted_once() -> None:
    shape, apart = replace(SMOL, shares=True), plan(924, 4)
    shared = replace(apart, packed=900 + 4 * 24)
    whole, less = estimate(shape, apart).learning["activations"], estimate(shape, shared).learning["activations"]
    assert 0.25 * whole < less < 0.35 * whole
    assert estimate(shape, replace(apart, packed=10**6)).learning["activations"] >= whole, "no more than micro allows"
    for cannot in (
        estimate(SMOL, shared),
        estimate(shape, replace(shared, options=ModelOptions(share_prompts=False))),
    ):
        assert cannot.learning["activations"] == whole
    alone = plan(924, 1)
    assert estimate(shape, replace(alone, packed=924)) == estimate(shape, alone), "one answer at once shares nothing"


def test_a_model_tells_its_shape_without_being_loaded(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
    tiny.write_model(tmp_path)
    for weights in tmp_path.glob("*.safetensors"):
        weights.unlink()
    shape = shape_of(tmp_path)
    assert (shape.layers, shape.hidden, shape.queries, shape.keys, shape.width) == (2, 32, 32, 16, 4)
    linear = 2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64)
    assert shape.adapted == 2 * linear
    matrices = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert shape.parameters == 2 * shape.vocabulary * 32 + matrices + 5 * 32
    assert shape_of(tmp_path, "bfloat16").width == 2
    assert not shape.bent
    assert shape.shares
    assert shape_of(tiny.write_scaled_model(tmp_path / "scaled")).bent


def test_what_does_not_fit_is_refused_with_the_numbers_and_what_to_lower(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
    tiny.write_model(tmp_path)
    wanted = plan(2048, 32, rows=16, device="cpu", generated=1)
    needed = check(tmp_path, wanted, room=Room(10**12, "on a large machine")).total
    with pytest.raises(MissingCapability, match=r"32 completions at once, of up to 2,048 tokens") as caught:
        check(tmp_path, wanted, room=Room(needed * 9 // 10, "of the machine's memory"))
    assert f"{needed / 1e9:.1f} GB (activations" in caught.value.what
    assert f"{needed * 9 // 10 / 1e9:.1f} GB are free of the machine's memory" in caught.value.what
    assert "add --set checkpointing=true; or --set micro=" in caught.value.mend
    assert caught.value.exit_code == 5
    with pytest.raises(MissingCapability) as caught:
        check(tmp_path, wanted, room=Room(1000, "of the machine's memory"))
    assert caught.value.mend == "take a smaller model, or free some memory"
    with pytest.raises(MissingCapability) as caught:
        check(tmp_path, wanted, room=Room(1000, "of a limit", "raise it"))
    assert caught.value.mend == "take a smaller model, or raise it"
    check(tmp_path, wanted, room=Room(None, "nobody knows"))


def test_advice_that_is_followed_helps(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
    tiny.write_model(tmp_path)

    def wanted(longest: int, together: int, checkpointing: bool = False) -> Plan:
        return plan(longest, together, device="cpu", generated=1, checkpointing=checkpointing)

    room = Room(500 * 10**6, "of the machine's memory")
    with pytest.raises(MissingCapability) as caught:
        check(tmp_path, wanted(2048, 32), room=room)
    advice = [advised(each) for each in caught.value.mend.split("; or ")]
    [fewer] = [each["micro"] for each in advice if "micro" in each]
    check(tmp_path, wanted(2048, fewer), room=room)
    [shorter] = [each["max_length"] for each in advice if "max_length" in each]
    check(tmp_path, wanted(shorter, 32), room=room)


def advised(mend: str) -> dict[str, Any]:
    """The constants that an advice names, as the learner reads them."""
    return values_of(dict(given.split("=") for given in mend.partition("--set ")[2].split(" --set ")))


def test_where_no_one_thing_helps_all_of_them_are_advised(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
    tiny.write_model(tmp_path)
    room = Room(285 * 10**6, "of the machine's memory")
    with pytest.raises(MissingCapability) as caught:
        check(tmp_path, plan(8192, 16, device="cpu"), room=room)
    found = advised(caught.value.mend)
    assert (found["checkpointing"], found["micro"], found["generated"]) == (True, 1, 1)
    check(tmp_path, plan(found["max_length"], 1, device="cpu", generated=1, checkpointing=True), room=room)


def test_a_limit_on_the_process_counts_as_what_is_free(tmp_path: Path) -> None:
    """What ``memory_mb`` allows is refused before it starts, and not killed in the middle."""
    pytest.importorskip("transformers", reason="pip install 'autoresearchd[learn]'")
    tiny.write_model(tmp_path)
    wanted = plan(2048, 32, device="cpu")
    check(tmp_path, wanted)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + 400 * 10**6, before[1]))
    try:
        with pytest.raises(MissingCapability, match="memory_mb") as caught:
            check(tmp_path, wanted)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert "--set" in caught.value.mend


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_memory_that_runs_out_all_the_same_is_told_as_that(error: Exception) -> None:
    used_up = pytest.raises(MissingCapability, match="scoring: the memory is used up")
    with used_up as caught, out_of_memory_told("scoring"):
        raise error
    assert "--set micro=1" in caught.value.mend


def test_other_failures_are_left_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), out_of_memory_told("scoring"):
        raise RuntimeError("shapes differ")
