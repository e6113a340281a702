"""The public problems: no answer gets a score that it is not worth, and every arm has the same score for a program."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.cli.main import run as autoresearchd
from tests.templates.programs import load_program, load_programs

PUBLIC = Path(__file__).parents[2] / "benchmarks" / "public"
NAMES = ("circle_packing", "distance_ratio", "function_min", "heilbronn", "k_module")
GRID = [[0.1 + 0.2 * i, 0.1 + 0.2 * j, 0.1] for i in range(5) for j in range(5)]
HOLE = 0.1 * (math.sqrt(2) - 1)
ARC = [[i / 20, (i / 20) ** 2 / 4] for i in range(11)]
GOOD: dict[str, tuple[str, list[Any], float]] = {
    "circle_packing": ("circles", [*GRID, [0.2, 0.2, HOLE]], 2.5 + HOLE),
    "distance_ratio": ("points", [[i, j] for i in range(4) for j in range(4)], 1 / math.sqrt(18)),
    "function_min": ("points", [[-1.704, 0.678]] * 10, 1.5187),
    "heilbronn": ("points", ARC, 2 / 20**3 / 4),  # of neighbours on a parabola; a share of the half square
    "k_module": ("slots", json.loads((PUBLIC / "problems/k_module/right.json").read_text()), 4.0),
}
"""By problem: the key of the answer, one that is feasible, and its score by hand."""


@pytest.fixture
def scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What evaluate.py says of an answer: bytes of answer.json, or something that is written as JSON."""

    def said(name: str, answer: Any) -> str:
        folder = PUBLIC / "problems" / name
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        answers, evaluate = load_programs(folder, "answer", "evaluate")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("AUTORESEARCHD_OUTPUT_DIR", str(tmp_path))
        if answer is not None:
            (tmp_path / "answer.json").write_bytes(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        code = answers.run(evaluate.score)
        out = capsys.readouterr().out
        assert out.startswith("FAIL: " if code else "score: ") and out.count("\n") == 1
        return out

    return said


@pytest.mark.parametrize("name", NAMES)
def test_a_feasible_answer_has_the_score_that_a_person_works_out(name: str, scored: Callable[..., str]) -> None:
    key, rows, value = GOOD[name]
    assert float(scored(name, {key: rows}).removeprefix("score: ")) == pytest.approx(value, rel=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_answer_has_no_score(name: str, scored: Callable[..., str], tmp_path: Path) -> None:
    key, rows, _ = GOOD[name]
    assert scored(name, None).startswith("FAIL"), "there is none"
    wrong: list[Any] = [
        b"", b"\xff\xfe", b"[" * 50_000, b'{"' + key.encode() + b'": ' + b"9" * 5000 + b"}", b" " * 100_001,
        None, [], {}, rows, {key: None}, {key: rows[:-1]}, {key: [*rows, rows[0]]}, {key: rows, "score": 9},
        {key: [None, *rows[1:]]}, {key: [[], *rows[1:]]}, {key: [{}, *rows[1:]]},
    ]  # fmt: skip
    if name != "k_module":
        bad: list[Any] = [math.nan, math.inf, -math.inf, 1e300, 10**400, True, "0.5", None, [0.5]]
        wrong += [{key: [[x, *rows[0][1:]], *rows[1:]]} for x in bad]
        wrong += [json.dumps({key: rows}).replace("[[", "[[1e999, ", 1).encode(), {key: [[*rows[0], 0], *rows[1:]]}]
    for answer in wrong:
        text = b"null" if answer is None else answer
        assert scored(name, text).startswith("FAIL"), answer
    (tmp_path / "answer.json").unlink()
    (tmp_path / "there.json").write_text(json.dumps({key: rows}))
    (tmp_path / "answer.json").symlink_to(tmp_path / "there.json")
    assert scored(name, None).startswith("FAIL"), "a link is followed nowhere"
    (tmp_path / "answer.json").unlink()
    os.mkfifo(tmp_path / "answer.json")
    assert scored(name, None).startswith("FAIL"), "a pipe is not waited for"


@pytest.mark.parametrize(
    ("name", "place", "row"),
    [
        ("circle_packing", 25, [0.2, 0.2, HOLE + 1e-6]),  # overlaps by little
        ("circle_packing", 0, [0.1, 0.1 - 1e-6, 0.1]),  # leaves the square by little
        ("circle_packing", 25, [0.5, 0.5, -0.01]),
        ("heilbronn", 10, [0.6, 0.400001]),
        ("heilbronn", 0, [-1e-6, 0.2]),
        ("function_min", 3, [5.000001, 0.0]),
    ],
)
def test_what_is_not_feasible_has_no_score(name: str, place: int, row: list[float], scored: Callable[..., str]) -> None:
    key, rows, _ = GOOD[name]
    assert scored(name, {key: [*rows[:place], row, *rows[place + 1 :]]}).startswith("FAIL")


def test_points_in_one_place_are_no_good_placing(scored: Callable[..., str]) -> None:
    assert scored("distance_ratio", {"points": [[1, 1]] * 16}).startswith("FAIL")
    assert scored("distance_ratio", {"points": [[1, 1], *GOOD["distance_ratio"][1][1:]]}) == "score: 0\n", "two are"
    assert scored("heilbronn", {"points": [[i / 20, i / 20] for i in range(11)]}) == "score: 0\n", "all on a line"


def test_all_problems_read_answers_alike() -> None:
    assert len({(PUBLIC / "problems" / name / "answer.py").read_bytes() for name in NAMES}) == 1
    assert {p.name for p in (PUBLIC / "problems").iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_is_a_task_whose_program_is_worth_what_its_readme_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = PUBLIC / "problems" / name
    assert autoresearchd(["task", "check", str(folder)]) == 0, capsys.readouterr()
    text, score = (folder / "program.py").read_text(), load_program(PUBLIC, "scoring").score
    found = score(text, folder, 7)
    assert found.score is not None, found.error
    told = re.search(r"([\d.]+) ± ([\d.]+)", (folder / "README.md").read_text())
    mean, deviation = map(float, told.groups()) if told else (0.0, 0.0)
    assert abs(found.score - mean) <= 4 * deviation
    assert found.score < 0.95 * GOOD[name][2] or name in ("distance_ratio", "heilbronn"), "there is something to gain"


def test_a_program_that_reaches_for_the_answer_or_does_not_end_has_no_score() -> None:
    folder, score = PUBLIC / "problems" / "k_module", load_program(PUBLIC, "scoring").score
    said = "print('score: 4')\n"
    for program, why in (
        ("x =", "SyntaxError"),
        (said, "evaluation failed"),
        (f"{said}open('right.json', 'a').write('x')", "right.json"),
        (f"{said}assert open('right.json').read()", "AssertionError"),
        (f"{said}while True: pass", "budget_overrun"),
        ("\ud800\0", "program.py"),
    ):
        found = score(program, folder, 1, 2.0)
        assert found.score is None and why in found.error, (program, found)
    again = [score((folder.parent / "heilbronn/program.py").read_text(), folder.parent / "heilbronn", 3).score] * 2
    assert again[0] == again[1] is not None


def test_a_comparison_counts_every_run_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare.py", "--dir", str(tmp_path), "--problems", "k_module", "--repeats", "1", "--evaluations", "9"]
    done = subprocess.run(
        [sys.executable, str(PUBLIC / "compare.py"), *command[1:], "--arms", "search,tpe"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")] for line in done.stdout.splitlines() if "| k_module |" in line]
    assert [row[2] for row in rows] == ["search", "tpe"]
    assert 5 <= float(rows[0][8]) <= 9 == float(rows[1][8])
    assert [p.suffix for p in tmp_path.iterdir()] == [".json"] * 2, "folders of sessions are removed"

    monkeypatch.setattr(sys, "path", [*sys.path])
    compare = load_program(PUBLIC, "compare")

    def again(*more: str) -> None:
        monkeypatch.setattr(sys, "argv", [*command, *more])
        compare.main()

    monkeypatch.setattr(compare, "score", None)  # nothing is run again
    again("--arms", "search,tpe")
    assert capsys.readouterr().out == done.stdout
    for wrong in (
        ["--arms", "nonsense"], ["--problems", "none"], ["--evaluations", "7"], ["--repeats", "0"],
        ["--arms", "openevolve", "--model", "m"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as refused:
            again(*wrong)
        assert refused.value.code
    cell = next(tmp_path.glob("*tpe*.json"))
    for text in ("{}", cell.read_text().replace('"problem": "', '"problem": "0')):
        cell.write_text(text)
        with pytest.raises(SystemExit, match="delete it"):
            again("--arms", "tpe")
