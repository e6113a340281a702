"""``task check --run``: measure a task once, beside any session, and say what came out."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

from autoresearchd.app.start import read_task
from autoresearchd.config import check_files
from autoresearchd.domain.duration import format_duration
from autoresearchd.domain.labels import Label
from autoresearchd.errors import BaselineError
from autoresearchd.evaluator.measure import measure
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.artifacts import read_logs, read_result_file
from autoresearchd.ports import RunRequest

SEED = 1


def check_run(folder: Path, budget: float | None = None) -> str:
    """Set a copy of the task up, run it once and measure it; a sentence with the metric.

    Raises BaselineError when it has none.
    """
    task = read_task(folder, budget)
    source = (folder / task.source_dir).resolve()
    check_files(task, source)
    with tempfile.TemporaryDirectory(prefix="autoresearchd-check-") as scratch:
        top = Path(scratch)
        ignore = shutil.ignore_patterns(".git", ".autoresearchd", ".venv", "__pycache__")
        for name in ("pristine", "workspace"):
            shutil.copytree(source, top / name, ignore=ignore, symlinks=True)
        executor = LocalExecutor()
        executor.setup(task, top / "pristine", top / "setup", top / "setup.log", threading.Event())
        request = RunRequest(
            key=f"check/{task.name}",
            task=task,
            commit="",
            seed=SEED,
            workspace=top / "workspace",
            pristine=top / "pristine",
            setup=top / "setup",
            run_dir=top / "run",
            source=source,
        )
        result = executor.start(request).wait(None)
        if result is None:
            raise BaselineError("the run gave no result", mend="try again")
        logs = read_logs(result)
        measurement = measure(task, result, logs, result_file=read_result_file(task, request.run_dir))
        if measurement.label is not Label.NONE or measurement.value is None:
            tail = "\n".join(next(iter(reversed(logs.values())), "").splitlines()[-15:])
            raise BaselineError(
                f"{task.name}: {measurement.label.value}: {measurement.detail}\n{tail}",
                mend="mend the program, then check again",
            )
        return (
            f"{task.metric.name} {measurement.value:.6g} in {format_duration(result.duration_s)} "
            f"({result.tier}, {task.scoring.source.value})"
        )
