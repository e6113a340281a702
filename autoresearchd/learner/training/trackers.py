"""Where the curves of a learner run go: JSON lines always, TensorBoard where it is installed, others by name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoresearchd.domain.errors import MissingCapability, UsageError

CURVES = "curves.jsonl"
_PROJECT = "autoresearchd-learner"

Log = Callable[[int, Mapping[str, float]], Any]
"""Takes the figures of a step, by name."""
Tracker = tuple[Log, Callable[[], Any]]
"""With what says that nothing more comes."""


@contextmanager
def tracking(folder: Path, names: Sequence[str], run: str, warn: Callable[[str], None]) -> Iterator[Log]:
    """Hands figures to all trackers of a run; one that fails is left out from then on, and never ends the run.

    folder: of the run; made where it is missing. names: of further trackers. run: its name. warn: told of what fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trackers = {"file": _lines(folder / CURVES)}

    def attempt(name: str, what: Callable[..., Any], *given: object) -> Any:
        try:
            return what(*given)
        except Exception as error:  # noqa: BLE001 - told; it may be of whatever a tracker is made of
            trackers.pop(name, None)
            warn(f"the tracker {name} is left out: {type(error).__name__}: {str(error)[:200]}")

    def log(step: int, figures: Mapping[str, float]) -> None:
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        for name, (tell, _) in list(trackers.items()):
            attempt(name, tell, step, finite)

    boards = ["tensorboard"] if importlib.util.find_spec("tensorboard") is not None else []
    for name in (*boards, *names):
        if (made := attempt(name, _MAKERS[name], folder, run)) is not None:
            trackers[name] = made
    try:
        yield log
    finally:
        for name, (_, close) in list(trackers.items()):
            attempt(name, close)


def names_of(text: str) -> tuple[str, ...]:
    """The trackers of a list with commas.

    Raises UsageError: there is none of that name; MissingCapability: its package is not installed.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in OTHERS:
            raise UsageError(f"there is no tracker {name[:40]!r}", hint=f"take some of {', '.join(OTHERS)}")
        if importlib.util.find_spec(name) is None:
            raise MissingCapability(
                f"the tracker {name} is not installed", hint="pip install 'autoresearchd[trackers]'"
            )
    return names


def _lines(path: Path) -> Tracker:
    stream = path.open("a", encoding="utf-8")

    def log(step: int, figures: Mapping[str, float]) -> None:
        stream.write(json.dumps({"step": step, **figures}) + "\n")
        stream.flush()

    return log, stream.close


def _tensorboard(folder: Path, run: str) -> Tracker:
    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def log(step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return log, writer.close


def _service(name: str, run: str, **place: str) -> Tracker:
    module: Any = importlib.import_module(name)
    module.init(project=_PROJECT, name=run, **place)
    return lambda step, figures: module.log(dict(figures), step=step), module.finish


def _mlflow(folder: Path, run: str) -> Tracker:
    module: Any = importlib.import_module("mlflow")
    module.set_experiment(_PROJECT)
    module.start_run(run_name=run)
    return lambda step, figures: module.log_metrics(dict(figures), step=step), module.end_run


OTHERS = ("trackio", "wandb", "mlflow")
"""The trackers that ``--set trackers`` may name."""
_MAKERS: Mapping[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": _tensorboard,
    "trackio": lambda folder, run: _service("trackio", run),
    "wandb": lambda folder, run: _service("wandb", run, dir=str(folder)),
    "mlflow": _mlflow,
}
