"""The sft-classifier task: its split is clean, its program learns, and its scorer takes nothing but newsgroups."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import is_no_score, load_programs, metrics_of, run_program

FOLDER = bundled("templates") / "sft-classifier"
run = partial(run_program, FOLDER)
GROUPS = ("rec.autos", "sci.space", "talk.politics")
WANTED = 90
prepare, evaluate = load_programs(FOLDER, "prepare", "evaluate")


def table(count: int, seed: int) -> str:
    """A file of posts as the package has them: words of a newsgroup among words of all."""
    rng = np.random.default_rng(seed)
    lines = ["Category\tText", "d\tstring", "class\t"]
    for i in range(count):
        group = GROUPS[i % len(GROUPS)]
        own = [f"{group.split('.')[1]}{k}" for k in rng.integers(0, 30, 8)]
        common = [f"word{k}" for k in rng.integers(0, 200, 30)]
        lines.append(f"{group}\t{' '.join(rng.permutation([*own, *common]))}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    train = table(300, 1)
    copied = train.split("\n")[3]
    return {"20newsgroups-train.tab": train, "20newsgroups-test.tab": table(WANTED, 2) + copied + "\nsci.space\t\n"}


@pytest.fixture(scope="module")
def prepared(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sft")
    prepare.write(texts, folder / "data")
    return folder


def test_no_post_to_learn_from_is_asked_for_and_none_is_empty(prepared: Path, texts: dict[str, str]) -> None:
    words = (prepared / "data/words.txt").read_text().splitlines()
    found = {}
    for name in ("train", "test"):
        with np.load(prepared / f"data/{name}.npz") as stored:
            pairs = zip(stored["starts"][:-1], stored["starts"][1:], strict=True)
            found[name] = [" ".join(words[t] for t in stored["tokens"][a:b]) for a, b in pairs]
    assert len(found["test"]) == WANTED == np.load(prepared / "data/labels.npy").size, "one copied, one empty"
    assert not set(found["train"]) & set(found["test"])
    lines = texts["20newsgroups-train.tab"].split("\n")[3:-1]
    assert sorted(found["train"]) == sorted(line.split("\t")[1] for line in lines)


def test_the_same_posts_give_the_same_data_but_for_the_order_of_what_is_asked(
    prepared: Path, texts: dict[str, str], tmp_path: Path
) -> None:
    prepare.write(texts, tmp_path / "data")
    for name in ("train.npz", "words.txt"):
        assert (tmp_path / "data" / name).read_bytes() == (prepared / "data" / name).read_bytes(), name
    first, second = (np.load(folder / "data/labels.npy") for folder in (prepared, tmp_path))
    assert sorted(first) == sorted(second)
    assert list(first) != list(second), "the source is sorted by newsgroup: an order to work out would tell all"


def test_training_tells_newsgroups_apart(prepared: Path) -> None:
    pytest.importorskip("torch")
    done = run("train.py", prepared, AUTORESEARCHD_TIME_BUDGET="1", AUTORESEARCHD_SEED="3")
    assert done.returncode == 0, done.stderr
    scored = metrics_of(run("evaluate.py", prepared))
    assert scored["macro_f1"] > 0.8, done.stdout
    assert scored["macro_f1_low"] <= scored["macro_f1"] <= scored["macro_f1_high"]


def test_macro_f1_is_the_mean_over_classes_and_its_interval_the_bootstrap_s() -> None:
    confusion = np.array([[8, 2, 0], [0, 5, 5], [0, 0, 0]])
    assert evaluate.macro_f1(confusion) == pytest.approx((16 / 18 + 10 / 17 + 0) / 3)
    both = evaluate.macro_f1(np.stack([confusion, np.eye(3, dtype=int)]))
    assert both == pytest.approx([evaluate.macro_f1(confusion), 1.0])


@pytest.mark.parametrize(
    "content",
    [np.zeros(WANTED - 1, int), np.full(WANTED, np.nan), np.full(WANTED, 3), np.full(WANTED, -1),
     np.zeros((WANTED, 3), int), "labels.npy"],
)  # fmt: skip
def test_what_is_no_list_of_newsgroups_is_no_score(prepared: Path, tmp_path: Path, content: object) -> None:
    assert is_no_score(FOLDER, prepared / "data", tmp_path, "predictions.npy", content)
