"""The cifar-speedrun task: time is the supervisor's, the gate is not passed by luck, and nobody brings the weights."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.config import load_task
from autoresearchd.resources import bundled
from tests.templates.programs import is_no_score, load_programs, run_program

FOLDER = bundled("templates") / "cifar-speedrun"
run = partial(run_program, FOLDER)
WANTED = 1500
prepare, check_program, evaluate = load_programs(FOLDER, "prepare", "check_program", "evaluate")


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A folder with private classes, all of them 3."""
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data/labels.npy", np.full(WANTED, 3))
    return tmp_path


def answer(folder: Path, right: float, **values: str) -> subprocess.CompletedProcess[str]:
    """Score answers of which a share is right."""
    np.save(folder / "predictions.npy", np.where(np.arange(WANTED) < right * WANTED, 3, 4))
    return run("evaluate.py", folder, **values)


@pytest.mark.parametrize(("profile", "gate"), [("cpu", 0.97), ("cuda", 0.96)])
def test_the_gate_is_above_the_floor_of_a_single_run(profile: str, gate: float) -> None:
    task = load_task(FOLDER, profile=profile)
    assert [(c.metric, c.min) for c in task.scoring.constraints] == [("accuracy", gate)]
    assert evaluate.FLOORS[profile] < gate, "what is near the gate is judged over several seeds"


def test_the_place_of_an_image_tells_nothing_of_its_class(tmp_path: Path) -> None:
    classes = np.repeat(np.arange(10), 30)
    images = np.broadcast_to(classes[:, None, None, None], (300, 2, 2, 1)).astype(np.uint8)
    orders = []
    for name in ("first", "second"):
        prepare.write((images, classes), (images, classes), tmp_path / name)
        orders.append(np.load(tmp_path / name / "labels.npy"))
        assert (np.load(tmp_path / name / "wanted.npy")[:, 0, 0, 0] == orders[-1]).all(), "each with its own class"
        assert (np.load(tmp_path / name / "train.npz")["labels"] == classes).all()
    assert list(orders[0]) != list(orders[1]) and sorted(orders[0]) == sorted(orders[1])


def test_the_time_is_the_one_that_the_scorer_is_told_and_without_it_there_is_no_score(scored: Path) -> None:
    done = answer(scored, 0.98, AUTORESEARCHD_TRAIN_SECONDS="7.5")
    assert (done.returncode, done.stdout) == (0, "METRIC accuracy=0.980000\nMETRIC train_seconds=7.500000\n")
    done = answer(scored, 1.0)
    assert done.returncode == 1 and "METRIC" not in done.stdout


@pytest.mark.parametrize(("profile", "right"), [("cpu", 0.949), ("cuda", 0.939)])
def test_a_run_far_below_the_gate_has_no_time(scored: Path, profile: str, right: float) -> None:
    done = answer(scored, right, AUTORESEARCHD_TRAIN_SECONDS="0.5", AUTORESEARCHD_PROFILE=profile)
    assert done.returncode == 3 and "LABEL gate_miss" in done.stdout
    assert "train_seconds" not in done.stdout


@pytest.mark.parametrize(
    "content",
    [np.full(WANTED - 1, 3), np.full(WANTED, 3.0), np.full(WANTED, np.nan), np.full((WANTED, 1), 3), "labels.npy"],
)
def test_what_is_no_list_of_classes_is_no_score(scored: Path, tmp_path: Path, content: object) -> None:
    output = tmp_path / "output"
    output.mkdir()
    values = {"AUTORESEARCHD_TRAIN_SECONDS": "0.5"}
    assert is_no_score(FOLDER, scored / "data", output, "predictions.npy", content, **values)


def test_the_program_as_it_comes_brings_no_weights() -> None:
    assert check_program.fault((FOLDER / "train.py").read_text()) == ""


@pytest.mark.parametrize(
    "brought",
    [
        f"W = '{'ab01' * 70}'\n", f"W = {b'xyz0' * 70!r}\n", f"W = [{', '.join(map(str, range(401)))}]\n",
        f"W = 0x{'f' * 400}\n", "".join(f"w{i} = '{'ab01' * 50}'\n" for i in range(30)), f'"""{"weights" * 40}"""\n',
        f"{'w' * 41} = 1\n", "# weights\n" * 2000,
    ],
    ids=["text", "bytes", "numbers", "a large number", "many texts", "a docstring", "a name", "comments"],
)  # fmt: skip
def test_weights_in_the_program_are_refused(brought: str) -> None:
    assert check_program.fault(brought + (FOLDER / "train.py").read_text()) != ""


def test_training_learns_from_images(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 200)
    images = rng.integers(0, 60, (200, 28, 28, 1)).astype(np.uint8)
    images[labels == 1, 8:20, 8:20] += 190
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data/train.npz", images=images[:150], labels=labels[:150])
    np.save(tmp_path / "data/wanted.npy", images[150:])
    done = run("train.py", tmp_path, AUTORESEARCHD_SEED="3")
    assert done.returncode == 0, done.stderr
    said = np.load(tmp_path / "predictions.npy")
    assert said.dtype == np.int64 and np.mean(said == labels[150:]) > 0.9
