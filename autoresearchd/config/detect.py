"""Tasks of folders without a task.yaml, known by their layout."""

from __future__ import annotations

from pathlib import Path

from autoresearchd.config.environments import environment_of
from autoresearchd.config.load import MAX_CHECK_EVERY, Overrides, clock
from autoresearchd.config.paths import MAX_EDITABLE_BYTES
from autoresearchd.config.schema import DEFAULT_BUDGET
from autoresearchd.domain.cleaning import printable
from autoresearchd.domain.task import Curve, Direction, Execution, Metric, MetricSource, Scoring, Task

METRIC = "val_bpb"
SUMMARY_KEYS = (
    METRIC,
    "training_seconds",
    "total_seconds",
    "peak_vram_mb",
    "mfu_percent",
    "total_tokens_M",
    "num_steps",
    "num_params_M",
    "depth",
)
CACHE = "~/.cache/autoresearch"


def detect(folder: Path, *, overrides: Overrides = Overrides()) -> Task | None:  # noqa: B008
    """The task of a folder laid out like https://github.com/karpathy/autoresearch, None for any other.

    There ``train.py`` is edited, ``prepare.py`` is not, and the job prints its metric itself: it is self-reported.
    """
    if not (_mentions_metric(folder / "train.py") and (folder / "prepare.py").is_file()):
        return None
    by_uv = environment_of("uv run train.py", folder) if (folder / "uv.lock").is_file() else None
    python = str(by_uv.python) if by_uv is not None and by_uv.python is not None else None
    budget = clock(overrides.budget or DEFAULT_BUDGET)
    name = printable(folder.resolve().name, instead="-")
    return Task(
        name=name or "autoresearch",
        editable=("train.py",),
        protected=("prepare.py",),
        data=(CACHE,) if Path(CACHE).expanduser().is_dir() else (),
        execution=Execution(run_command="python train.py", budget=budget, python=python),
        scoring=Scoring(
            metric=Metric(METRIC, Direction.MINIMIZE),
            source=MetricSource.STDOUT,
            metrics=SUMMARY_KEYS,
            display_metrics=("peak_vram_mb",),
        ),
        curve=Curve(check_every=min(MAX_CHECK_EVERY, budget.training / 10)),
    )


def _mentions_metric(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return METRIC.encode() in stream.read(MAX_EDITABLE_BYTES)
    except OSError:
        return False
