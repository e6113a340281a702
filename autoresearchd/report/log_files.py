"""Experiments as files: the skill's JSON lines and karpathy's five columns, written and read, and Parquet.

The JSON lines are those of pi-autoresearch 1.6 and of the autoresearch skill: a ``config`` line at the head of each
segment, then one line per experiment, ``run`` counted from 1 over all segments (the baseline is run 1), ``timestamp``
in seconds (read in milliseconds as well), ``metric`` 0 where there is none; ``hook`` lines are passed over. The five
columns are those of karpathy/autoresearch's ``results.tsv``.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, Outcome, SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.report.parquet_file import write_rows
from autoresearchd.report.plain_text import clean, json_text, real
from autoresearchd.store.repository import SqlStore

Record = Mapping[str, Any]
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


def jsonl_lines(head: SessionHead, records: Iterable[Record]) -> Iterator[str]:
    """Lines of a skill log, without line ends; the end of a metric's name may tell its unit (``latency_ms``)."""
    _, has_unit, unit = head.metric.lower().rpartition("_")
    config = {
        "type": "config",
        "name": head.task,
        "metricName": head.metric,
        "metricUnit": _UNITS.get(unit, "") if has_unit else "",
        "bestDirection": "lower" if head.direction == "minimize" else "higher",
    }
    segment: int | None = None
    for record in _decided(records):
        own = int(record.get("segment") or 0)
        if own != segment:  # readers of the format open a new segment at each config line
            segment = own
            yield json_text(config)
        yield json_text(run_line(record, own))
    if segment is None:
        yield json_text(config)


def tsv_lines(head: SessionHead, records: Iterable[Record]) -> Iterator[str]:
    """Lines of a ``results.tsv``; the second column bears the metric's name, ``checks_failed`` becomes ``crash``."""
    yield "\t".join(("commit", clean(head.metric), "memory_gb", "status", "description"))
    for record in _decided(records):
        failed = record["status"] in ("crash", "checks_failed")
        value, memory = (0.0, 0.0) if failed else (real(record.get("metric")) or 0.0, _memory_gb(record))
        status = "crash" if failed else str(record["status"])
        commit, description = clean(record.get("commit") or "")[:7], clean(record.get("description") or "")
        yield "\t".join((commit, f"{value:.6f}", f"{memory:.1f}", status, description))


_COLUMNS = {
    "experiment": "whole", "segment": "whole", "confirmed": "flag",
    **dict.fromkeys(("metric", "delta", "expected_gain", "confidence", "reward", "cost_usd", "overhead_ms"), "real"),
    **dict.fromkeys(("status", "label", "description", "commit", "parent", "policy", "role"), "text"),
    **dict.fromkeys(("started_at", "finished_at", "metrics", "asi", "runs"), "text"),
}  # fmt: skip
"""Of a Parquet file, with their kinds; nested values are JSON text."""


def _parquet_row(record: Record) -> dict[str, Any]:
    nested = {name: json_text(record.get(name)) for name in ("metrics", "asi", "runs")}
    return {name: record.get(name) for name in _COLUMNS} | {"segment": record.get("segment") or 0} | nested


def write(format_name: Format, head: SessionHead, records: Iterable[Record], target: Path | TextIO) -> None:
    """Write the export to a file, or to an open stream where the format is text."""
    if format_name is Format.PARQUET:
        if not isinstance(target, Path):
            raise UsageError("parquet is a binary format", hint="name a file: -o experiments.parquet")
        write_rows(_COLUMNS, map(_parquet_row, _decided(records)), target)
        return
    lines = (jsonl_lines if format_name is Format.JSONL else tsv_lines)(head, records)
    to_file = target.open("w", encoding="utf-8", newline="\n") if isinstance(target, Path) else nullcontext(target)
    with to_file as stream:
        stream.writelines(line + "\n" for line in lines)


def _decided(records: Iterable[Record]) -> Iterator[Record]:
    """An experiment under way has no result yet and is in no export."""
    return (record for record in records if record.get("status"))


def run_line(record: Record, segment: int) -> dict[str, Any]:
    """One experiment as a line of a skill log, which hooks get, too."""
    value, at = _finite(record.get("metric")), record.get("finished_at") or record.get("started_at")
    return {
        "run": int(record.get("experiment") or 0) + 1,
        "commit": str(record.get("commit") or "")[:7],
        "metric": value if value is not None else 0,
        "metrics": {k: v for k, v in (record.get("metrics") or {}).items() if _finite(v) is not None},
        "status": record.get("status"),
        "description": record.get("description") or "",
        "timestamp": int(datetime.fromisoformat(str(at)).timestamp()) if at else 0,
        "segment": segment,
        "confidence": _finite(record.get("confidence")),
        "asi": record.get("asi") or {},
        **({"confirmed": record.get("confirmed")} if record.get("status") == Status.KEEP else {}),
    }


