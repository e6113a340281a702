"""Experiments as files, written and read: the skill's JSON lines, karpathy's five columns, and Parquet.

The JSON lines are those of pi-autoresearch 1.6 and of the autoresearch skill: a ``config`` line at the head of each
segment, then one line per experiment, ``run`` counted from 1 over all segments (the baseline is run 1), ``timestamp``
in seconds (read in milliseconds as well), ``metric`` 0 where there is none; ``hook`` lines are passed over. The five
columns are those of karpathy/autoresearch's ``results.tsv``; a fork's with others is read by its header.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

from autoresearchd.domain.confirmation import Verdict
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import IMPORTED, RULES, Label, Outcome, SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Cost, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.report.output_file import whole_file
from autoresearchd.report.parquet_file import read_rows, write_rows
from autoresearchd.report.plain_text import clean, json_text, real
from autoresearchd.store.repository import SqlStore

Record = Mapping[str, Any]
_UNITS = {
    "bpb": "bpb", "us": "µs", "µs": "µs", "ms": "ms", "s": "s", "sec": "s", "seconds": "s",
    "kb": "kb", "mb": "mb", "gb": "gb", "pct": "%", "percent": "%",
}  # fmt: skip
_FORMULA, _MARKED = re.compile(r"^(?='*[=+\-@])"), re.compile(r"^'(?='*[=+\-@])")
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
    """Lines of a ``results.tsv``; the second column bears the metric's name, ``checks_failed`` becomes ``crash``.

    A text that a spreadsheet would run as a formula begins with an apostrophe, by which spreadsheets know a text.
    """
    yield "\t".join((_KARPATHYS[0], _FORMULA.sub("'", clean(head.metric)), *_KARPATHYS[1:]))
    for record in _decided(records):
        failed = record["status"] in ("crash", "checks_failed")
        value, memory = (0.0, 0.0) if failed else (real(record.get("metric")) or 0.0, _memory_gb(record))
        status = "crash" if failed else str(record["status"])
        commit = clean(record.get("commit") or "")[:7]
        description = _FORMULA.sub("'", clean(record.get("description") or ""))
        shown = f"{value:.6f}" if value == 0 or abs(value) >= 1e-3 else f"{value:.6g}"
        yield "\t".join((commit, shown, f"{memory:.1f}", status, description))


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
    if not isinstance(target, Path):
        target.writelines(line + "\n" for line in lines)
        return
    with whole_file(target) as place, place.open("w", encoding="utf-8", newline="\n") as stream:
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
        **({"label": record["label"]} if record.get("label") else {}),
        **({"confirmed": record.get("confirmed")} if record.get("status") == Status.KEEP else {}),
    }


def _memory_gb(record: Record) -> float:
    known = (real((record.get("metrics") or {}).get(key)) for key in _MEMORY_KEYS)
    return next((megabytes for megabytes in known if megabytes is not None), 0.0) / 1024


def _finite(value: Any) -> float | None:
    """The number as it is: whole ones are written without decimals."""
    return value if real(value) is not None else None


# ---------------------------------------------------------------------- reading
_LABELS = {
    Status.KEEP: Label.NONE,
    Status.DISCARD: Label.NO_GAIN,
    Status.CRASH: Label.ERROR,
    Status.CHECKS_FAILED: Label.CHECK_FAILED,
}
_MILLISECONDS = 1e11  # a time stamp beyond the year 5138 in seconds is one in milliseconds
_MAX_LINE = 4 * 1024 * 1024
_MOST_WARNINGS = 10


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
    """A log as it is read; segment: the latest.

    ``warnings`` say which lines were passed over and why: the first ones of all that there were (``warned``).
    written_at, digest: of the file; typed: it tells a value of 0 from none; dated: one of its experiments has a time.
    """

    path: Path
    name: str
    written_at: datetime
    digest: str
    typed: bool = False
    dated: bool = False
    metric: str = "metric"
    direction: str = "minimize"
    segment: int = 0
    configured: bool = False
    experiments: list[ImportedExperiment] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    warned: int = 0

    def warn(self, number: int, what: str) -> None:
        """Of thousands the first ones are kept: what was meant for no import may be large."""
        self.warned += 1
        if self.warned <= _MOST_WARNINGS:
            self.warnings.append(f"{self.path}:{number}: {what}")

    def add(self, number: int, status: Status, metric: Any, *, at: datetime | None, **fields: Any) -> None:
        """number: of its line. at: None where the log does not say: its neighbour's, or else the file's own time."""
        value, metrics = real(metric), fields["metrics"]
        # Both formats of text write 0 where there is no value: a keep means it, and who names it among the metrics.
        if value == 0 and not self.typed and status is not Status.KEEP and metrics.get(self.metric) != 0:
            value = None
        if value is None and status is Status.KEEP:  # of no use, and an export of it would say 0, which a keep means
            status, fields["label"] = Status.CRASH, None
            self.warn(number, f"a keep whose {clean(self.metric, 40)} is no finite number, taken for a crash")
        if at is not None and not self.dated:
            self.experiments = [replace(one, at=at) for one in self.experiments]
        self.dated = self.dated or at is not None
        at = at or (self.experiments[-1].at if self.experiments else self.written_at)
        self.experiments.append(ImportedExperiment(self.segment, status, value, at=at, **fields))


def store_log(store: SqlStore, log: ImportedLog) -> str:
    """Make a session of a log, as a whole or not at all; the sentence to show."""
    log = store.redactor.value(log)  # the store takes the names and commits of a session as they are
    stem = re.sub(r"[^a-z0-9]+", "-", log.path.stem.lower()).strip("-")[:24] or "log"
    known = {session.tag: session.task_json for session in store.sessions()}
    tags = (f"{IMPORTED}-{stem}" + (f"-{n}" if n > 1 else "") for n in itertools.count(1))
    tag = next(tag for tag in tags if tag not in known)
    first = log.experiments[0]
    task = {
        "name": log.name,
        "scoring": {"metric": log.metric, "direction": log.direction, "source": "self-reported"},
        "execution": {"budget": None},
        "imported": log.digest,
    }
    new = NewSession(tag, "", json.dumps(task), IMPORTED, IMPORTED, first.commit, 0)
    same = next((name for name, its in known.items() if its == new.task_json), "")
    with store.as_one() as whole:
        _fill(whole, whole.create_session(new, first.at).id, tag, log)
    experiments = counted(len(log.experiments), "experiment")
    more = log.warned - len(log.warnings)
    told = [*log.warnings, *([f"… and {counted(more, 'line')} more"] if more > 0 else [])]
    if same:
        told.insert(0, f"session {same} is the same already: `autoresearchd sessions remove {tag}` removes this one")
    warnings = "".join(f"\n  {warning}" for warning in told)
    return f"{experiments} of {log.path} {'is' if len(log.experiments) == 1 else 'are'} now session {tag}{warnings}"


def _fill(store: SqlStore, session_id: int, tag: str, log: ImportedLog) -> None:
    segment, best = -1, None
    for item in log.experiments:
        if item.segment != segment:
            segment, best = item.segment, None
            store.open_segment(session_id, f"{IMPORTED}-{segment}", IMPORTED, "", item.at, falls=False)
        against = store.session(tag).incumbent_experiment  # what was kept before it may stand
        number = _store(store, session_id, item, best, minimize=log.direction == "minimize")
        if item.status is Status.KEEP and item.confirmed is False and item.commit and best is not None:
            test = store.open_confirmation(session_id, experiment=number, against=against, why=IMPORTED, at=item.at)
            fell = Verdict(Outcome.FELL, None, None, None, "As the imported log has it.")
            store.decide_confirmation(session_id, test.number, fell, item.at)
        elif item.status is Status.KEEP and item.metric is not None:
            best = item.metric
    ended = max(item.at for item in log.experiments)
    store.set_state(session_id, SessionState.STOPPED, ended, pid=None, reason=f"imported from {log.name}")


def _store(store: SqlStore, session_id: int, item: ImportedExperiment, best: float | None, *, minimize: bool) -> int:
    """Its number. best: of the segment before it; None: it is the baseline, which needs no confirmation."""
    delta = None
    if item.metric is not None and best is not None:
        delta = best - item.metric if minimize else item.metric - best
    words = {key: str(item.asi.get(key) or "") for key in ASI.__slots__ if key != "extra"}
    asi = ASI(**words, extra={k: v for k, v in item.asi.items() if k not in ASI.__slots__})
    number = store.open_experiment(session_id, parent=item.commit, segment=item.segment, at=item.at).number
    proposal = Proposal(
        {}, asi.hypothesis or item.description, IMPORTED, description=item.description, asi=asi, cost=Cost(None)
    )
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
    try:
        with path.open("rb") as whole:
            digest = hashlib.file_digest(whole, "sha256").hexdigest()
        log = ImportedLog(path, path.stem, datetime.fromtimestamp(int(path.stat().st_mtime), UTC), digest)
        if path.suffix.lower() == ".parquet":
            _read_parquet(log, metric, direction)
            return _require_experiments(log)
        with path.open(encoding="utf-8", errors="replace") as stream:
            lines = _numbered(stream)
            first = next(lines, (0, ""))
            if _is_table(first[1]):
                _read_tsv(log, first[1], lines, metric, direction)
            elif first[1] and path.suffix.lower() == ".tsv" and not first[1].startswith("{"):
                log.warn(first[0], "no header of a table: it names no column status")
            elif metric or direction:
                raise _says_itself(path)
            elif first[1]:
                _read_jsonl(log, itertools.chain([first], lines))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", hint="name a .jsonl, .tsv or .parquet file"
        ) from error
    return _require_experiments(log)


def _says_itself(path: Path) -> UsageError:
    return UsageError(f"{path} is no table: it says itself what its metric is", hint="leave the option out")


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
    """The lines that are not empty, with their numbers; of an overlong one the first ``_MAX_LINE`` characters."""
    number, begins = 0, True
    for line in iter(lambda: stream.readline(_MAX_LINE), ""):
        number += begins
        if begins and line.strip():
            yield number, line.rstrip("\r\n").lstrip("\ufeff")
        begins = line.endswith("\n")


def _read_jsonl(log: ImportedLog, lines: Iterable[tuple[int, str]]) -> None:
    for number, line in lines:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            long = f"longer than {_MAX_LINE:,} characters" if len(line) >= _MAX_LINE else "not JSON"
            log.warn(number, f"{long}, passed over")
            continue
        if not isinstance(entry, dict):
            log.warn(number, "not a JSON object, passed over")
        elif entry.get("type") == "config":
            _take_config(log, entry, number)
        elif entry.get("type", "run") == "run":
            _take_run(log, entry, number)


def _read_parquet(log: ImportedLog, metric: str, direction: str) -> None:
    about, rows = read_rows(log.path)
    if not {"status", "metric", "commit"} <= (rows[0].keys() if rows else set()):
        raise UsageError(
            f"{log.path} is no export of experiments", hint="`autoresearchd export --format parquet` is one"
        )
    if (metric or direction) and about.get("metric"):
        raise _says_itself(log.path)
    log.name, log.metric = about.get("task") or log.name, about.get("metric") or metric or log.metric
    log.direction = "maximize" if "maximize" in (about.get("direction"), direction) else log.direction
    log.typed, before = True, rows[0].get("segment")
    for number, row in enumerate(rows, 1):
        if row.get("segment") != before:  # counted anew, as those of JSON lines are
            log.segment, before = log.segment + 1, row.get("segment")
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


def _take_config(log: ImportedLog, entry: Mapping[str, Any], number: int) -> None:
    if log.experiments and log.experiments[-1].segment == log.segment:
        log.segment += 1
    metric = str(entry.get("metricName") or log.metric)
    direction = "maximize" if entry.get("bestDirection") == "higher" else "minimize"
    if log.configured:  # a session has one task and one metric: the first line names it
        if (metric, direction) != (log.metric, log.direction):
            known, other = (f"{clean(m, 40)} ({'higher' if d == 'maximize' else 'lower'} is better)"
                            for m, d in ((log.metric, log.direction), (metric, direction)))  # fmt: skip
            log.warn(number, f"what follows measures {other}, and is taken for {known}: split the file")
        return
    log.configured = True
    log.name, log.metric, log.direction = str(entry.get("name") or log.name), metric, direction


def _take_run(log: ImportedLog, entry: Mapping[str, Any], number: int) -> None:
    status = _status(entry.get("status"))
    if status is None:
        word = clean(entry.get("status"), 30)
        log.warn(number, f"status {word!r} is none of {', '.join(Status)}, passed over")
        return
    asi, metrics = entry.get("asi"), entry.get("metrics")
    pairs = {str(k): real(v) for k, v in metrics.items()} if isinstance(metrics, dict) else {}
    log.add(
        number,
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
_KARPATHYS = ["commit", "memory_gb", "status", "description"]
"""Karpathy's, without that of the metric, which is the second."""
_NO_METRIC = re.compile(
    r"memory|vram|\bram\b|delta|expected|baseline|(^|_)(id|gb|mb|kb|bytes|seed|seeds|n|std|cost|usd|tokens)($|_)|^(run|exp|"
    r"experiment|iteration|iter|step|number|num|trial|round|segment|confidence|epoch|epochs|lr|seconds|duration)$"
)
_LIKELY = re.compile(
    r"loss|bpb|accuracy|perplexity|error|score|reward|(^|_)val_|(?<![a-z])(acc|err|ppl|auc|f1)(?![a-z0-9])"
)
_SELDOM = re.compile(r"(^|_)(time|seconds|secs|steps|params|flops|mfu|epochs?)($|_)")
"""What a run took; where nothing else could be the metric it may well be."""
_NUMBER = (
    r"[+-]?(?:[0-9]{1,3}(?:(?:,[0-9]{3}){2,}(?:\.[0-9]+)?|,[0-9]{3}\.[0-9]+)|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:e[+-]?[0-9]+)?"
)
"""A comma only where it can part nothing but thousands: 1,5 and 1,234 may be one and a bit."""
_VALUE = re.compile(
    rf"({_NUMBER})(?: ?(?:±|\+/?-) ?{_NUMBER})? ?(%|[^\W\d_]+(?:/[^\W\d_]+)?)? ?[*†‡]* ?(?:[(\[].*)?", re.IGNORECASE
)
_SYNONYMS = {
    "baseline": Status.KEEP, "kept": Status.KEEP, "discarded": Status.DISCARD, "revert": Status.DISCARD,
    "reverted": Status.DISCARD, "rejected": Status.DISCARD, "disqualified": Status.CHECKS_FAILED,
    "failed": Status.CRASH, "error": Status.CRASH, "crashed": Status.CRASH,
}  # fmt: skip


