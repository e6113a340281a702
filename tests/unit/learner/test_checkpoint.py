"""A checkpoint is there as a whole or not at all, and a damaged one is never taken for a good one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoresearchd.domain.errors import EnvironmentFailure, UsageError
from autoresearchd.learner.algorithms.train_options import TrainOptions
from autoresearchd.learner.training.checkpoint import Checkpoint, fingerprint, read, write
from tests.fakes.learnable import TinyLearnable
from tests.unit.learner.played import played


def checkpoint(steps: int = 3) -> Checkpoint:
    optimiser = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))])
    return Checkpoint(
        "run",
        0,
        2,
        steps,
        {"up": torch.full((2,), float(steps))},
        optimiser.state_dict(),
        {},
        [{"loss": 0.1}],
        {"a": 1},
    )


class Killed(BaseException):
    """The process ends here."""


def killed(*_: Any, **__: Any) -> None:
    raise Killed


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    write(checkpoint(), tmp_path / "deep" / "checkpoint")
    found = read(tmp_path / "deep" / "checkpoint", "run")
    assert found is not None
    assert (found.run, found.phase, found.updates, found.steps) == ("run", 0, 2, 3)
    assert torch.equal(found.adapter["up"], torch.full((2,), 3.0))
    assert (found.history, found.counts) == ([{"loss": 0.1}], {"a": 1})
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_process_that_is_killed_while_it_writes_leaves_the_checkpoint_before(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "checkpoint"
    write(checkpoint(3), place)
    with monkeypatch.context() as patch:
        patch.setattr(os if at == "fsync" else Path, at, killed)
        with pytest.raises(Killed):
            write(checkpoint(4), place)
    found = read(place, "run")
    assert found is not None and found.steps == 3
    write(checkpoint(5), place)
    found = read(place, "run")
    assert found is not None and found.steps == 5
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_full_disk_is_told_and_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = tmp_path / "checkpoint"
    write(checkpoint(3), place)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(EnvironmentFailure, match=r"cannot be written: .*No space left") as caught:
            write(checkpoint(4), place)
        assert "goes on from the checkpoint before" in caught.value.hint
        with pytest.raises(EnvironmentFailure, match="cannot be written") as caught:
            write(checkpoint(1), tmp_path / "first")
        assert "begins anew" in caught.value.hint, "there is none before"
    found = read(place, "run")
    assert found is not None and found.steps == 3
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cut=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_checkpoint_is_refused(where: float, flip: int, cut: bool, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    write(checkpoint(), place)
    data = bytearray(place.read_bytes())
    spot = int(where * len(data))
    data[spot] ^= flip
    place.write_bytes(data[:spot] if cut else data)
    with pytest.raises(UsageError, match="is damaged\n  → delete it"):
        read(place, "run")


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    write(checkpoint(), tmp_path / "checkpoint")
    with pytest.raises(UsageError, match="belongs to a run with other options"):
        read(tmp_path / "checkpoint", "another")


def test_a_run_is_known_by_its_options_its_data_and_its_model() -> None:
    data = played(TinyLearnable(), rounds=2)
    same = fingerprint(TrainOptions(), data, ("m", "t", "c"))
    assert fingerprint(TrainOptions(steps=99, save_every=3), data, ("m", "t", "c")) == same
    others = [
        fingerprint(TrainOptions(seed=1), data, ("m", "t", "c")),
        fingerprint(TrainOptions(start="version 3"), data, ("m", "t", "c")),
        fingerprint(TrainOptions(), data[1:], ("m", "t", "c")),
        fingerprint(TrainOptions(), played(TinyLearnable(), rounds=2, rule=lambda _: 0.5), ("m", "t", "c")),
        fingerprint(TrainOptions(), data, ("other", "t", "c")),
    ]
    assert len({same, *others}) == 6