def _memory_gb(record: Record) -> float:
    known = (real((record.get("metrics") or {}).get(key)) for key in _MEMORY_KEYS)
    return next((megabytes for megabytes in known if megabytes is not None), 0.0) / 1024


def _finite(value: Any) -> float | None:
    """The number as it is: whole ones are written without decimals."""
    return value if real(value) is not None else None


# ---------------------------------------------------------------------- reading
IMPORTED = "imported"
"""The policy of an imported session."""
_LABELS = {
    Status.KEEP: Label.NONE,
    Status.DISCARD: Label.NO_GAIN,
    Status.CRASH: Label.ERROR,
    Status.CHECKS_FAILED: Label.CHECK_FAILED,
}
_MILLISECONDS = 1e11  # a time stamp beyond the year 5138 in seconds is one in milliseconds
_MAX_LINE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportedExperiment:
    """One experiment of a log; metric None: it has none; confirmed: None: the log does not say so."""

    segment: int
    status: Status
    metric: float | None
    commit: str
    metrics: Mapping[str, float]
    description: str
    at: datetime
    confidence: float | None = None
    asi: Mapping[str, Any] = field(default_factory=dict)
    confirmed: bool | None = None


@dataclass(slots=True)
class ImportedLog:
    """A log as it is read; ``warnings`` say which lines were passed over and why; segment: the latest."""

    path: Path
    name: str
    metric: str = "metric"
    direction: str = "minimize"
    segment: int = 0
    configured: bool = False
    experiments: list[ImportedExperiment] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, number: int, what: str) -> None:
        self.warnings.append(f"{self.path}:{number}: {what}, passed over")

    def add(self, status: Status, metric: Any, **fields: Any) -> None:
        # Both formats write 0 where there is no value; only a keep can mean it.
        value = real(metric)
        value = None if value == 0 and status is not Status.KEEP else value
        self.experiments.append(ImportedExperiment(self.segment, status, value, **fields))


def store_log(store: SqlStore, log: ImportedLog) -> str:
    """Make a session of a log; the sentence to show."""
    stem = re.sub(r"[^a-z0-9]+", "-", log.path.stem.lower()).strip("-")[:24] or "log"
    known = {session.tag for session in store.sessions()}
    tags = (f"{IMPORTED}-{stem}" + (f"-{n}" if n > 1 else "") for n in itertools.count(1))
    tag = next(tag for tag in tags if tag not in known)
    first = log.experiments[0]
    task = {
        "name": log.name,
        "scoring": {"metric": log.metric, "direction": log.direction, "source": "self-reported"},
        "execution": {"budget": None},
    }
    new = NewSession(tag, "", json.dumps(task), IMPORTED, IMPORTED, first.commit, 0)
    session, segment, best = store.create_session(new, first.at), -1, None
    for item in log.experiments:
        if item.segment != segment:
            segment, best = item.segment, None
            store.open_segment(session.id, f"{IMPORTED}-{segment}", IMPORTED, "", item.at)
        against = store.session(tag).incumbent_experiment  # what was kept before it may stand
        number = _store(store, session.id, item, best, minimize=log.direction == "minimize")
        if item.status is Status.KEEP and item.confirmed is False and item.commit and best is not None:
            test = store.open_confirmation(session.id, experiment=number, against=against, why=IMPORTED, at=item.at)
            fell = Verdict(Outcome.FELL, None, None, None, "As the imported log has it.")
            store.decide_confirmation(session.id, test.number, fell, item.at)
        elif item.status is Status.KEEP and item.metric is not None:
            best = item.metric
    now = datetime.now(UTC)
    store.set_state(session.id, SessionState.STOPPED, now, pid=None, reason=f"imported from {log.name}")
    experiments = counted(len(log.experiments), "experiment")
    warnings = "".join(f"\n  {warning}" for warning in log.warnings[:10])
    return f"{experiments} of {log.path} {'is' if len(log.experiments) == 1 else 'are'} now session {tag}{warnings}"


def _store(store: SqlStore, session_id: int, item: ImportedExperiment, best: float | None, *, minimize: bool) -> int:
    """Its number. best: of the segment before it; None: it is the baseline, which needs no confirmation."""
    delta = None
    if item.metric is not None and best is not None:
        delta = best - item.metric if minimize else item.metric - best
    words = {key: str(item.asi.get(key, "")) for key in ASI.__slots__ if key != "extra"}
    asi = ASI(**words, extra={k: v for k, v in item.asi.items() if k not in ASI.__slots__})
    number = store.open_experiment(session_id, parent=item.commit, segment=item.segment, at=item.at).number
    proposal = Proposal({}, asi.hypothesis or item.description, IMPORTED, description=item.description, asi=asi)
    store.record_proposal(session_id, number, proposal, diff="", code_hash=f"{IMPORTED}-{number}")
    if item.commit:
        store.record_commit(session_id, number, item.commit)
    reason, label = "as the imported log has it", _LABELS[item.status]
    decision = Decision(item.status, label, item.metric, delta, item.metrics, item.confidence, reason=reason)
    kept = item.commit if item.status is Status.KEEP else None
    proven = best is None or item.confirmed is True
    store.record_decision(session_id, number, decision, asi, item.at, incumbent=kept, confirmed=proven)
    store.record_overhead(session_id, number, 0.0)
    return number


