"""Experiments as files, written and read: the skill's JSON lines, karpathy's five columns, and Parquet.

The JSON lines are those of pi-autoresearch 1.6 and of the autoresearch skill: a ``config`` line at the head of each
segment, then one line per experiment, ``run`` counted from 1 over all segments (the baseline is run 1), ``timestamp``
in seconds (read in milliseconds as well), ``metric`` 0 where there is none; ``hook`` lines are passed over. The five
columns are those of karpathy/autoresearch's ``results.tsv``; a fork's with others is read by its header.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import RULES, Label, Outcome, SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.report.parquet_file import read_rows, write_rows
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
        write_rows(_COLUMNS, map(_parquet_row, _decided(records)), target, about=asdict(head))
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
    """One experiment of a log; metric None: it has none; confirmed, label: None: the log does not say so."""

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
    label: Label | None = None


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
    reason, label = "as the imported log has it", item.label or _LABELS[item.status]
    decision = Decision(item.status, label, item.metric, delta, item.metrics, item.confidence, reason=reason)
    kept = item.commit if item.status is Status.KEEP else None
    proven = best is None or item.confirmed is True
    store.record_decision(session_id, number, decision, asi, item.at, incumbent=kept, confirmed=proven)
    store.record_overhead(session_id, number, 0.0)
    return number


def read_log(path: Path, metric: str = "", direction: str = "") -> ImportedLog:
    """Read a log; its first line tells the format. Raises UsageError when it holds no experiment that can be read.

    metric, direction: of a table, where it is not to be told from its columns and from what was kept.
    """
    log = ImportedLog(path, path.stem)
    try:
        if path.suffix.lower() == ".parquet":
            _read_parquet(log)
            return _require_experiments(log)
        with path.open(encoding="utf-8", errors="replace") as stream:
            lines = _numbered(stream)
            first = next(lines, (0, ""))
            if _is_table(first[1]):
                _read_tsv(log, first[1], lines, metric, direction)
            elif metric or direction:
                raise UsageError(f"{path} is no table: it says itself what its metric is", hint="leave the option out")
            elif first[1]:
                _read_jsonl(log, itertools.chain([first], lines))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="name a .jsonl, .tsv or .parquet file"
        ) from error
    return _require_experiments(log)


def _require_experiments(log: ImportedLog) -> ImportedLog:
    if not log.experiments:
        detail = f" ({log.warnings[0]})" if log.warnings else ""
        raise UsageError(
            f"{log.path} holds no experiment{detail}",
            hint="a log is JSON lines with run, commit, metric, status, …, a results.tsv with its header, or Parquet",
        )
    return log


def _is_table(line: str) -> bool:
    columns = [name.strip().lower() for name in line.split("\t")]
    return len(columns) > 1 and any(name in columns for name in _NAMES["status"])


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


def _read_parquet(log: ImportedLog) -> None:
    about, rows = read_rows(log.path)
    if not {"status", "metric", "commit"} <= (rows[0].keys() if rows else set()):
        raise UsageError(
            f"{log.path} is no export of experiments", hint="`autoresearchd export --format parquet` is one"
        )
    log.name, log.metric = about.get("task") or log.name, about.get("metric") or log.metric
    log.direction = "maximize" if about.get("direction") == "maximize" else log.direction
    for number, row in enumerate(rows, 1):
        log.segment = int(real(row.get("segment")) or 0)
        _take_run(log, {**row, **_parsed(row), "timestamp": _seconds(str(row.get("finished_at")))}, number)


def _parsed(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is JSON text in a column; nothing for one that is none."""
    found = dict[str, Any]()
    for name in ("metrics", "asi"):
        try:
            found[name] = json.loads(row.get(name) or "{}")
        except (ValueError, TypeError, RecursionError):
            found[name] = {}
    return found


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
        label=next(
            (label for label in Label if label and label == entry.get("label") and RULES[label] is status), None
        ),
    )


_NAMES = {
    "commit": ("commit", "commit_hash", "commit_sha", "sha", "hash"),
    "status": ("status", "decision", "outcome", "result", "verdict"),
    "description": ("description", "desc", "change", "changes", "summary", "idea", "hypothesis", "notes"),
    "timestamp": ("timestamp", "time", "date", "finished_at", "created_at"),
    "hypothesis": ("hypothesis", "idea"),
}
"""What forks call the columns of karpathy's table, the usual name first."""
_NO_METRIC = re.compile(
    r"memory|vram|\bram\b|delta|expected|baseline|(^|_)(id|gb|mb|kb|bytes|seed|seeds|n|std|cost|usd|tokens)($|_)|^(run|exp|"
    r"experiment|iteration|iter|step|number|num|trial|round|segment|confidence|epoch|epochs|lr|seconds|duration)$"
)
_SYNONYMS = {
    "baseline": Status.KEEP, "kept": Status.KEEP, "discarded": Status.DISCARD, "revert": Status.DISCARD,
    "reverted": Status.DISCARD, "rejected": Status.DISCARD, "disqualified": Status.CHECKS_FAILED,
    "failed": Status.CRASH, "error": Status.CRASH, "crashed": Status.CRASH,
}  # fmt: skip


