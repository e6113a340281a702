"""What a program's text is worth on one of the problems: the one way for all arms, those of other tools among them.

    score(text, problem, seed=3, timeout=15.0)

It is run as the daemon runs an experiment, by the same executor: `python program.py` in the sandbox, in a fresh folder
and with an environment that is made from nothing, then `python evaluate.py` in another one that edited code has not
touched and that alone sees what is private. So each arm has the same score for the same program and seed.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from autoresearchd.config import load_task
from autoresearchd.domain.ports import RunRequest
from autoresearchd.evaluator.measure.measurement import measure
from autoresearchd.executor.local import LocalExecutor
from autoresearchd.loop.measuring.run_files import read_logs

PROBLEMS = Path(__file__).parent / "problems"
TIMEOUT = 15.0
"""Seconds: what the tasks give a run, their budget and grace."""


@dataclass(frozen=True)
class Scored:
    """score: higher is better; None: error says why there is none. seconds: by the clock, evaluation included."""

    score: float | None
    error: str
    seconds: float


@cache
def _executor() -> LocalExecutor:
    return LocalExecutor(slots=1)


def score(program: str, problem: Path, seed: int, timeout: float = TIMEOUT) -> Scored:
    """Run a program's text under a seed, for ``timeout`` seconds at most, and score its answer.

    problem: a folder of ``problems/``. Whatever the program does gives a score or an error, and leaves nothing behind.
    """
    task = load_task(problem)
    execution = task.execution
    training = min(execution.budget.training, timeout)
    budget = replace(execution.budget, training=training, grace=timeout - training, wall=timeout + 10.0)
    task = replace(task, execution=replace(execution, budget=budget))
    with tempfile.TemporaryDirectory(prefix="score-") as made:
        folder = Path(made).resolve()
        for name in ("workspace", "pristine", "source"):
            shutil.copytree(problem, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "workspace" / task.editable[0]).write_text(program, "utf-8", "replace")
        (folder / "setup").mkdir()
        request = RunRequest(
            key="score", task=task, commit="", seed=seed, workspace=folder / "workspace", pristine=folder / "pristine",
            setup=folder / "setup", run_dir=folder / "runs" / "score", source=folder / "source",
        )  # fmt: skip
        result = _executor().start(request).wait(None)
        assert result is not None  # it was waited for without an end
        found = measure(task, result, read_logs(result))
    error = "" if found.value is not None else f"{found.label.value}: {found.detail}"
    return Scored(found.value, error, result.duration_s)