def read_log(path: Path) -> ImportedLog:
    """Read a log; its first line tells the format. Raises UsageError when it holds no experiment that can be read."""
    log = ImportedLog(path, path.stem)
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            lines = _numbered(stream)
            first = next(lines, (0, ""))
            if first[1].startswith("commit\t"):
                _read_tsv(log, first[1], lines)
            elif first[1]:
                _read_jsonl(log, itertools.chain([first], lines))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="name a .jsonl or .tsv file") from error
    if not log.experiments:
        detail = f" ({log.warnings[0]})" if log.warnings else ""
        raise UsageError(
            f"{path} holds no experiment{detail}",
            hint="a log is JSON lines with run, commit, metric, status, …, or a results.tsv with its header line",
        )
    return log


def _numbered(stream: TextIO) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers; overlong ones in parts."""
    for number, line in enumerate(iter(lambda: stream.readline(_MAX_LINE), ""), 1):
        if line.strip():
            yield number, line.rstrip("\r\n").lstrip("\ufeff")


def _read_jsonl(log: ImportedLog, lines: Iterable[tuple[int, str]]) -> None:
    for number, line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            log.warn(number, "not JSON")
            continue
        if not isinstance(entry, dict):
            log.warn(number, "not a JSON object")
        elif entry.get("type") == "config":
            _take_config(log, entry)
        elif entry.get("type", "run") == "run":
            _take_run(log, entry, number)


def _take_config(log: ImportedLog, entry: Mapping[str, Any]) -> None:
    if log.experiments and log.experiments[-1].segment == log.segment:
        log.segment += 1
    if log.configured:
        return  # a session has one task and one metric: the first line names it
    log.configured = True
    log.name = str(entry.get("name") or log.name)
    log.metric = str(entry.get("metricName") or log.metric)
    log.direction = "maximize" if entry.get("bestDirection") == "higher" else "minimize"


def _take_run(log: ImportedLog, entry: Mapping[str, Any], number: int) -> None:
    status = _status(entry.get("status"))
    if status is None:
        log.warn(number, f"status {entry.get('status')!r} is none of {', '.join(Status)}")
        return
    asi, metrics = entry.get("asi"), entry.get("metrics")
    pairs = {str(k): real(v) for k, v in metrics.items()} if isinstance(metrics, dict) else {}
    log.add(
        status,
        entry.get("metric"),
        commit=str(entry.get("commit") or ""),
        metrics={name: value for name, value in pairs.items() if value is not None},
        description=str(entry.get("description") or ""),
        at=_moment(entry.get("timestamp")),
        confidence=real(entry.get("confidence")),
        asi=asi if isinstance(asi, dict) else {},
        confirmed=entry["confirmed"] if isinstance(entry.get("confirmed"), bool) else None,
    )


def _read_tsv(log: ImportedLog, header: str, lines: Iterator[tuple[int, str]]) -> None:
    log.metric = header.split("\t")[1] or log.metric
    for number, line in lines:
        try:
            commit, value, memory, word, description = line.split("\t", 4)
            metric, gigabytes, status = float(value), float(memory), _status(word)
        except ValueError:
            status = None
        if status is None:
            log.warn(number, "not five columns of a results.tsv")
            continue
        log.add(
            status,
            metric,
            commit="" if commit == "baseline" else commit,
            metrics={"peak_vram_mb": gigabytes * 1024} if math.isfinite(gigabytes) and gigabytes > 0 else {},
            description=description.strip(),
            at=_moment(None),
        )
    kept = [e.metric for e in log.experiments if e.status is Status.KEEP and e.metric is not None]
    # The five columns do not say which way is better. What was kept does: each was better, or believed to be.
    steps = [b - a for a, b in itertools.pairwise(kept)]
    if sum(step > 0 for step in steps) > sum(step < 0 for step in steps):
        log.direction = "maximize"
        log.warnings.append(f"{log.path}: what was kept mostly has a higher {log.metric}: taken for better")


def _status(value: Any) -> Status | None:
    word = str(value).strip().lower()
    return Status(word) if word in tuple(Status) else None


def _moment(value: Any) -> datetime:
    seconds = real(value) or 0.0
    if abs(seconds) > _MILLISECONDS:
        seconds /= 1000
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return datetime.fromtimestamp(0, UTC)
