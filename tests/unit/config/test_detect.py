"""Folders without a task.yaml: karpathy/autoresearch as it is cloned needs no file of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoresearchd.config import Overrides, check_files, detect, dump_task, parse_task
from autoresearchd.domain.task import Budget, Direction, Metric, MetricSource


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    folder = tmp_path / "autoresearch"
    folder.mkdir()
    (folder / "train.py").write_text('print(f"val_bpb:          {val_bpb:.6f}")\n')
    (folder / "prepare.py").write_text("TIME_BUDGET = 300\n")
    return folder


def test_a_clone_of_autoresearch_is_a_task_with_a_self_reported_metric(clone: Path) -> None:
    task = detect(clone)
    assert task is not None
    assert (task.name, task.editable, task.protected) == ("autoresearch", ("train.py",), ("prepare.py",))
    assert task.metric == Metric("val_bpb", Direction.MINIMIZE)
    assert task.scoring.source is MetricSource.STDOUT
    assert {"val_bpb", "peak_vram_mb", "num_params_M"} <= set(task.scoring.metrics)
    assert task.execution.run_command == "python train.py"
    assert task.execution.budget == Budget(300, 60, 660)
    assert task.data == ()
    check_files(task, clone)
    assert parse_task(dump_task(task)) == task


def test_a_project_of_uv_runs_by_its_own_environment_and_without_uv(clone: Path) -> None:
    """In a run there is neither a home nor the network, and ``uv run`` fails, or makes another environment."""
    (clone / "uv.lock").write_text("")
    task = detect(clone)
    assert task is not None and task.execution.run_command == "python train.py"
    assert task.execution.python == str(clone / ".venv/bin/python")


def test_data_that_was_prepared_already_is_shown_to_the_job(clone: Path) -> None:
    (clone.parent / "home" / ".cache" / "autoresearch").mkdir(parents=True)
    task = detect(clone)
    assert task is not None and task.data == ("~/.cache/autoresearch",)


def test_a_budget_from_the_command_line_holds_here_too(clone: Path) -> None:
    task = detect(clone, overrides=Overrides(budget=15))
    assert task is not None
    assert task.execution.budget == Budget(15, 60, 90)
    assert task.curve.check_every == 1.5


@pytest.mark.parametrize("missing", ["train.py", "prepare.py"])
def test_a_folder_that_lacks_a_part_is_not_taken_for_one(clone: Path, missing: str) -> None:
    (clone / missing).unlink()
    assert detect(clone) is None


def test_a_program_that_never_speaks_of_the_metric_is_not_taken_for_one(clone: Path) -> None:
    (clone / "train.py").write_text("print('loss: 1')\n")
    assert detect(clone) is None
    (clone / "train.py").unlink()
    (clone / "train.py").mkdir()
    assert detect(clone) is None
