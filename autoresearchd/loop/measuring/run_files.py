"""What runs leave on disk: logs to read, outputs to throw away."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import EnvironmentFailure
from autoresearchd.domain.experiment import RunResult
from autoresearchd.domain.redaction import Redactor, StreamRedactor
from autoresearchd.domain.task import Task
from autoresearchd.sandbox.job_files import remove_tree

LOG_BYTES = 16 * 2**20
RESULT_BYTES = 2**20
PIECE_CHARACTERS = 2**18

_AS_BYTES: dict[str, Any] = {"encoding": "utf-8", "errors": "surrogateescape", "newline": ""}
"""Text that is written back byte for byte."""


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


def clean_logs(run_dir: Path, redactor: Redactor) -> None:
    """Take secrets out of the logs of a run that has ended. EnvironmentFailure when a clean log cannot be written."""
    for path in sorted(run_dir.glob("*.log*")):
        if path.is_symlink() or not path.is_file():
            continue
        stream = StreamRedactor(redactor)
        deque(_through(stream, path), maxlen=0)
        if stream.hidden:
            clean = path.with_name(f".{path.name}.clean")
            try:
                with clean.open("w", **_AS_BYTES) as target:
                    target.writelines(_through(StreamRedactor(redactor), path))
                clean.replace(path)
            except OSError as error:
                clean.unlink(missing_ok=True)
                raise EnvironmentFailure(
                    f"the log {path} holds secrets and cannot be cleaned: {error.strerror}", hint="free some space"
                ) from error


def _through(stream: StreamRedactor, path: Path) -> Iterator[str]:
    """A log in pieces, redacted."""
    with path.open(**_AS_BYTES) as log:
        while piece := log.read(PIECE_CHARACTERS):
            yield stream.feed(piece)
        yield stream.close()


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


def read_sources(task: Task, pristine: Path) -> dict[str, str]:
    """Text of the protected Python files, by path; those in a protected folder too."""
    found = {}
    for path in task.protected:
        place = pristine / path
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            if file.suffix == ".py" and file.is_file():
                found[file.relative_to(pristine).as_posix()] = read_tail(file, RESULT_BYTES)
    return found


def discard_outputs(experiment_dir: Path, *, keep: int | None) -> None:
    """Remove the outputs (checkpoints) of an experiment's runs, but for those of the run ``keep``."""
    if not experiment_dir.is_dir():
        return
    for run_dir in experiment_dir.iterdir():
        if run_dir.name != str(keep):
            remove_tree(str(run_dir / "output"))