def _read_tsv(log: ImportedLog, header: str, lines: Iterator[tuple[int, str]], metric: str, direction: str) -> None:
    """A table by its header. metric: the column to take, empty: one of figures.

    Other columns of figures become metrics, other texts side information.
    """
    names = [_MARKED.sub("", name.strip()) for name in header.split("\t")]
    lower = [name.lower() for name in names]
    rows = [(number, [_MARKED.sub("", cell) for cell in line.split("\t", len(names) - 1)]) for number, line in lines]
    rows = [(number, [*row, *[""] * (len(names) - len(row))]) for number, row in rows]
    place = {kind: next((lower.index(n) for n in known if n in lower), -1) for kind, known in _NAMES.items()}
    wanted = _metric_column(log.path, names, rows, place, metric)
    log.metric = names[wanted]
    taken = {wanted, *(place[kind] for kind in ("commit", "status", "description", "timestamp", "hypothesis"))}
    unit: str | None = None
    for number, row in rows:
        word = row[place["status"]]
        status, label = _status_of(word)
        if status is None:
            told = f"status {clean(word, 30)!r} is not known" if word else f"not the columns {clean(header, 100)}"
            log.warn(number, f"{told}, passed over")
            continue
        found = _value(row[wanted])
        if unit is None and found and status is Status.KEEP:
            unit = found[1]
        figures = {i: value for i in range(len(names)) if i not in taken and (value := _figure(row[i])) is not None}
        metrics = {names[i]: value for i, value in figures.items() if lower[i] != "memory_gb"}
        if "memory_gb" in lower and (memory := figures.get(lower.index("memory_gb"), 0.0)) > 0:
            metrics["peak_vram_mb"] = memory * 1024
        asi = {names[i]: t for i, text in enumerate(row) if i not in taken and i not in figures and (t := text.strip())}
        texts = {kind: row[at].strip() if at >= 0 else "" for kind, at in place.items()}
        asi |= {"hypothesis": texts["hypothesis"]} if texts["hypothesis"] else {}
        log.add(
            number,
            status,
            found[0] if found and unit in (None, found[1]) else None,  # 900 ms is no more than 1.2 s
            commit="" if texts["commit"] == "baseline" else texts["commit"],
            metrics=metrics,
            description=texts["description"],
            at=_moment(_seconds(texts["timestamp"])),
            asi=asi,
            label=label,
        )
    if not metric and not _is_karpathys(names):
        _told_guess(log, f"compared by {clean(log.metric, 40)}", "metric NAME")
    if direction:
        log.direction = direction
    else:
        _guess_direction(log)


