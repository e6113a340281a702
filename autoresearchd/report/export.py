"""Exports of a session's experiments: the skill's JSON lines, karpathy's five columns, and Parquet.

All functions take records shaped like ``experiments --json``. The JSON lines are those of pi-autoresearch 1.6 and of
the autoresearch skill: a ``config`` line at the head of each segment, then one line per experiment, ``run`` counted
from 1 over all segments (the baseline is run 1), ``timestamp`` in seconds, ``metric`` 0 where there is none. The five
columns are those of karpathy/autoresearch's ``results.tsv``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from autoresearchd.domain.errors import MissingCapability, UsageError
from autoresearchd.report.plain_text import clean, json_text, real

Record = Mapping[str, Any]

TSV_COLUMNS = ("commit", "val_bpb", "memory_gb", "status", "description")
_UNITS = {
    "bpb": "bpb", "us": "µs", "µs": "µs", "ms": "ms", "s": "s", "sec": "s", "seconds": "s",
    "kb": "kb", "mb": "mb", "gb": "gb", "pct": "%", "percent": "%",
}  # fmt: skip
_MEMORY_KEYS = ("peak_vram_mb", "peak_memory_mb")


class Format(StrEnum):
    """What experiments are written as."""

    JSONL = "jsonl"
    TSV = "tsv"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class SessionHead:
    """What an export says about the session itself. direction: ``minimize`` or ``maximize``."""

    task: str
    metric: str
    direction: str


def metric_unit(name: str) -> str:
    """The unit that the end of a metric's name tells (``latency_ms`` → ``ms``), empty when it tells none."""
    return _UNITS.get(name.lower().rsplit("_", 1)[-1], "") if "_" in name else ""


def jsonl_lines(head: SessionHead, records: Iterable[Record]) -> Iterator[str]:
    """Lines of a skill log, without line ends."""
    config = {
        "type": "config",
        "name": head.task,
        "metricName": head.metric,
        "metricUnit": metric_unit(head.metric),
        "bestDirection": "lower" if head.direction == "minimize" else "higher",
    }
    segment: int | None = None
    for record in _decided(records):
        own = int(record.get("segment") or 0)
        if own != segment:  # readers of the format open a new segment at each config line
            segment = own
            yield json_text(config)
        yield json_text(_run_line(record, own))
    if segment is None:
        yield json_text(config)


def tsv_lines(head: SessionHead, records: Iterable[Record]) -> Iterator[str]:
    """Lines of a ``results.tsv``; the second column bears the metric's own name.

    The format knows three states: ``checks_failed`` becomes ``crash``, whose value is written 0.000000 and misleads
    no chart.
    """
    yield "\t".join((TSV_COLUMNS[0], head.metric, *TSV_COLUMNS[2:]))
    for record in _decided(records):
        failed = record["status"] in ("crash", "checks_failed")
        value, memory = (0.0, 0.0) if failed else (_finite(record.get("metric")) or 0.0, _memory_gb(record))
        status = "crash" if failed else str(record["status"])
        commit, description = clean(record.get("commit") or "")[:7], clean(record.get("description") or "")
        yield "\t".join((commit, f"{value:.6f}", f"{memory:.1f}", status, description))


def write_parquet(records: Iterable[Record], target: Path) -> None:
    """Write one row for each experiment; nested values as JSON text. Raises MissingCapability without pyarrow."""
    try:
        import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import pyarrow.parquet as pq  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingCapability(
            "export --format parquet needs pyarrow, which is not installed",
            hint="pip install pyarrow, or export --format jsonl",
        ) from error
    texts = ("status", "label", "description", "commit", "parent", "policy", "role", "started_at", "finished_at")
    numbers = ("metric", "delta", "confidence", "reward", "cost_usd", "overhead_ms")
    nested = ("metrics", "asi", "runs")
    schema = pa.schema(
        [("experiment", pa.int64()), ("segment", pa.int64())]
        + [(name, pa.float64()) for name in numbers]
        + [(name, pa.string()) for name in (*texts, *nested)]
    )
    rows = [
        {
            **{name: record.get(name) for name in ("experiment", *numbers, *texts)},
            "segment": record.get("segment") or 0,
            **{name: json_text(record.get(name)) for name in nested},
        }
        for record in _decided(records)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), target)


def write(format_name: Format, head: SessionHead, records: Iterable[Record], target: Path | TextIO) -> None:
    """Write the export to a file, or to an open stream where the format is text."""
    if format_name is Format.PARQUET:
        if not isinstance(target, Path):
            raise UsageError("parquet is a binary format", hint="name a file: -o experiments.parquet")
        write_parquet(records, target)
        return
    lines = (jsonl_lines if format_name is Format.JSONL else tsv_lines)(head, records)
    with (
        target.open("w", encoding="utf-8", newline="\n") if isinstance(target, Path) else nullcontext(target) as stream
    ):
        stream.writelines(line + "\n" for line in lines)


def _decided(records: Iterable[Record]) -> Iterator[Record]:
    """An experiment under way has no result yet and is in no export."""
    return (record for record in records if record.get("status"))


def _run_line(record: Record, segment: int) -> dict[str, Any]:
    value = _finite(record.get("metric"))
    return {
        "run": int(record.get("experiment") or 0) + 1,
        "commit": str(record.get("commit") or "")[:7],
        "metric": value if value is not None else 0,
        "metrics": {k: v for k, v in (record.get("metrics") or {}).items() if _finite(v) is not None},
        "status": record.get("status"),
        "description": record.get("description") or "",
        "timestamp": _timestamp(record),
        "segment": segment,
        "confidence": _finite(record.get("confidence")),
        "asi": record.get("asi") or {},
    }


def _timestamp(record: Record) -> int:
    text = record.get("finished_at") or record.get("started_at")
    return int(datetime.fromisoformat(str(text)).timestamp()) if text else 0


def _memory_gb(record: Record) -> float:
    metrics = record.get("metrics") or {}
    return next((found for key in _MEMORY_KEYS if (found := _finite(metrics.get(key))) is not None), 0.0) / 1024


def _finite(value: Any) -> float | None:
    """The number as it is: whole ones are written without decimals."""
    return value if real(value) is not None else None
