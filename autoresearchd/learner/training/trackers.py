"""Where the curves of a learner run go: JSON lines always, TensorBoard where it is installed, others by name."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from autoresearchd.domain.errors import MissingCapability, UsageError

CURVES = "curves.jsonl"


class Tracker(Protocol):
    """Takes the figures of steps."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step, by name."""
        ...

    def close(self) -> None:
        """Nothing more comes."""
        ...


class Tracking:
    """All trackers of a run. One that fails is left out from then on, and never ends the run.

    Args:
        folder: of the run; made where it is missing.
        names: of further trackers: ``trackio``, ``wandb``, ``mlflow``.
        run: name of the run.
        warn: told of what fails.
    """

    def __init__(self, folder: Path, names: Sequence[str], run: str, warn: Callable[[str], None]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._warn = warn
        self._trackers: dict[str, Tracker] = {"file": _Lines(folder / CURVES)}
        if importlib.util.find_spec("tensorboard") is not None:
            self._add("tensorboard", lambda: _TensorBoard(folder))
        for name in names:
            self._add(name, lambda name=name: _OTHERS[name](folder, run))  # type: ignore[misc]

    def _add(self, name: str, make: Callable[[], Tracker]) -> None:
        try:
            self._trackers[name] = make()
        except Exception as error:  # noqa: BLE001 - told; it may be of whatever a tracker is made of
            self._failed(name, error)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Figures of a step; what is no finite number is left out."""
        finite = {name: value for name, value in figures.items() if math.isfinite(value)}
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.log(step, finite)
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
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except Exception as failure:  # noqa: BLE001 - told
                self._failed(name, failure)


def names_of(text: str) -> tuple[str, ...]:
    """The trackers of a list with commas.

    Raises UsageError: there is none of that name; MissingCapability: its package is not installed.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        if name not in _OTHERS:
            raise UsageError(f"there is no tracker {name[:40]!r}", hint=f"take some of {', '.join(_OTHERS)}")
        if importlib.util.find_spec(name) is None:
            raise MissingCapability(
                f"the tracker {name} is not installed", hint="pip install 'autoresearchd[trackers]'"
            )
    return names


class _Lines:
    def __init__(self, path: Path) -> None:
        self._stream = path.open("a", encoding="utf-8")

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._stream.write(json.dumps({"step": step, **figures}) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        self._writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Module:
    """Trackers with ``init``, ``log`` and ``finish``: trackio, and wandb, whose words it took."""

    def __init__(self, name: str, run: str, **options: Any) -> None:
        self._module: Any = importlib.import_module(name)
        self._module.init(project="autoresearchd-learner", name=run, **options)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._module.log(dict(figures), step=step)

    def close(self) -> None:
        self._module.finish()


class _MlFlow:
    def __init__(self, run: str) -> None:
        self._module: Any = importlib.import_module("mlflow")
        self._module.set_experiment("autoresearchd-learner")
        self._module.start_run(run_name=run)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._module.log_metrics(dict(figures), step=step)

    def close(self) -> None:
        self._module.end_run()


_OTHERS: Mapping[str, Callable[[Path, str], Tracker]] = {
    "trackio": lambda _folder, run: _Module("trackio", run),
    "wandb": lambda folder, run: _Module("wandb", run, dir=str(folder)),
    "mlflow": lambda _folder, run: _MlFlow(run),
}