def _is_karpathys(names: Sequence[str]) -> bool:
    """Karpathy's own table, whatever its metric is called."""
    return [*names[:1], *names[2:]] == _KARPATHYS


def _metric_column(
    path: Path, names: Sequence[str], rows: Sequence[tuple[int, list[str]]], place: Mapping[str, int], metric: str
) -> int:
    if metric:
        if metric not in names:
            raise UsageError(f"{path} has no column {metric[:60]!r}", hint=f"it has {clean(', '.join(names), 400)}")
        return names.index(metric)
    if _is_karpathys(names):
        return 1
    start = place["commit"] if place["commit"] >= 0 else place["status"]
    order = [*range(start + 1, len(names)), *range(start)]
    order = [i for i in order if i not in place.values()]
    told = [row for _, row in rows if _status_of(row[place["status"]])[0] in (Status.KEEP, Status.DISCARD)]
    filled = [i for i in order if 2 * sum(_value(row[i]) is not None for row in told) >= len(told)]
    could: list[int] = [i for i in filled if not _NO_METRIC.search(names[i].lower())]
    if not could:
        hint = f"say which column it is: --metric NAME, of {clean(', '.join(names), 400)}"
        raise UsageError(f"{path} has no column of figures that could be the metric", hint=hint)
    return min(could, key=lambda i: _doubt(names[i].lower()))


