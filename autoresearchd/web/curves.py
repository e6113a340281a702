"""Learning curves as JSON for the page: of runs under way from their logs as they grow, of others from the store."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from autoresearchd.domain.experiment import CurvePoint
from autoresearchd.loop.early_abort import LogFollower, curve_of
from autoresearchd.report.plain_text import clean, real
from autoresearchd.store.page_reader import OpenRun, PageReader
from autoresearchd.web.source import Source

_MOST_POINTS = 400
_LOOK = ("progress", "forecast", "low", "high", "bar", "probability")
Curve = tuple[Sequence[float], Sequence[float]]


class LiveCurves:
    """The logs of the runs under way, each read once and then where it was left. Safe to use from several threads."""

    def __init__(self, source: Source) -> None:
        self._source, self._lock = source, threading.Lock()
        self._followed: dict[tuple[str, int, datetime], LogFollower] = {}

    def of(self, tag: str, number: int) -> list[dict[str, Any]]:
        """The runs of an experiment that are under way."""
        _, reader = self._source.open()
        runs = reader.open_runs(tag)
        task = json.loads(reader.task(tag))
        seconds = _budget(task)
        pattern = (task.get("curve") or {}).get("pattern") or "auto"
        with self._lock:
            for key in {k for k in self._followed if k[0] == tag} - {_key(tag, run) for run in runs}:
                self._followed.pop(key).close()
            return [self._run(tag, run, str(pattern), seconds) for run in runs if run.number == number]

    def close(self) -> None:
        """Let go of the logs."""
        with self._lock:
            while self._followed:
                self._followed.popitem()[1].close()

    def _run(self, tag: str, run: OpenRun, pattern: str, budget: float) -> dict[str, Any]:
        follower = self._followed.get(_key(tag, run))
        if follower is None:
            follower = self._followed[_key(tag, run)] = LogFollower(self._source.log(tag, run), pattern, budget)
        with suppress(OSError):
            follower.read()
        elapsed = (datetime.now(UTC) - run.started_at).total_seconds()
        curve: Curve = follower.curve(min(1.0, elapsed / budget) if budget else 1.0)
        if not curve[0]:  # it runs elsewhere, and its log is not here: what the early abort saw of it
            seen = [(real(look.get("progress")), real(look.get("level"))) for look in run.looks]
            there = [(at, level) for at, level in seen if at is not None and level is not None]
            curve = [at for at, _ in there], [level for _, level in there]
        return {
            "experiment": run.number,
            "name": f"#{run.number}" + (" (confirmation)" if run.confirmation else ""),
            **thinned(curve),
            "looks": looks_of(run.looks),
            "says": clean(run.looks[-1].get("sentence") or "", 400) if run.looks else "",
        }


def _key(tag: str, run: OpenRun) -> tuple[str, int, datetime]:
    return tag, run.id, run.started_at  # numbers of a removed session are given again


def _budget(task: Mapping[str, Any]) -> float:
    """Seconds of training; 0 where that is not known."""
    budget = task.get("execution", {}).get("budget")
    return real(budget.get("training") if isinstance(budget, Mapping) else budget) or 0.0


def stored_curves(reader: PageReader, tag: str, number: int, parent: int | None) -> list[dict[str, Any]]:
    """The curves of an experiment's runs, and for comparison the first one of its parent."""
    budget = _budget(json.loads(reader.task(tag)))

    def drawn(name: str, run: tuple[int, Sequence[CurvePoint], float | None]) -> dict[str, Any]:
        _, points, took = run
        end = min(1.0, took / budget) if took and budget else 1.0
        return {"name": name, **thinned(curve_of(points, end))}

    found = [drawn(f"seed {run[0]}", run) for run in reader.curves(tag, number)]
    if parent is not None:
        found += [drawn(f"parent #{parent}", run) for run in reader.curves(tag, parent)[:1]]
    return [one for one in found if one["x"]][:12]


def looks_of(looks: Sequence[Mapping[str, Any]]) -> list[list[float | None]]:
    """What the early abort forecast: progress, forecast, 90% from and to, the bar, probability not to reach it."""
    return [[real(look.get(name)) for name in _LOOK] for look in looks if real(look.get("forecast")) is not None]


def thinned(curve: Curve) -> dict[str, list[float]]:
    """Evenly thinned, in order of progress; the last point is always in it."""
    points = sorted(
        (at, loss) for at, loss in zip(*curve, strict=True) if real(at) is not None and real(loss) is not None
    )
    step = max(1, -(-len(points) // _MOST_POINTS))
    shown = points[::step] + (points[-1:] if points and (len(points) - 1) % step else [])
    return {"x": [round(100 * at, 3) for at, _ in shown], "y": [float(f"{loss:.6g}") for _, loss in shown]}
