"""The state of a training run on disk: whole or not there, and only for the run that wrote it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from autoresearchd.domain.errors import EnvironmentFailure, UsageError
from autoresearchd.learner.algorithms.train_options import TrainOptions
from autoresearchd.learner.data.trajectories import Trajectory
from autoresearchd.learner.versions.adapter_manifest import flush

FORMAT = 2
"""Of the file: part of each run's fingerprint."""

_DIGEST = hashlib.sha256().digest_size


def fingerprint(options: TrainOptions, trajectories: Iterable[Trajectory], hashes: Sequence[str]) -> str:
    """What tells one run from another: its options, its data and its base model.

    How often it is saved changes nothing, and more steps are the same run gone on with.
    """
    digest = hashlib.sha256(repr((FORMAT, replace(options, steps=1, save_every=1), tuple(hashes))).encode())
    for each in trajectories:
        shown = (each.key, each.group, each.prompt_hash, each.completion, each.token_ids, each.logprobs)
        digest.update(repr((shown, each.reward, each.label.value, each.error, each.feedback)).encode())
    return digest.hexdigest()


def write(run: str, state: Mapping[str, Any], target: Path) -> None:
    """Put a checkpoint in the place of the one before; whatever happens meanwhile, one of the two is there as a whole.

    run: its fingerprint. state: tensors, and plain values in dicts and lists. Raises EnvironmentFailure.
    """
    buffer = io.BytesIO()
    torch.save({"run": run, **state}, buffer)
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as stream:
            stream.write(hashlib.sha256(buffer.getbuffer()).digest())
            stream.write(buffer.getbuffer())
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(target)
        flush(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        again = "the run goes on from the checkpoint before" if target.is_file() else "the run then begins anew"
        raise EnvironmentFailure(
            f"the checkpoint {target} cannot be written: {error}",
            hint=f"free some disk space, or make the folder writable, and lift limits on the size of files; {again}",
        ) from error


def read(source: Path, run: str) -> dict[str, Any] | None:
    """The state of a run; None where there is none. Raises UsageError: it is damaged, or another run wrote it."""
    try:
        data = source.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"the checkpoint {source} cannot be read: {error}", hint="make it readable") from error
    if len(data) < _DIGEST or hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        raise UsageError(f"the checkpoint {source} is damaged", hint="delete it; the run then begins anew")
    # Nothing but tensors and plain values is unpickled.
    state: dict[str, Any] = torch.load(io.BytesIO(data[_DIGEST:]), map_location="cpu", weights_only=True)
    if state.get("run") != run:
        raise UsageError(
            f"the checkpoint {source} belongs to a run with other options, other data or another model",
            hint="delete it, or take the options of that run",
        )
    return state
