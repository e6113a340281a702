"""Is what `search` brings on somebody's own program true? Five programs in five usual shapes.

    python benchmarks/programs.py --experiments 20 [--only NAME …] [--dir DIR]

For each: a repository, `task init`, `task check --run`, `task space`, a session with `search`. Then the program as it
was and the one on the session's branch run in turn on five fresh seeds, outside of the daemon. Each hands over the
targets of its validation set and its predictions: the score is worked out here, and the targets must be those of the
program as it was, byte for byte. The lines that make the data must be as they were, and the program may take no more
than a quarter more time than before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

PROGRAMS = Path(__file__).with_name("programs")
FRESH_SEEDS = range(900_001, 900_006)
SHARE = 1.25


@dataclass(frozen=True)
class Program:
    """One of the five. data: lines that make the data; score: from targets and predictions, less is better."""

    name: str
    files: tuple[str, ...]
    command: str
    metric: str
    budget_s: float
    data: Mapping[str, tuple[str, ...]]
    score: Callable[[Any, Any], float]
    reads_budget: bool = False


def mse(y: Any, predicted: Any) -> float:
    """Mean squared error."""
    return float(np.mean((y - predicted) ** 2))


def log_loss(y: Any, p: Any) -> float:
    """Of probabilities of the class 1."""
    return float(-np.mean(y * np.log(p) + (1 - y) * np.log(1 - p)))


ALL = (
    Program(
        "numpy_script", ("fit.py",), "python fit.py", "rmse", 3,
        {"fit.py": ("N = 600", "N_VAL = 200", "NOISE = 0.1", "DATA_SEED = 7")},
        lambda y, p: math.sqrt(mse(y, p)),
    ),
    Program(
        "torch_mlp", ("train.py",), "python train.py", "val_loss", 3,
        {"train.py": ("N_TRAIN = 800", "VAL_FRACTION = 0.25", "TURNS = 1.75", "JITTER = 0.05", "default_rng(11)")},
        lambda y, z: log_loss(y, 1 / (1 + np.exp(-z.astype(np.float64)))),
        reads_budget=True,
    ),
    Program(
        "yaml_argparse", ("config.yaml", "net/module.py"), "python main.py --config config.yaml", "val_mse", 3,
        {"config.yaml": ("  samples: 900", "  val_split: 0.2", "  noise: 0.3", "  seed: 3")}, mse,
    ),
    Program(
        "sklearn_folder", ("train.py",), "python train.py", "logloss", 5,
        {"train.py": ("skiprows=1",)}, log_loss,
    ),
    Program(
        "uv_submodule", ("train.py",), "uv run train.py", "val_bits", 3,
        {"train.py": ("N_VAL = 400", "TEXT_SEED = 2")},
        lambda y, rows: sum(sum(row) for row in rows) / sum(len(row) for row in rows),
    ),
)  # fmt: skip


def git(folder: Path, *arguments: str) -> str:
    """Run git as a user of its own; what it printed."""
    who = ["-c", "user.name=u", "-c", "user.email=u@localhost", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make(program: Program, folder: Path) -> None:
    """The repository of a program, as its user has it."""
    source = PROGRAMS / program.name
    inner = source / "project"
    shutil.copytree(inner if inner.is_dir() else source, folder)
    git(folder, "init", "-q", "-b", "main")
    if program.name == "uv_submodule":
        library = folder.with_name("library")
        shutil.copytree(source / "library", library)
        for step in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "The library")):
            git(library, *step)
        git(folder, "submodule", "add", "-q", str(library), "libs/text")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], cwd=folder, check=True)
    if program.name == "sklearn_folder":
        subprocess.run([sys.executable, "make_data.py"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("/data/\n/.venv/\n__pycache__/\n/validation.*\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "A program")


def daemon(folder: Path, *arguments: str, check: bool = True) -> str:
    """A command of autoresearchd; what it said goes to the log beside the folder."""
    done = subprocess.run(
        [sys.executable, "-m", "autoresearchd", *arguments], cwd=folder, capture_output=True, text=True
    )
    with folder.with_suffix(".log").open("a") as log:
        log.write(f"$ autoresearchd {' '.join(arguments)}\n{done.stdout}{done.stderr}→ {done.returncode}\n\n")
    if check and done.returncode:
        raise SystemExit(f"{folder.name}: autoresearchd {' '.join(arguments)} → {done.returncode}\n{done.stderr}")
    return done.stdout


def research(program: Program, folder: Path, experiments: int) -> list[dict[str, Any]]:
    """`task init`, `task check --run`, a session; its experiments."""
    files = [word for path in program.files for word in ("--file", path)]
    init = ["task", "init", program.name, ".", *files, "--command", program.command, "--metric", program.metric]
    daemon(folder, *init, "--direction", "minimize", "--budget", f"{program.budget_s:g}s", "--no-measure")
    task = folder / "task.yaml"
    if program.name == "sklearn_folder":
        task.write_text(task.read_text().replace("workspace:\n", "workspace:\n  data: [data]\n", 1))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "The task")
    daemon(folder, "task", "check", ".", "--run")
    daemon(folder, "task", "space", ".")
    options = ["--policy", "search", "--max-experiments", str(experiments), "--tag", "own", "--foreground"]
    daemon(folder, "start", *options)
    found: list[dict[str, Any]] = json.loads(daemon(folder, "experiments", "--json"))
    return found


def hand_over(program: Program, folder: Path, seed: int) -> tuple[Any, Any, float]:
    """Targets, predictions and seconds of one run of a program, outside of the daemon.

    The seconds are of the clock where the program ends by it, else of the processor.
    """
    with tempfile.TemporaryDirectory() as out:
        environment = {
            **os.environ,
            "AUTORESEARCHD_SEED": str(seed),
            "AUTORESEARCHD_OUTPUT_DIR": out,
            "AUTORESEARCHD_TIME_BUDGET": f"{program.budget_s:g}",
            "OMP_NUM_THREADS": "1",
        }
        words = program.command.removeprefix("uv run").removeprefix("python").split()
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run([sys.executable, *words], cwd=folder, env=environment, check=True, capture_output=True)
        after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - began
        if not program.reads_budget:
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if (Path(out) / "validation.json").is_file():
            told = json.loads((Path(out) / "validation.json").read_text())
            return told["y"], told["predicted"], seconds
        with np.load(Path(out) / "validation.npz") as arrays:
            return arrays["y"], arrays["predicted"], seconds


def same(one: Any, other: Any) -> bool:
    """Whether two validation sets are one."""
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def verify(program: Program, folder: Path, experiments: list[dict[str, Any]]) -> dict[str, Any]:
    """Both programs on fresh seeds, by their own predictions on the validation set as it was."""
    trees = {}
    for name, commit in (("before", "main"), ("after", "autoresearch/own")):
        trees[name] = folder.with_name(f"{folder.name}-{name}")
        git(folder, "worktree", "add", "-q", "--detach", str(trees[name]), commit)
        if (trees[name] / ".gitmodules").is_file():
            git(trees[name], "submodule", "update", "-q", "--init")
        if (folder / "data").is_dir():
            (trees[name] / "data").symlink_to(folder / "data")
    scores: dict[str, list[float]] = {"before": [], "after": []}
    took: dict[str, list[float]] = {"before": [], "after": []}
    unchanged = True
    for seed in FRESH_SEEDS:
        targets: dict[str, Any] = {}
        for name, tree in trees.items():
            targets[name], predicted, seconds = hand_over(program, tree, seed)
            took[name].append(seconds)
            comparable = same(targets["before"], targets[name])
            scores[name].append(program.score(targets["before"], predicted) if comparable else math.nan)
        unchanged &= same(targets["before"], targets["after"])
    lines = {path: (trees["after"] / path).read_text() for path in program.data}
    touched = [line for path, wanted in program.data.items() for line in wanted if line not in lines[path]]
    before, after = scores["before"], scores["after"]
    return {
        "kept": sum(e["status"] == "keep" for e in experiments[1:]),
        "experiments": len(experiments) - 1,
        "before": statistics.mean(before),
        "after": statistics.mean(after),
        "sigma": statistics.stdev(before),
        "better": sum(b > a for b, a in zip(before, after, strict=True)),
        "same validation set": unchanged,
        "touched": touched,
        "time": statistics.median(took["after"]) / statistics.median(took["before"]),
    }


def main() -> int:
    """Print the table; 1 where a line of it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiments", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=None, choices=[p.name for p in ALL])
    parser.add_argument("--dir", type=Path, default=None, help="an empty folder; it is kept")
    options = parser.parse_args()
    root = options.dir or Path(tempfile.mkdtemp(prefix="programs-"))
    root.mkdir(parents=True, exist_ok=True)
    good = True
    columns = ["program", "kept", "before → after, fresh seeds", "σ", "better", "validation set", "data lines touched"]
    print(f"| {' | '.join([*columns, 'time ÷ before'])} |\n{'|---' * 8}|")
    for program in ALL:
        if options.only and program.name not in options.only:
            continue
        began = time.monotonic()
        folder = root / program.name / "project"
        folder.parent.mkdir()
        make(program, folder)
        row = verify(program, folder, research(program, folder, options.experiments))
        holds = row["same validation set"] and not row["touched"] and row["time"] <= SHARE
        good &= holds and (not row["kept"] or row["after"] < row["before"])
        cells = [
            program.name,
            f"{row['kept']} of {row['experiments']}",
            f"{program.metric} {row['before']:.4f} → {row['after']:.4f}",
            f"{row['sigma']:.4f}",
            f"{row['better']} of {len(FRESH_SEEDS)}",
            "the same" if row["same validation set"] else "ANOTHER",
            ", ".join(row["touched"]) or "none",
            f"{row['time']:.2f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        print(f"{program.name}: {time.monotonic() - began:.0f} s, {folder}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
