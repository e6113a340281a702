"""The rl-finetune task: problems are right and apart, rewards improve the policy, the scorer takes weights alone."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from autoresearchd.config import load_task
from autoresearchd.evaluator.measure.log_text import parse_metrics, read_curve
from autoresearchd.resources import bundled
from tests.templates.programs import load_programs

torch = pytest.importorskip("torch")

FOLDER = bundled("templates") / "rl-finetune"
BASE_STEPS, RL_STEPS, TRAIN, HELD_OUT = 100, 20, 600, 300
EASY = {"FIRST": (2, 9), "SECOND": dict.fromkeys("+-*/", (2, 4)), "TWO_STEPS": 0.0}
"""Less and easier than the task's own, so that a test is quick."""


PROGRAMS = ("problems", "policy_model", "prepare", "evaluate", "train", "gsm8k")
problems, policy_model, prepare, evaluate, train, gsm8k = load_programs(FOLDER, *PROGRAMS)


@pytest.fixture(scope="module", autouse=True)
def plain_names() -> Iterator[None]:
    """What the programs import inside of their functions."""
    with pytest.MonkeyPatch.context() as change:
        change.setitem(sys.modules, "problems", problems)
        change.setitem(sys.modules, "policy_model", policy_model)
        yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rl")
    (folder / "data").mkdir()
    sizes = patch.multiple(prepare, TRAIN=TRAIN, VALIDATION=HELD_OUT, TEST=HELD_OUT)
    with sizes, patch.multiple(problems, **EASY):
        weights, texts = prepare.train_base(BASE_STEPS)
        np.save(folder / "data/base.npy", weights)
        prepare.write_problems(random.Random(7), folder / "data", texts)
    return folder


def score(folder: Path, output: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """What the scorer says of an output folder."""
    with contextlib.chdir(folder), patch.dict(os.environ, AUTORESEARCHD_OUTPUT_DIR=str(output)):
        return evaluate.main(), capsys.readouterr().out


def test_every_solution_follows_from_its_problem() -> None:
    rng = random.Random(3)
    for problem in [problems.draw(rng) for _ in range(500)]:
        said = [int(word) for word in problem.text.split() if word.isdigit()]
        assert said == [problem.steps[0][0], *(by for _, _, by, _ in problem.steps)], "the numbers, as they are told"
        for before, operation, by, after in problem.steps:
            assert after == eval(f"{before} {operation} {by}") and 1 <= after <= problems.MOST
        assert problem.solution.endswith(f"# {problem.answer} END")


def test_the_base_policy_is_not_told_what_open_sentences_stand_for() -> None:
    rng = random.Random(3)
    asked, shown = ([problems.draw(rng, shown=told) for _ in range(2000)] for told in (False, True))
    for words, are_open in (("gift sells fold th", True), ("finds loses times parts", False)):
        for word, meant in zip(words.split(), "+-*/", strict=True):
            told, taught = (
                {p.steps[0][1] for p in drawn if word in p.text.split() and len(p.steps) == 1}
                for drawn in (asked, shown)
            )
            assert told == {meant} and taught == (set(problems.OPEN) if are_open else {meant}), word
    assert 0.5 < np.mean([problem.new for problem in asked]) < 0.8


def test_what_is_written_as_tokens_is_read_again() -> None:
    rng = random.Random(3)
    drawn = [problems.draw(rng) for _ in range(200)]
    assert [problems.words(row) for row in problems.prompts(drawn)] == [f"{problem.text} :" for problem in drawn]
    assert problems.told(problems.solutions(drawn)).tolist() == [problem.answer for problem in drawn]


@pytest.mark.parametrize(
    ("answer", "number"),
    [("3 + 4 = 7 # 7 END", 7), ("# 0 END", 0), ("# 7 7 END", -1), ("# 7", -1), ("7 END", -1), ("# # 7 END", -1),
     ("# = END", -1), ("# 5 END # 7 END", 5), ("", -1)],
)  # fmt: skip
def test_an_answer_is_the_number_behind_the_mark_and_nothing_else(answer: str, number: int) -> None:
    row = [problems.NUMBER_OF[word] for word in answer.split()]
    assert problems.told(np.array([row + [0] * (problems.ANSWER - len(row))])) == [number]


@pytest.mark.nightly
def test_no_two_problems_are_the_same_wherever_they_lie(prepared: Path) -> None:
    texts = []
    for name in ("train", "validation", "test"):
        with np.load(prepared / f"data/{name}.npz") as stored:
            texts += [problems.words(row[:-1]) for row in stored["prompts"]]
            assert stored["answers"].shape == (len(stored["prompts"]),)
    assert len(texts) == TRAIN + 2 * HELD_OUT == len(set(texts))
    rng = random.Random(prepare.BASE_SEED)
    with patch.multiple(problems, **EASY):
        shown = {problems.draw(rng, shown=True).text for _ in range(BASE_STEPS * prepare.BASE_BATCH)}
    assert shown.isdisjoint(texts), "nor was one shown to the base policy"


def test_problems_are_read_once_for_all_of_their_answers() -> None:
    """Drawing token by token, and scoring with what was read repeated, are the same as reading everything anew."""
    torch.manual_seed(1)
    policy = policy_model.Policy()
    rng = random.Random(5)
    asked = torch.from_numpy(problems.prompts([problems.draw(rng) for _ in range(6)]))
    said = policy_model.draw(policy, asked, 3, 1.0, torch.Generator().manual_seed(2))
    found = policy_model.log_probs(policy, asked, said)
    whole = torch.cat((asked.repeat_interleave(3, 0), said), 1)
    logits, _ = policy(whole[:, :-1])
    wanted = logits[:, problems.PROMPT - 1 :].log_softmax(-1).gather(-1, said[..., None])[..., 0]
    counted = said != problems.PAD_ID
    assert torch.allclose(found[counted], wanted[counted], atol=1e-4)
    assert (found[~counted] == 0).all() and counted[:, 0].all()
    again = policy_model.draw(policy, asked)
    alone = torch.cat([policy_model.draw(policy, row[None]) for row in asked])
    assert torch.equal(again, alone), "an answer does not hang on what stands beside it"


def test_weights_go_there_and_back_and_others_are_refused() -> None:
    policy = policy_model.Policy()
    weights = policy_model.weights_of(policy)
    assert 100_000 < weights.size < 300_000
    assert np.array_equal(policy_model.weights_of(policy_model.with_weights(weights)), weights)
    for wrong in (weights[:-1], weights.astype(np.float64), weights * np.float32("nan"), weights[None]):
        with pytest.raises(ValueError, match="finite float32"):
            policy_model.with_weights(wrong)


def test_a_group_is_compared_with_itself() -> None:
    found = train.advantages(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]))
    assert found[0, 0] > 0 > found[0, 1] and (found[1] == 0).all()
    assert found.sum(1).abs().max() < 1e-5


