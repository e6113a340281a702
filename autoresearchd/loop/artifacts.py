"""What runs leave on disk: logs to read, outputs to throw away."""

from __future__ import annotations

import shutil
from pathlib import Path

from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.task import Task

LOG_BYTES = 16 * 2**20
RESULT_BYTES = 2**20


def read_tail(path: Path, limit: int) -> str:
    """The last ``limit`` bytes as text, bad bytes replaced; empty when there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - limit))
            return file.read(limit).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def read_logs(result: RunResult) -> dict[str, str]:
    """Text of each stage's log, the rotated part before the current one."""
    logs = {}
    for stage in result.stages:
        path = Path(stage.log_path)
        logs[stage.name] = read_tail(path.with_name(path.name + ".1"), LOG_BYTES // 2) + read_tail(path, LOG_BYTES)
    return logs


def read_result_file(task: Task, run_dir: Path) -> str | None:
    """Text of the result file that the task names, None when it names none or the job wrote none."""
    if task.scoring.result_file is None:
        return None
    output = (run_dir / "output").resolve()
    path = output / task.scoring.result_file
    # The job wrote this folder: a link in it could point at anything that the daemon can read.
    if path.resolve() != path or not path.is_file():
        return None
    return read_tail(path, RESULT_BYTES)


def discard_outputs(experiment_dir: Path, *, keep: bool) -> None:
    """Remove the outputs (checkpoints) of an experiment's runs; a kept one keeps those of its first run."""
    if not experiment_dir.is_dir():
        return
    for run_dir in experiment_dir.iterdir():
        if not (keep and run_dir.name == "0"):
            shutil.rmtree(run_dir / "output", ignore_errors=True)
