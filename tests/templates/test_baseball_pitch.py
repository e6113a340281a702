"""The baseball-pitch task: real seasons, none both known and wanted, and a scorer that takes nothing but averages."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import is_no_score, load_program, metrics_of, run_program

FOLDER = bundled("templates") / "baseball-pitch"
run = partial(run_program, FOLDER)
WANTED = 120


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of the task's form: averages that follow from hits per inning."""
    folder = tmp_path_factory.mktemp("pitch")
    rng = np.random.default_rng(1)
    columns = ["IPouts", "H", "HR", "BB", "SO", "HBP", "WP"]
    rows = rng.uniform(90, 600, (400, len(columns)))
    era = 4 * rows[:, 1] / rows[:, 0]
    (folder / "data").mkdir()
    np.savez(folder / "data/known.npz", rows=rows[WANTED:], era=era[WANTED:])
    np.save(folder / "data/wanted.npy", rows[:WANTED])
    np.save(folder / "data/era.npy", era[:WANTED])
    (folder / "data/columns.json").write_text(json.dumps({"columns": columns}))
    return folder


def test_the_place_of_a_season_tells_nothing_of_its_line_in_the_databank() -> None:
    prepare = load_program(FOLDER, "prepare")
    (known, wanted), (known_again, again) = prepare.split(400), prepare.split(400)
    assert list(known) == list(known_again) and sorted(wanted) == sorted(again)
    assert list(wanted) != list(again)


def test_training_predicts_more_than_the_mean(prepared: Path) -> None:
    pytest.importorskip("sklearn")
    done = run("train.py", prepared, AUTORESEARCHD_SEED="3")
    assert done.returncode == 0, done.stderr
    found = metrics_of(run("evaluate.py", prepared))
    assert set(found) == {"rmse_era", "mae_era", "r2"} and found["r2"] > 0.5


def test_the_error_is_the_root_of_the_mean_square(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(prepared / "data")
    np.save(tmp_path / "predictions.npy", np.load(prepared / "data/era.npy") + 0.5)
    assert "METRIC rmse_era=0.500000\nMETRIC mae_era=0.500000\n" in run("evaluate.py", tmp_path).stdout


@pytest.mark.parametrize(
    "content",
    [np.zeros(WANTED - 1), np.full(WANTED, np.nan), np.zeros(WANTED, int), np.full(WANTED, 1 + 0j), "era.npy"],
)
def test_what_is_no_list_of_averages_is_no_score(prepared: Path, tmp_path: Path, content: object) -> None:
    assert is_no_score(FOLDER, prepared / "data", tmp_path, "predictions.npy", content)