def _doubt(name: str) -> tuple[int, bool]:
    """Of two columns the metric is the one with less, and of equals the first after the commit."""
    return bool(_SELDOM.search(name)) - bool(_LIKELY.search(name)), "train" in name


def _guess_direction(log: ImportedLog) -> None:
    """The columns do not say which way is better. What was kept does: each was better, or believed to be.

    Where that tells nothing, what was discarded for its value does: most of it was worse than what was kept before it.
    """
    gains, losses, kept = list[float](), list[float](), None
    for e in log.experiments:
        if e.metric is not None and kept is not None:
            if e.status is Status.KEEP:
                gains.append(e.metric - kept)
            elif e.status is Status.DISCARD and e.label in (None, Label.NO_GAIN):
                losses.append(e.metric - kept)
        kept = e.metric if e.status is Status.KEEP else kept
    higher, lower = sum(step > 0 for step in gains), sum(step < 0 for step in gains)
    if higher != lower:
        words = f"what was kept mostly has a higher {log.metric}: taken for better"
    else:
        higher, lower = sum(step < 0 for step in losses), sum(step > 0 for step in losses)
        words = f"what was discarded mostly has a lower {log.metric}: higher is taken for better"
    if higher > lower:
        log.direction = "maximize"
        _told_guess(log, words, "direction minimize")
    elif higher == lower:
        words = f"nothing tells whether a higher {log.metric} is better: taken for worse"
        _told_guess(log, words, "direction maximize")


def _told_guess(log: ImportedLog, what: str, option: str) -> None:
    log.warned += 1
    log.warnings.append(f"{log.path}: {what} (--{option} says otherwise)")


def _figure(text: str) -> float | None:
    try:
        return real(float(text))
    except ValueError:
        return None


def _value(text: str) -> tuple[float, str] | None:
    """A number as people write one into a table, and its unit: with a margin, marks or words in brackets behind it."""
    if (plain := _figure(text)) is not None:
        return plain, ""
    found = _VALUE.fullmatch(" ".join(text.split()))
    value = _figure(found[1].replace(",", "")) if found else None
    return (value, found[2] or "") if found and value is not None else None


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


def _moment(value: Any) -> datetime | None:
    """None: there is no time, for which our own lines have 0."""
    seconds = real(value)
    if not seconds:
        return None
    if abs(seconds) > _MILLISECONDS:
        seconds /= 1000
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):
        return None
