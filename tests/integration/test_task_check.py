"""`task check --run` with a check.yaml: a cheat that pays, a baseline that moved, an edit that is refused are found."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autoresearchd.app.tasks.check_task import Extent, Held, check_held, repository_notes
from autoresearchd.cli.main import run
from autoresearchd.domain.errors import ConfigError
from tests.e2e.conftest import Done, Project
from tests.fakes.repositories import commit_all, make_repository, write_files

PROGRAM = """\
import os
SCALE = 1.0
answers = "data/answers.txt"
with open(os.path.join(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "said.txt"), "w") as file:
    file.write(str(SCALE))
"""
SCORER = """\
import os
true = float(open("data/answers.txt").read())
said = float(open(os.path.join(os.environ["AUTORESEARCHD_OUTPUT_DIR"], "said.txt")).read())
print(f"METRIC miss={abs(said - true)}")
"""
TASK = """\
name: guess
workspace: {target_file: train.py, protected: [evaluate.py]}
execution: {run_command: python -S train.py, budget: 20, startup_grace: 5}
evaluation: {command: python -S evaluate.py, private: [data/answers.txt]}
scoring: {metric: miss, direction: minimize}
"""
CHECK = """\
baseline: {cpu: {value: 2.0, sigma: 0}}
edits:
  - {name: another guess, change: [{search: "SCALE = 1.0", replace: "SCALE = 1.5"}]}
cheats:
  - name: reads the answers
    change: [{search: "str(SCALE)", replace: "open('@PRIVATE@').read()"}]
    expect: error
  - {name: prints the metric, change: [{append: "print('METRIC miss=0')\\n"}]}
  - {name: edits the scorer, change: [{file: evaluate.py, append: "# mine\\n"}], expect: illegal_edit}
"""
PAYS = '  - {name: was told, change: [{search: "SCALE = 1.0", replace: "SCALE = 3.0"}]}\n'


def caught(held: Held) -> int:
    return sum(cheat.right for cheat in held.cheats)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task whose program guesses 1 where the answer is 3."""
    top = tmp_path / "guess"
    make_repository(top, {"train.py": PROGRAM, "evaluate.py": SCORER, "task.yaml": TASK, ".gitignore": "data/\n"})
    write_files(top, {"data/answers.txt": "3.0"})
    return top


def command(folder: Path, *arguments: str) -> Done:
    return Project(folder, dict(os.environ)).cli("task", "check", str(folder), "--run", *arguments)


def test_a_task_that_holds_is_told_with_its_figures(folder: Path) -> None:
    (folder / "check.yaml").write_text(CHECK)
    answer = command(folder, "--json")
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)[0]
    assert (found["task"], found["ok"], found["values"], found["sigma"]) == ("guess", True, [2.0, 2.0, 2.0], 0.0)
    assert found["documented"] == {"value": 2.0, "sigma": 0.0, "text": "2.0 ± 0", "budget": None, "within": 0.0}
    assert [cheat["label"] for cheat in found["cheats"]] == ["error", "no_gain", "illegal_edit"]
    assert [edit["right"] for edit in found["edits"]] == [True], "an edit may be better than the baseline"


def test_a_cheat_that_pays_fails_the_check(folder: Path) -> None:
    (folder / "check.yaml").write_text(CHECK + PAYS)
    answer = command(folder)
    assert answer.returncode == 1
    assert "3 of 4 cheats caught" in answer.stdout
    assert "the cheat 'was told' ended as better: miss 0, unedited 2" in answer.stderr


def test_a_cheat_that_beat_a_single_run_is_measured_once_more_beside_the_program(folder: Path) -> None:
    lucky = PAYS.replace("SCALE = 1.0", "str(SCALE)").replace(
        "SCALE = 3.0", "str(SCALE + 2 * (os.environ['AUTORESEARCHD_SEED'] == '1'))"
    )
    (folder / "check.yaml").write_text(CHECK + lucky)
    held = check_held(folder, extent=Extent(runs=2))
    assert (held.cheats[-1].label, held.cheats[-1].detail, caught(held)) == ("no_gain", "miss 2, unedited 2", 4)


def test_what_is_asked_of_many_tasks_is_told_of_what_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "check.yaml").write_text(CHECK + "".join(PAYS.replace("told", f"told by {who}") for who in "abc"))
    monkeypatch.setattr("autoresearchd.app.tasks.task_folder.bundled_tasks", lambda: [folder])
    told = {}
    for more in ((), ("--thorough",), ("--short",)):
        assert run(["task", "check", "--all", "--run", *more]) == (1 if more == ("--thorough",) else 0)
        told[more] = capsys.readouterr().out.splitlines()[-1].split("  ")
    cells = {more: [cell.strip() for cell in row if cell.strip()] for more, row in told.items()}
    assert cells[()][6] == "3/3 (of 6)"
    assert cells[("--thorough",)][6] == "3/6"
    assert cells[("--short",)][6] == "2/2 (of 6)"


def test_a_bounded_metric_that_is_never_printed_is_told(folder: Path) -> None:
    bounded = TASK.replace("minimize}", "minimize, constraints: [{metric: memory_gb, max: 4}]}")
    (folder / "task.yaml").write_text(bounded)
    answer = command(folder)
    assert answer.returncode == 3
    assert "guess prints no memory_gb, which a constraint bounds" in answer.stderr


