"""`task space`: the search space of a program is seen and bounded before a night is spent on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command

PROGRAM = """\
LR = 0.01  # range: 1e-5..1e-1
SEED = 3
BATCH = 32
WIDTH = BATCH * 2
BETAS = (0.9, 0.99)
OPT = "adam"  # one of: adam, sgd
"""
TASK = """\
name: mine
workspace: {target_file: train.py}
execution: {run_command: python train.py}
scoring: {metric: loss, direction: minimize}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "task.yaml").write_text(TASK)
    return tmp_path


def test_each_constant_is_shown_with_its_range_and_the_others_with_the_reason(command: Command, folder: Path) -> None:
    answer = command("task", "space", str(folder))
    assert answer.code == 0, answer.err
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["LR", "0.01", "1", "float", "1e-05..0.1", "(log,", "given)", "0.0067,", "0.015"] in lines
    assert ["OPT", '"adam"', "6", "choice", "adam", "|", "sgd"] in lines
    assert any(line[:3] == ["BETAS[1]", "0.99", "5"] for line in lines)
    head = answer.out.index("left alone")
    assert answer.out.index("SEED") > head and "that of a seed" in answer.out
    assert "WIDTH       BATCH * 2     4  derived: computed from other values" in answer.out


def test_a_name_that_no_constant_has_is_an_error_that_lists_near_ones(command: Command, folder: Path) -> None:
    """A misspelt bound that is ignored leaves the constant free all night."""
    (folder / "task.yaml").write_text(TASK + "search:\n  fixed: [BATHC]\n  ranges: {momentum: 0..1, lr: 0..1}\n")
    for words in (("space",), ("check",)):
        answer = command("task", *words, str(folder))
        assert answer.code == 2
        assert "task.yaml:6: search.fixed[0]: no constant of train.py is called 'BATHC'" in answer.err
        assert "did you mean 'BATCH'?" in answer.err
        assert "task.yaml:7: search.ranges.momentum: no constant" in answer.err
        assert "known here: LR, BATCH, BETAS[0], BETAS[1], OPT, SEED, WIDTH" in answer.err
        assert "did you mean 'LR'?" in answer.err


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ("ranges: {LR: 0.1..0.01}", "task.yaml:5: search.ranges.LR: the lower end, 0.1, is not below the upper, 0.01"),
        ("ranges: {OPT: 0..1}", "OPT: a range is given, but 'adam' is not a number (train.py, line 6)"),
        ("choices: {BATCH: [adam, sgd]}", "its value 32 is not one of the choices (adam, sgd)"),
    ],
)
def test_bounds_that_make_no_sense_are_told_with_their_line(
    command: Command, folder: Path, bounds: str, words: str
) -> None:
    (folder / "task.yaml").write_text(TASK + f"search: {{{bounds}}}\n")
    answer = command("task", "space", str(folder))
    assert answer.code == 2 and words in answer.err
