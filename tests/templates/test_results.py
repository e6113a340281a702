"""Whatever an edited program leaves in place of its result, a scorer says what is wrong with it and goes no further."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from autoresearchd.resources import bundled

TASKS = ("baseball-pitch", "baseball-pitch-synthetic", "cifar-speedrun", "rl-finetune", "sft-classifier", "terrain")


def scorer(task: str) -> ModuleType:
    pytest.importorskip("torch") if task == "rl-finetune" else None
    folder = bundled("templates") / task
    spec = importlib.util.spec_from_file_location(f"scorer_of_{task.replace('-', '_')}", folder / "evaluate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        spec.loader.exec_module(module)
    for name in {path.stem for path in folder.glob("*.py")}:
        sys.modules.pop(name, None)  # other tasks have modules of the same names
    return module


def too_large(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1_000_000_000)


def linked(place: Path) -> None:
    np.save(place.with_name("other.npy"), np.ones(3))
    place.symlink_to(place.with_name("other.npy"))


@pytest.mark.parametrize(
    ("leave", "words"),
    [
        pytest.param(lambda place: None, "cannot be opened: No such file", id="nothing"),
        pytest.param(lambda place: place.mkdir(), "is no file of at most", id="a folder"),
        pytest.param(os.mkfifo, "is no file of at most", id="a pipe"),
        pytest.param(too_large, "is no file of at most", id="a gigabyte"),
        pytest.param(linked, "cannot be opened", id="a link"),
        pytest.param(lambda place: place.write_bytes(b"\x93NUMPY"), "is no array", id="half an array"),
        pytest.param(lambda place: np.save(place, np.array([{}], object)), "is no array", id="a pickle"),
    ],
)
@pytest.mark.parametrize("task", TASKS)
def test_what_is_no_result_is_told_in_words(
    task: str, leave: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    leave(tmp_path / "result.npy")
    found = scorer(task).read(tmp_path / "result.npy")
    assert isinstance(found, str), "an array was taken from it"
    assert found.startswith("result.npy ") and words in found
