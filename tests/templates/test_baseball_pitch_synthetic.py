"""The baseball-pitch-synthetic task: its answers follow from no file, its floor is its noise, its scorer is strict."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import is_no_score, load_program, metrics_of, run_program

FOLDER = bundled("templates") / "baseball-pitch-synthetic"
run = partial(run_program, FOLDER)
prepare = load_program(FOLDER, "prepare")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")  # set-up refuses where a run could not import it
    folder = tmp_path_factory.mktemp("pitch")
    done = run("prepare.py", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_two_set_ups_have_the_same_answers(prepared: Path, tmp_path: Path) -> None:
    """Else a program that reads prepare.py draws them again."""
    assert run("prepare.py", tmp_path).returncode == 0
    first, second = np.load(prepared / "data/mph.npy"), np.load(tmp_path / "data/mph.npy")
    assert first.shape == second.shape == (prepare.WANTED,)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_what_no_program_can_know_is_the_noise_that_it_says() -> None:
    rng = np.random.default_rng(5)
    rows, mph = prepare.pitches(rng)
    first, second = np.triu_indices(prepare.COLUMNS)
    columns = np.concatenate([np.ones((len(rows), 1)), rows, np.abs(rows), rows[:, first] * rows[:, second]], axis=1)
    left = mph - columns @ np.linalg.lstsq(columns, mph, rcond=None)[0]
    assert left.std() == pytest.approx(prepare.NOISE, rel=0.03)


def test_training_predicts_more_than_the_mean(prepared: Path) -> None:
    done = run("train.py", prepared, AUTORESEARCHD_SEED="3")
    assert done.returncode == 0, done.stderr
    found = metrics_of(run("evaluate.py", prepared))
    assert prepare.NOISE < found["rmse_mph"] < 3.3 and found["r2"] > 0.5


@pytest.mark.parametrize("content", [None, np.zeros(prepare.WANTED - 1), np.full(prepare.WANTED, np.nan), "mph.npy"])
def test_what_is_no_list_of_speeds_is_no_score(prepared: Path, tmp_path: Path, content: object) -> None:
    assert is_no_score(FOLDER, prepared / "data", tmp_path, "predictions.npy", content)
