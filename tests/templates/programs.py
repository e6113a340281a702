"""Programs of bundled tasks: loaded as modules, and run as a session would run them."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


def load_programs(task: Path, *programs: str) -> tuple[ModuleType, ...]:
    """Programs as modules that know each other; their names are free again afterwards, for those of other tasks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(task))
        try:
            return tuple(importlib.import_module(program) for program in programs)
        finally:
            for path in task.glob("*.py"):
                sys.modules.pop(path.stem, None)


def load_program(task: Path, program: str) -> ModuleType:
    return load_programs(task, program)[0]


def shortened(task: Path, folder: Path, long: str, short: str) -> Path:
    """The files of a task, with an evaluation that is shorter."""
    shutil.copytree(task, folder, ignore=shutil.ignore_patterns("__pycache__"))
    scorer = (folder / "evaluate.py").read_text()
    assert long in scorer
    (folder / "evaluate.py").write_text(scorer.replace(long, short))
    return folder


def run_program(task: Path, program: str, folder: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """Run a program of a task in a folder, which is its output folder, too."""
    environment = {**os.environ, "AUTORESEARCHD_OUTPUT_DIR": str(folder), "OMP_NUM_THREADS": "1", **values}
    command = [sys.executable, str(task / program)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def environment(**extra: object) -> dict[str, str]:
    """That of a job: ``TIME_BUDGET`` is AUTORESEARCHD_TIME_BUDGET."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AUTORESEARCHD_")}
    values = {f"AUTORESEARCHD_{key}": str(value) for key, value in extra.items()}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "AUTORESEARCHD_PROFILE": "cpu", **values}


def evaluated(pristine: Path, output: Path, exchange: Path | str = "/nowhere") -> subprocess.CompletedProcess[str]:
    """The end of a scorer in the folder of its pristine files."""
    env = environment(EXCHANGE_DIR=exchange, OUTPUT_DIR=output)
    command = [sys.executable, "evaluate.py"]
    return subprocess.run(command, cwd=pristine, env=env, capture_output=True, text=True, timeout=200)


def score(pristine: Path, output: Path, serving: Path) -> tuple[subprocess.CompletedProcess[str], int, str]:
    """The end of a scorer, and exit code and stderr of the model's process beside it, in a folder of its own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as exchange:
        env = environment(EXCHANGE_DIR=exchange, OUTPUT_DIR=output)
        model = subprocess.Popen(
            [sys.executable, "serve_model.py"], cwd=serving, env=env, stderr=subprocess.PIPE, text=True
        )
        try:
            scorer = evaluated(pristine, output, exchange)
            _, stderr = model.communicate(timeout=20)
        finally:
            model.kill()
        return scorer, model.returncode, stderr


def run_together(folder: Path, *programs: str, **values: str) -> list[subprocess.CompletedProcess[str]]:
    """Run programs with their arguments side by side in a folder, with an exchange folder between them."""
    with tempfile.TemporaryDirectory() as exchange:
        own = {"AUTORESEARCHD_EXCHANGE_DIR": exchange, "PYTHONDONTWRITEBYTECODE": "1", **values}
        started = [
            subprocess.Popen(
                [sys.executable, *program.split()], cwd=folder, env={**os.environ, **own}, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for program in programs
        ]  # fmt: skip
        ended = [(process, *process.communicate(timeout=100)) for process in started]
        return [subprocess.CompletedProcess([], p.returncode, out, error) for p, out, error in ended]


def metrics_of(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    """What a scorer measured."""
    lines = [line.removeprefix("METRIC ") for line in done.stdout.splitlines() if line.startswith("METRIC ")]
    return {name: float(value) for name, value in (line.split("=") for line in lines)}


def is_no_score(task: Path, data: Path, folder: Path, name: str, content: object, **values: str) -> bool:
    """Whether a scorer refuses a result: of bytes, an array, a link to a text's place, or none at all.

    data: the task's, as set up; folder: where the result lies.
    """
    (folder / "data").symlink_to(data)
    if isinstance(content, bytes):
        (folder / name).write_bytes(content)
    elif isinstance(content, str):
        (folder / name).symlink_to(data / content)
    elif content is not None:
        np.save(folder / name, content, allow_pickle=True)
    scored = run_program(task, "evaluate.py", folder, **values)
    return scored.returncode == 1 and "METRIC" not in scored.stdout and "FAIL" in scored.stdout
