"""What ``task init`` prints can be pasted: it names the right files, and runs nothing that a file's name says."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from autoresearchd.app.tasks import init_task
from autoresearchd.app.tasks.check_task import Held
from autoresearchd.app.tasks.init_task import next_commands
from autoresearchd.cli.main import run
from autoresearchd.workspace import preflight

TASK = """\
name: t
workspace: {source_dir: code, target_file: "a b;touch x.py"}
execution: {run_command: python train.py, budget: 1}
scoring: {metric: loss, direction: minimize, metric_source: stdout}
"""


def put(folder: Path) -> None:
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "task.yaml").write_text(TASK)
    (folder / "code" / "a b;touch x.py").write_text("print('loss: 1')\n")


def test_names_are_quoted_and_below_the_folder_of_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "my task"
    folder.mkdir()
    preflight.init_repository(folder)
    put(folder)
    added, check, begin = (shlex.split(line) for line in next_commands(folder))
    assert added[: added.index("&&")] == ["git", "-C", str(folder), "add", "--", "task.yaml", "code/a b;touch x.py"]
    assert check == ["autoresearchd", "task", "check", str(folder), "--run"]
    assert begin[-1] == str(folder)


def test_a_policy_that_can_edit_it_and_a_repository_are_named(tmp_path: Path) -> None:
    put(tmp_path / "my prompt")
    (tmp_path / "my prompt" / "task.yaml").write_text(TASK.replace("a b;touch x.py", "prompt.txt"))
    first, *_, begin = (shlex.split(line) for line in next_commands(tmp_path / "my prompt"))
    assert first[:4] == ["git", "-C", str(tmp_path / "my prompt"), "init"]
    assert begin[-2:] == ["--policy", "command:CMD"]


def test_of_a_copy_all_is_committed_and_nothing_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preflight.init_repository(tmp_path)
    (tmp_path / "of-mine.txt").write_text("not committed, and staged")
    subprocess.run(["git", "add", "of-mine.txt"], cwd=tmp_path, check=True)
    assert run(["task", "init", "terrain", str(tmp_path / "sub/made")]) == 0
    first = next(line for line in capsys.readouterr().err.splitlines() if "next: " in line).partition("next: ")[2]
    who = {f"GIT_{role}_{what}": "u@localhost" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["sh", "-c", first], check=True, env={**os.environ, **who}, stdout=subprocess.DEVNULL)
    listed = ["git", "ls-tree", "-r", "--name-only", "HEAD"]
    there = subprocess.run(listed, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    made = {f"sub/made/{path.relative_to(tmp_path / 'sub/made')}" for path in (tmp_path / "sub/made").rglob("*.*")}
    assert made <= set(there.splitlines()) and "sub/made/README.md" in made
    assert "of-mine.txt" not in there


def test_a_log_without_a_run_yet_keeps_nobody_from_the_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever logs by hand begins it with a line about the metric."""
    (tmp_path / "autoresearch.sh").write_text("echo METRIC loss=1\n")
    (tmp_path / "autoresearch.md").write_text("## Files in scope\n- `fit.py`\n")
    (tmp_path / "fit.py").write_text("LR = 0.1\n")
    line = {"type": "config", "name": "x", "metricName": "loss", "metricUnit": "", "bestDirection": "lower"}
    (tmp_path / "autoresearch.jsonl").write_text(json.dumps(line) + "\n")
    preflight.init_repository(tmp_path)
    assert run(["task", "init", "mine", str(tmp_path), "--no-measure"]) == 0
    assert "its experiments were not imported" in (said := capsys.readouterr().err) and "next: " in said
    assert "autoresearchd import" not in said, "there is nothing to import"
    assert "the time that pi-autoresearch allows a run, 10m, is the budget" in said


@pytest.mark.parametrize("edited", [False, True])
def test_what_somebody_writes_into_the_task_while_its_baseline_is_measured_stays(
    edited: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The measurement takes minutes, in which the file is read and corrected."""
    (tmp_path / "train.py").write_text("LR = 0.1\nprint('loss:', LR)\n")
    preflight.init_repository(tmp_path)
    path = tmp_path / "task.yaml"

    def check_held(*_: object, **__: object) -> Held:
        path.write_text(path.read_text() + "# mine\n" * edited)
        return Held("loss", "cpu", 1.0, "none", "stdout", (0.1, 0.1), 0.0, None, 0.2, 0.0, 1.0, (), (), 0, 0, ())

    monkeypatch.setattr(init_task, "check_held", check_held)
    given = ("--file", "train.py", "--command", "python train.py", "--metric", "loss", "--measure")
    assert run(["task", "init", "mine", str(tmp_path), *given]) == 0
    text, said = path.read_text(), capsys.readouterr().err
    assert ("# mine" in text, "baseline: 0.1" in text) == (edited, not edited)
    assert (f"{path} was changed meanwhile and stays as it is" in said) == edited
    assert "baseline: loss 0.1 ± 0 over 2 runs of less than a second\n" in said, "it was measured all the same"
    assert not [*tmp_path.glob("*.part")]
