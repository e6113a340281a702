"""The nanochat-core task: its questions are fair, guessing earns nothing, and only a language model is scored."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from autoresearchd.resources import bundled
from tests.templates.programs import load_programs, score

FOLDER = bundled("templates") / "nanochat-core"
PROTECTED = (
    "evaluate.py",
    "channel.py",
    "exchange.py",
    "serve_model.py",
    "serving.py",
    "system_calls.py",
    "questions.py",
)
UNIGRAM = """
import torch


def load_model(path, device):
    odds = torch.load(path)["odds"]
    return lambda idx: {logits}
"""
NAMES = ("alpha", "bravo", "charlie", "golfing", "hotels", "juliett", "november", "quebec", "romeos", "uniform")


questions, evaluate = load_programs(FOLDER, "questions", "evaluate")


@pytest.fixture(scope="module")
def texts() -> list[bytes]:
    """Something like a program, of which every kind of question can be made."""
    rng = np.random.default_rng(3)
    lines = []
    for _ in range(900):
        a, b, c = (NAMES[i] for i in rng.integers(0, len(NAMES), 3))
        form = ("{0} = [{1}({2}), {0}]", "{0}({1}, {{{2}: {0}}})", "return {0}[{1}]({2})")[rng.integers(3)]
        lines.append(" " * int(rng.choice([0, 4, 8, 12])) + form.format(a, b, c))
    return ["\n".join(lines).encode()]


@pytest.fixture(scope="module")
def pristine(texts: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    for name in PROTECTED:
        shutil.copy(FOLDER / name, folder)
    (folder / "data").mkdir()
    rng = np.random.default_rng(5)
    np.savez(folder / "data/questions.npz", **questions.tables(questions.questions(texts, 12, rng), texts, rng))
    return folder


def scored(pristine: Path, folder: Path, logits: str) -> subprocess.CompletedProcess[str]:
    """What the scorer says of a model whose logits for idx are an expression."""
    import torch

    for name in ("serve_model.py", "serving.py", "system_calls.py"):
        shutil.copy(FOLDER / name, folder)
    (folder / "train.py").write_text(UNIGRAM.format(logits=logits))
    counts = torch.ones(256)
    counts[list(b" ,_aeinorst()=")] = 20.0
    torch.save({"odds": counts.log()}, folder / "checkpoint.pt")
    return score(pristine, folder, folder)[0]


def test_the_right_choice_is_what_the_text_says(texts: list[bytes]) -> None:
    asked = questions.questions(texts, 40, np.random.default_rng(1))
    assert list(asked) == list(questions.KINDS)
    for kind, made in asked.items():
        assert (9 if kind == "words" else 30) <= len(made) <= 40, kind
        for question in made:
            assert question.context + question.choices[0] in texts[0]
            assert len(question.context) == questions.CONTEXT
            assert len(set(question.choices)) == questions.KINDS[kind]
            assert len(question.context + max(question.choices, key=len)) <= questions.WIDTH


def test_no_bracket_or_depth_is_right_more_often_and_only_a_name_to_copy_stands_in_its_context(
    texts: list[bytes],
) -> None:
    asked = questions.questions(texts, 60, np.random.default_rng(1))
    for kind in ("brackets", "indent"):
        right = [question.group for question in asked[kind]]
        assert len({right.count(group) for group in right}) == 1, kind
        assert len(set(right)) == questions.KINDS[kind]
    for question in asked["copy"]:
        assert [choice in question.context for choice in question.choices] == [True, False, False, False]


def test_rows_and_answers_belong_together(texts: list[bytes]) -> None:
    rng = np.random.default_rng(2)
    asked = questions.questions(texts, 20, rng)
    table = questions.tables(asked, texts, rng)
    every = [question for made in asked.values() for question in made]
    for number, question in enumerate(every):
        row = np.flatnonzero((table["question"] == number) & (table["slot"] == table["right"][number]))
        assert row.size == 1
        shown = table["rows"][row[0]].tobytes()
        end = int(table["contexts"][row[0]] + table["choices"][row[0]])
        assert shown[:end] == question.context + question.choices[0]
    assert len(set(table["right"].tolist())) == 4, "no place is the right one"


def test_nobody_who_reads_the_task_knows_which_questions_are_asked() -> None:
    """From a seed in prepare.py a program could have worked the answers out: a table of 8.5 kB scored 1.0."""
    text = (FOLDER / "prepare.py").read_text()
    assert "default_rng(secrets.randbits(128))" in text and text.count("default_rng(") == 1


def test_guessing_is_worth_nothing_and_knowing_is_worth_one(pristine: Path) -> None:
    with np.load(pristine / "data/questions.npz") as stored:
        asked = {name: stored[name].astype(np.int64) for name in stored.files}
    right = asked["right"][asked["question"]] == asked["slot"]
    assert evaluate.centred(asked, np.where(right, 0.0, 1.0), 0.1) == dict.fromkeys(evaluate.KINDS, 1.0)
    rng = np.random.default_rng(0)
    guesses = [list(evaluate.centred(asked, rng.random(right.size), 0.1).values()) for _ in range(300)]
    assert np.mean(guesses) == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(
    ("logits", "label"),
    [
        ("odds.expand(*idx.shape, 256)", ""),
        ("odds * (1 + 0.1 * (idx[:, -1:] % 2) * (torch.arange(idx.size(1)) > 88))[..., None]", "LABEL not_causal"),
        pytest.param(
            "odds * (1 + 0.1 * (idx.roll(-1, 1) % 2) * (torch.arange(idx.size(1)) == 88))[..., None]",
            "LABEL not_causal",
            marks=pytest.mark.nightly,
        ),
        ("(odds * (1 + 0.1 * (idx[:1] % 2))[..., None]).expand(*idx.shape, 256)", "LABEL not_causal"),
    ],
    ids=["honest", "the end of the row, from the choice on", "the next byte of a choice", "the first row of the batch"],
)
def test_only_what_came_before_may_tell(pristine: Path, tmp_path: Path, logits: str, label: str) -> None:
    pytest.importorskip("torch")
    done = scored(pristine, tmp_path, logits)
    assert done.returncode == (3 if label else 0), done.stderr
    assert label in done.stdout
    assert ("METRIC core=" in done.stdout) == (not label)


def test_who_judges_whole_choices_within_the_tolerance_gains_nothing(pristine: Path, tmp_path: Path) -> None:
    """Flat logits hold any judgement in less than kernels round by: this one scored 1.0 on `copy`, and was causal."""
    pytest.importorskip("torch")
    whole_choice_is_known = "torch.stack([(row[:88].unfold(0, 5, 1) == row[88:93]).all(1).any() for row in idx])"
    done = scored(
        pristine,
        tmp_path,
        f"torch.nn.functional.one_hot(idx.roll(-1, 1).long(), 256) * 9e-4 * {whole_choice_is_known}[:, None, None]"
        " * (torch.arange(idx.size(1)) > 86)[:, None]",
    )
    assert done.returncode == 0, done.stderr
    assert "METRIC copy=0.0000" in done.stdout, done.stdout
