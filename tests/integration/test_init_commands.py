"""What ``task init`` prints can be pasted: it names the right files, and runs nothing that a file's name says."""

from __future__ import annotations

import shlex
from pathlib import Path

from autoresearchd.app.init import next_commands
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


def test_a_folder_without_a_repository_gets_one_where_it_is(tmp_path: Path) -> None:
    put(tmp_path / "my task")
    first = shlex.split(next(next_commands(tmp_path / "my task")))
    assert first[:4] == ["git", "-C", str(tmp_path / "my task"), "init"]