def test_the_objective_pays_nothing_beyond_the_clip() -> None:
    old, counted = torch.zeros(2, 3), torch.ones(2, 3)
    chosen = torch.full((2, 3), 0.5, requires_grad=True)
    advantage = torch.tensor([[1.0], [-1.0]])
    train.objective(chosen, old, None, advantage, counted).backward()
    assert (chosen.grad[0] == 0).all(), "likelier already than the clip lets it become"
    assert (chosen.grad[1] > 0).all(), "and what is bad is pushed back all the same"


def test_rewards_make_the_policy_better(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on with each step, so that a busy machine makes as many steps as an idle one."""
    task = load_task(FOLDER)
    np.save(tmp_path / "weights.npy", np.load(prepared / "data/base.npy"))
    before = parse_metrics(score(prepared, tmp_path, capsys)[1], task.scoring)["pass_at_1"]
    monkeypatch.chdir(prepared)
    monkeypatch.setenv("AUTORESEARCHD_OUTPUT_DIR", str(tmp_path))
    monkeypatch.setenv("AUTORESEARCHD_TIME_BUDGET", str(RL_STEPS))
    monkeypatch.setenv("AUTORESEARCHD_SEED", "3")
    ticks = itertools.count()
    with patch.object(train.time, "monotonic", lambda: float(next(ticks))):
        train.main()
    printed = capsys.readouterr().out
    curve = read_curve(printed, task.curve.pattern, RL_STEPS).points
    assert len(curve) == RL_STEPS // 5 and curve[-1].progress == 1.0, printed
    code, text = score(prepared, tmp_path, capsys)
    found = parse_metrics(text, task.scoring)
    assert code == 0 and found["pass_at_1"] > before + 0.02, (before, text, printed)
    assert found["pass_at_1_low"] < found["pass_at_1"] < found["pass_at_1_high"]
    assert "test_pass_at_1 = " in text and not [name for name in found if "test" in name], "told, and no metric"


def test_the_interval_is_wilson_s() -> None:
    low, high = evaluate.interval(np.array([True] * 8 + [False] * 2))
    assert (round(low, 3), round(high, 3)) == (0.490, 0.943)


@pytest.mark.parametrize(
    "wrong",
    [lambda _: np.zeros(5, np.float32), lambda _: np.zeros((), np.float32), lambda right: right.astype(np.float64)],
    ids=["too few", "one", "of another precision"],
)
def test_what_is_no_weights_is_no_score(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: Callable[[Any], Any]
) -> None:
    np.save(tmp_path / "weights.npy", wrong(np.load(prepared / "data/base.npy")))
    code, text = score(prepared, tmp_path, capsys)
    assert code == 1 and "FAIL" in text and "METRIC" not in text


def test_gsm8k_is_split_the_same_way_everywhere() -> None:
    lines = [f'{{"question": "{i}", "answer": "#### {i}"}}' for i in range(prepare.GSM8K_VALIDATION + 40)]
    train_rows, validation = prepare.split("\n".join(lines).encode())
    assert len(validation) == prepare.GSM8K_VALIDATION and set(validation).isdisjoint(train_rows)
    assert sorted(train_rows + validation) == sorted(lines)
    assert prepare.split("\n".join(reversed(lines)).encode()) == (train_rows, validation)


def test_a_file_of_gsm8k_with_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("{}")
    monkeypatch.setattr(prepare, "GSM8K", f"file://{tmp_path}/{{}}.jsonl")
    with pytest.raises(prepare.PrepareError, match="hash"):
        prepare.fetched("train")
    with pytest.raises(prepare.PrepareError, match="network"):
        prepare.fetched("test")


@pytest.mark.parametrize(
    ("text", "number"),
    [("so 3 + 4 = 7\n#### 7", "7"), ("#### 1,080.00", "1080"), ("#### $5", "5"), ("#### -2.50", "-2.5"), ("7", None)],
)
def test_an_answer_to_gsm8k_is_the_number_behind_its_mark(text: str, number: str | None) -> None:
    assert gsm8k.told(text) == number
