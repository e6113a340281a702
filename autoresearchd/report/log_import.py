"""Reading of foreign experiment logs: the skill's JSON lines and karpathy's five columns, as ``export`` writes them.

Field by field this is the format of pi-autoresearch 1.6 (a ``config`` line after a result opens a new segment, ``hook``
lines are passed over, milliseconds and seconds are both met as time stamps) with two differences: a line that cannot be
read is reported instead of dropped in silence, and an unknown status is never taken for a keep.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autoresearchd.domain.labels import Label, Status
from autoresearchd.errors import UsageError

_LABELS = {
    Status.KEEP: Label.NONE,
    Status.DISCARD: Label.NO_GAIN,
    Status.CRASH: Label.ERROR,
    Status.CHECKS_FAILED: Label.CHECK_FAILED,
}
_MILLISECONDS = 1e11  # a time stamp beyond the year 5138 in seconds is one in milliseconds
_BAD_NAMES = {"__proto__", "constructor", "prototype"}
_MAX_LINE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportedExperiment:
    """One experiment of a log. number counts from 0 in the order of the log; metric None: it has none."""

    number: int
    segment: int
    commit: str
    status: Status
    label: Label
    metric: float | None
    metrics: Mapping[str, float]
    description: str
    at: datetime
    confidence: float | None
    asi: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ImportedLog:
    """A log as it was read; ``warnings`` say which lines were passed over and why."""

    name: str
    metric: str
    unit: str
    direction: str
    experiments: tuple[ImportedExperiment, ...]
    warnings: tuple[str, ...] = ()


@dataclass
class _Reading:
    """What is known while a log is being read."""

    file: str
    name: str = ""
    metric: str = "metric"
    unit: str = ""
    direction: str = "minimize"
    segment: int = 0
    configured: bool = False
    found: list[ImportedExperiment] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def result(self) -> ImportedLog:
        return ImportedLog(self.name, self.metric, self.unit, self.direction, tuple(self.found), tuple(self.warnings))


def read_log(path: Path) -> ImportedLog:
    """Read a log; its first line tells the format. Raises UsageError when it holds no experiment that can be read."""
    reading = _Reading(str(path), name=path.stem)
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            lines = _numbered(stream)
            first = next(lines, (0, ""))
            rest = _chain(first, lines)
            if first[1].startswith("commit\t"):
                _read_tsv(reading, rest)
            else:
                _read_jsonl(reading, rest)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", mend="name a .jsonl or .tsv file") from error
    if not reading.found:
        detail = f" ({reading.warnings[0]})" if reading.warnings else ""
        raise UsageError(
            f"{path} holds no experiment{detail}",
            mend="a log is JSON lines with run, commit, metric, status, …, or a results.tsv with its header line",
        )
    return reading.result()


def _numbered(stream: Any) -> Iterator[tuple[int, str]]:
    number = 0
    while True:
        line = stream.readline(_MAX_LINE)
        if not line:
            return
        number += 1
        if line.strip():
            yield number, line.rstrip("\r\n").lstrip("\ufeff")


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    if first[0]:
        yield first
    yield from rest


def _read_jsonl(reading: _Reading, lines: Iterator[tuple[int, str]]) -> None:
    for number, line in lines:
        where = f"{reading.file}:{number}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            reading.warnings.append(f"{where}: not JSON, passed over")
            continue
        if not isinstance(entry, dict):
            reading.warnings.append(f"{where}: not a JSON object, passed over")
        elif entry.get("type") == "config":
            _take_config(reading, entry)
        elif entry.get("type", "run") == "run":
            _take_run(reading, entry, where)


def _take_config(reading: _Reading, entry: Mapping[str, Any]) -> None:
    if reading.found and reading.found[-1].segment == reading.segment:
        reading.segment += 1
    if reading.configured:
        return  # a session has one task and one metric: the first line names it
    reading.configured = True
    reading.name = str(entry.get("name") or reading.name)
    reading.metric = str(entry.get("metricName") or reading.metric)
    reading.unit = str(entry.get("metricUnit") or "")
    reading.direction = "maximize" if entry.get("bestDirection") == "higher" else "minimize"


def _take_run(reading: _Reading, entry: Mapping[str, Any], where: str) -> None:
    status = _status(entry.get("status"))
    if status is None:
        reading.warnings.append(f"{where}: status {entry.get('status')!r} is none of {', '.join(Status)}, passed over")
        return
    asi = entry.get("asi")
    metrics = entry.get("metrics")
    reading.found.append(
        ImportedExperiment(
            number=len(reading.found),
            segment=reading.segment,
            commit=str(entry.get("commit") or ""),
            status=status,
            label=_LABELS[status],
            metric=_metric(entry.get("metric"), status),
            metrics=_numbers(metrics if isinstance(metrics, dict) else {}),
            description=str(entry.get("description") or ""),
            at=_moment(entry.get("timestamp")),
            confidence=_finite(entry.get("confidence")),
            asi=asi if isinstance(asi, dict) else {},
        )
    )


def _read_tsv(reading: _Reading, lines: Iterator[tuple[int, str]]) -> None:
    header = next(lines)[1].split("\t")
    reading.metric = header[1] if len(header) > 1 and header[1] else reading.metric
    for number, line in lines:
        cells = line.split("\t", 4)
        status = _status(cells[3]) if len(cells) == 5 else None
        try:
            value, memory = float(cells[1]), float(cells[2])
        except (ValueError, IndexError):
            status = None
        if status is None:
            reading.warnings.append(f"{reading.file}:{number}: not five columns of a results.tsv, passed over")
            continue
        gigabytes = memory if math.isfinite(memory) and memory > 0 else None
        reading.found.append(
            ImportedExperiment(
                number=len(reading.found),
                segment=0,
                commit="" if cells[0] == "baseline" else cells[0],
                status=status,
                label=_LABELS[status],
                metric=_metric(value, status),
                metrics={} if gigabytes is None else {"peak_vram_mb": gigabytes * 1024},
                description=cells[4].strip(),
                at=_moment(None),
                confidence=None,
                asi={},
            )
        )
    kept = [e.metric for e in reading.found if e.status is Status.KEEP and e.metric is not None]
    # The five columns do not say which way is better. What was kept does: each was the best so far.
    if len(kept) > 1 and all(a <= b for a, b in itertools.pairwise(kept)) and kept[0] < kept[-1]:
        reading.direction = "maximize"
        reading.warnings.append(f"{reading.file}: every {reading.metric} that was kept is higher: taken for better")


def _status(value: Any) -> Status | None:
    try:
        return Status(str(value).strip().lower())
    except ValueError:
        return None


def _metric(value: Any, status: Status) -> float | None:
    """Both formats write 0 where there is no value; only a keep can mean it."""
    number = _finite(value)
    return None if number == 0 and status is not Status.KEEP else number


def _numbers(metrics: Mapping[Any, Any]) -> dict[str, float]:
    pairs = ((str(name), _finite(value)) for name, value in metrics.items())
    return {name: value for name, value in pairs if value is not None and name not in _BAD_NAMES}


def _moment(value: Any) -> datetime:
    seconds = _finite(value) or 0.0
    if abs(seconds) > _MILLISECONDS:
        seconds /= 1000
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0, UTC)


def _finite(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
