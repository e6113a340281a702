"""The terrain task: its data are real and split, its program learns, and its scorer takes nothing but 4,000 heights."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import is_no_score, run_program

FOLDER = bundled("templates") / "terrain"
run = partial(run_program, FOLDER)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terrain")
    done = run("prepare.py", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_wanted_point_is_among_the_known_ones(prepared: Path) -> None:
    with np.load(prepared / "data/known.npz") as known:
        at, height = known["at"], known["height"]
    wanted, heights = np.load(prepared / "data/wanted.npy"), np.load(prepared / "data/heights.npy")
    assert at.shape == wanted.shape == (4000, 2) and height.shape == heights.shape == (4000,)
    assert not {tuple(p) for p in at.tolist()} & {tuple(p) for p in wanted.tolist()}
    assert height.std() > 100, "it is a landscape"


def test_training_tells_more_than_the_mean_height(prepared: Path) -> None:
    done = run("train.py", prepared, AUTORESEARCHD_TIME_BUDGET="1.5", AUTORESEARCHD_SEED="3")
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 100 \| loss: ", done.stdout)
    scored = run("evaluate.py", prepared)
    found = re.search(r"METRIC rmse_m=([\d.]+)", scored.stdout)
    assert found is not None, scored.stdout
    assert float(found[1]) < 0.6 * np.load(prepared / "data/heights.npy").std()


@pytest.mark.parametrize("content", [np.zeros(3999), np.full(4000, np.nan), np.zeros(4000, dtype=object)])
def test_what_is_no_list_of_heights_is_no_score(prepared: Path, tmp_path: Path, content: object) -> None:
    assert is_no_score(FOLDER, prepared / "data", tmp_path, "heights.npy", content)
