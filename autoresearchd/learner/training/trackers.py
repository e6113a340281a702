"""Where the curves of a learner run go: JSON lines always, TensorBoard where it is installed, others by name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from autoresearchd.domain.errors import MissingCapability, UsageError

CURVES = "curves.jsonl"
_PROJECT = "autoresearchd-learner"

Tracker = tuple[Callable[[int, Mapping[str, float]], Any], Callable[[], Any]]
"""What takes the figures of a step, by name, and what says that nothing more comes."""


class Tracking:
    """All trackers of a run. One that fails is left out from then on, and never ends the run.

    folder: of the run; made where it is missing. names: of further trackers. run: its name. warn: told of what fails.
    """

    def __init__(self, folder: Path, names: Sequence[str], run: str, warn: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._warn = warn
        self._trackers: dict[str, Tracker] = {"file": _lines(folder / CURVES)}
        boards = ["tensorboard"] if importlib.util.find_spec("tensorboard") is not None else []
        for name in (*boards, *names):
            try:
                self._trackers[name] = _MAKERS[name](folder, run)
            except Exception as error:  # noqa: BLE001 - told; it may be of whatever a tracker is made of
                self._failed(name, error)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step; what is no finite number is left out."""
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        for name, (log, _) in list(self._trackers.items()):
            try:
                log(step, finite)
            except Exception as error:  # noqa: BLE001 - told; it may be of whatever a tracker is made of
                del self._trackers[name]
                self._failed(name, error)

    def _failed(self, name: str, error: Exception) -> None:
        self._warn(f"the tracker {name} is left out: {type(error).__name__}: {str(error)[:200]}")

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, (_, close) in self._trackers.items():
            try:
                close()
            except Exception as failure:  # noqa: BLE001 - told
                self._failed(name, failure)


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


def _trackio(folder: Path, run: str) -> Tracker:
    module: Any = importlib.import_module("trackio")
    module.init(project=_PROJECT, name=run)
    return lambda step, figures: module.log(dict(figures), step=step), module.finish


def _wandb(folder: Path, run: str) -> Tracker:
    module: Any = importlib.import_module("wandb")
    module.init(project=_PROJECT, name=run, dir=str(folder))
    return lambda step, figures: module.log(dict(figures), step=step), module.finish


def _mlflow(folder: Path, run: str) -> Tracker:
    module: Any = importlib.import_module("mlflow")
    module.set_experiment(_PROJECT)
    module.start_run(run_name=run)
    return lambda step, figures: module.log_metrics(dict(figures), step=step), module.end_run


OTHERS = ("trackio", "wandb", "mlflow")
"""The trackers that ``--set trackers`` may name."""
_MAKERS: Mapping[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb, "mlflow": _mlflow,
}  # fmt: skip