def _read_tsv(log: ImportedLog, header: str, lines: Iterator[tuple[int, str]], metric: str, direction: str) -> None:
    """A table by its header. metric: the column to take, empty: the first column of figures after commit or status.

    Other columns of figures become metrics, other texts side information.
    """
    names = [name.strip() for name in header.split("\t")]
    lower = [name.lower() for name in names]
    rows = [(number, [*line.split("\t", len(names) - 1)]) for number, line in lines]
    rows = [(number, [*row, *[""] * (len(names) - len(row))]) for number, row in rows]
    place = {kind: next((lower.index(n) for n in known if n in lower), -1) for kind, known in _NAMES.items()}
    wanted = _metric_column(log.path, names, rows, place, metric)
    log.metric = names[wanted]
    taken = {wanted, *(place[kind] for kind in ("commit", "status", "description", "timestamp", "hypothesis"))}
    for number, row in rows:
        word = row[place["status"]]
        status, label = _status_of(word)
        if status is None:
            told = f"status {clean(word, 30)!r} is not known" if word else f"not the columns {clean(header, 100)}"
            log.warn(number, told)
            continue
        figures = {i: value for i in range(len(names)) if i not in taken and (value := _figure(row[i])) is not None}
        metrics = {names[i]: value for i, value in figures.items() if lower[i] != "memory_gb"}
        if "memory_gb" in lower and (memory := figures.get(lower.index("memory_gb"), 0.0)) > 0:
            metrics["peak_vram_mb"] = memory * 1024
        asi = {names[i]: t for i, text in enumerate(row) if i not in taken and i not in figures and (t := text.strip())}
        texts = {kind: row[at].strip() if at >= 0 else "" for kind, at in place.items()}
        asi |= {"hypothesis": texts["hypothesis"]} if texts["hypothesis"] else {}
        log.add(
            status,
            _figure(row[wanted]),
            commit="" if texts["commit"] == "baseline" else texts["commit"],
            metrics=metrics,
            description=texts["description"],
            at=_moment(_seconds(texts["timestamp"])),
            asi=asi,
            label=label,
        )
    if direction:
        log.direction = direction
    else:
        _guess_direction(log)


def _metric_column(
    path: Path, names: Sequence[str], rows: Sequence[tuple[int, list[str]]], place: Mapping[str, int], metric: str
) -> int:
    if metric:
        if metric not in names:
            raise UsageError(f"{path} has no column {metric[:60]!r}", hint=f"it has {clean(', '.join(names), 400)}")
        return names.index(metric)
    start = place["commit"] if place["commit"] >= 0 else place["status"]
    order = [*range(start + 1, len(names)), *range(start)]
    order = [i for i in order if i not in place.values()]
    told = [row for _, row in rows if _status_of(row[place["status"]])[0] in (Status.KEEP, Status.DISCARD)]
    filled = [i for i in order if 2 * sum(_figure(row[i]) is not None for row in told) >= len(told)]
    found: int | None = next((i for i in filled if not _NO_METRIC.search(names[i].lower())), None)
    if found is None:
        hint = f"say which column it is: --metric NAME, of {clean(', '.join(names), 400)}"
        raise UsageError(f"{path} has no column of figures that could be the metric", hint=hint)
    return found


def _guess_direction(log: ImportedLog) -> None:
    kept = [e.metric for e in log.experiments if e.status is Status.KEEP and e.metric is not None]
    # The columns do not say which way is better. What was kept does: each was better, or believed to be.
    steps = [b - a for a, b in itertools.pairwise(kept)]
    if sum(step > 0 for step in steps) > sum(step < 0 for step in steps):
        log.direction = "maximize"
        what = f"{log.path}: what was kept mostly has a higher {log.metric}: taken for better"
        log.warnings.append(f"{what} (--direction minimize says otherwise)")


def _figure(text: str) -> float | None:
    try:
        return real(float(text))
    except ValueError:
        return None


def _seconds(text: str) -> float | None:
    """Since 1970, of a figure or of a time in the form of ISO 8601."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return _figure(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _status_of(text: str) -> tuple[Status | None, Label | None]:
    """A word of a table as a status, with the label where it says more; nothing unknown is taken for a keep."""
    word = re.sub(r"[\s-]+", "_", text.strip().lower())
    if (status := _status(word) or _SYNONYMS.get(word)) is not None:
        return status, None
    named = next((label for label in Label if label and (word == label or word.endswith(f"_{label}"))), None)
    if named is not None and RULES[named] not in (None, Status.KEEP):
        return RULES[named], named
    return (Status.CRASH, None) if word.endswith("crash") else (None, None)


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