def test_of_a_failed_set_up_the_end_of_its_log_is_told(folder: Path) -> None:
    (folder / "task.yaml").write_text(
        TASK.replace("budget: 20", "setup_commands: ['echo no luck; exit 3'], budget: 20")
    )
    answer = command(folder)
    assert answer.returncode == 3
    assert "no luck" in answer.stderr and "setup_commands" in answer.stderr
    assert "setup.log" not in answer.stderr


SECRET = "correct-horse-battery-staple"


@pytest.mark.parametrize("fails", ["run", "metric", "set-up", "edit"])
def test_what_a_job_was_given_in_secret_is_not_told_however_the_check_ends(folder: Path, fails: str) -> None:
    asks = "import os\nprint('key', os.environ['WEIGHTS_PASSWORD'], flush=True)\n"
    raises = f"{asks}raise ValueError(os.environ['WEIGHTS_PASSWORD'])\n"
    set_up = ", setup_commands: ['env; false']" if fails == "set-up" else ""
    task = TASK.replace("budget: 20", f"env: {{WEIGHTS_PASSWORD: {SECRET}}}{set_up}, budget: 20")
    if fails == "metric":
        task = "".join(line for line in task.splitlines(True) if "evaluation:" not in line)
    files = {"train.py": {"run": raises, "metric": asks}.get(fails, PROGRAM), "task.yaml": task}
    if fails == "edit":
        files["check.yaml"] = CHECK.replace('"SCALE = 1.5"', json.dumps(raises))
    write_files(folder, files)
    commit_all(folder)
    for more in ((), ("--json",)):
        answer = command(folder, *more)
        told = answer.stdout + answer.stderr
        assert answer.returncode and "«redacted:environment»" in told
        assert SECRET[:10] not in told


def test_a_baseline_that_moved_and_an_edit_that_is_refused_are_told(folder: Path) -> None:
    broken = CHECK.replace("value: 2.0", "value: 7.0").replace('"SCALE = 1.5"', '"SCALE = "')
    (folder / "check.yaml").write_text(broken)
    held = check_held(folder, extent=Extent(runs=2))
    assert "the baseline is 2, documented as 7.0 ± 0" in held.faults[0]
    assert "the edit 'another guess' was refused: illegal_edit" in held.faults[1]


def test_a_cheat_that_no_longer_fits_the_program_is_told_before_anything_runs(folder: Path) -> None:
    (folder / "check.yaml").write_text(CHECK.replace("str(SCALE)", "repr(SCALE)"))
    with pytest.raises(ConfigError, match=r"'reads the answers' looks for a text that is in train\.py 0 times"):
        check_held(folder)


def test_the_task_file_is_the_only_one_that_is_not_taken_from_the_commit_and_that_is_said(tmp_path: Path) -> None:
    """A check that passes by an uncommitted line would be taken for one of the commit."""
    make_repository(tmp_path, {"task.yaml": "name: t\n", "train.py": "x = 1\n"})
    assert repository_notes(tmp_path) == ()
    (tmp_path / "task.yaml").write_text("name: u\n")
    [note] = repository_notes(tmp_path)
    assert note.startswith("task.yaml is checked as it is here")
    (tmp_path / "train.py").write_text("x = 2\n")
    first, second = repository_notes(tmp_path)
    assert first == note
    assert "what is run: train.py" in second
    assert "task.yaml" not in second


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize(("budget", "unedited"), [("", 2), ("budget: 5s\n", 3)])
def test_cheats_have_their_own_budget(folder: Path, budget: str, unedited: int, at_once: int) -> None:
    hurried = "SCALE = 1.0\nif float(os.environ['AUTORESEARCHD_TIME_BUDGET']) < 10:\n    SCALE -= 1\n"
    write_files(folder, {"train.py": PROGRAM.replace("SCALE = 1.0\n", hurried)})
    commit_all(folder)
    (folder / "check.yaml").write_text(CHECK + budget)
    held = check_held(folder, extent=Extent(runs=2), at_once=at_once)
    assert (held.values, caught(held)) == ((2.0, 2.0), 3)
    assert held.cheats[1].detail == f"miss {unedited}, unedited {unedited}"


def test_a_program_that_reads_neither_its_budget_nor_its_seed_is_told_so_before_a_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a budget of 3 s nothing was said, and a run that took 57 s was kept; with a seed of its own, luck was."""
    top = tmp_path / "mine"
    top.mkdir()
    (top / "train.py").write_text("RATE = 0.1\nprint(f'loss: {RATE}')\n")
    monkeypatch.chdir(top)
    made = ["--file", "train.py", "--command", "python -S train.py", "--metric", "loss", "--budget", "30s"]
    for command in (["task", "init", "mine", ".", *made, "--no-measure"], ["task", "check", "."]):
        assert run(command) == 0
        told = capsys.readouterr().err
        assert "AUTORESEARCHD_TIME_BUDGET, so its budget of 30 s does not end it: experiments are held to the" in told
        assert "does not read AUTORESEARCHD_SEED: every run then has the program's own seed" in told
    make_repository(top, {})
    assert run(["task", "check", ".", "--run"]) == 0
    assert "of a budget of 30 s: the budget does not bind" in capsys.readouterr().err
