"""``import``: a foreign log of experiments becomes a stopped session to list, plot and export.

Read are the skill's JSON lines and karpathy's five columns, as ``export`` writes them, field by field as
pi-autoresearch 1.6 has them (a ``config`` line after a result opens a new segment, ``hook`` lines are passed over,
milliseconds and seconds are both met as time stamps) with two differences: a line that cannot be read is reported
instead of dropped in silence, and an unknown status is never taken for a keep.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import Label, SessionState, Status
from autoresearchd.domain.ports import NewSession, Store
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.report.plain_text import real

IMPORTED = "imported"
"""The policy of an imported session."""
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
    status: Status
    metric: float | None
    commit: str
    metrics: Mapping[str, float]
    description: str
    at: datetime
    confidence: float | None = None
    asi: Mapping[str, Any] = field(default_factory=dict)


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
        self.experiments.append(ImportedExperiment(len(self.experiments), self.segment, status, value, **fields))


def store_log(store: Store, log: ImportedLog) -> str:
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
        _store(store, session.id, item, best, minimize=log.direction == "minimize")
        if item.status is Status.KEEP and item.metric is not None:
            best = item.metric
    now = datetime.now(UTC)
    store.set_state(session.id, SessionState.STOPPED, now, pid=None, reason=f"imported from {log.name}")
    experiments = counted(len(log.experiments), "experiment")
    warnings = "".join(f"\n  {warning}" for warning in log.warnings[:10])
    return f"{experiments} of {log.path} {'is' if len(log.experiments) == 1 else 'are'} now session {tag}{warnings}"


def _store(store: Store, session_id: int, item: ImportedExperiment, best: float | None, *, minimize: bool) -> None:
    delta = None
    if item.metric is not None and best is not None:
        delta = best - item.metric if minimize else item.metric - best
    words = {key: str(item.asi.get(key, "")) for key in ("hypothesis", "arch_change", "result", "next_action_hint")}
    asi = ASI(**words, extra={k: v for k, v in item.asi.items() if k not in ASI.__slots__})
    number = store.open_experiment(session_id, parent=item.commit, segment=item.segment, at=item.at).number
    proposal = Proposal({}, asi.hypothesis or item.description, IMPORTED, description=item.description, asi=asi)
    store.record_proposal(session_id, number, proposal, diff="", code_hash=f"{IMPORTED}-{item.number}")
    if item.commit:
        store.record_commit(session_id, number, item.commit)
    decision = Decision(
        item.status,
        _LABELS[item.status],
        value=item.metric,
        delta=delta,
        metrics=item.metrics,
        confidence=item.confidence,
        reason="as the imported log has it",
    )
    kept = item.commit if item.status is Status.KEEP else None
    store.record_decision(session_id, number, decision, asi, item.at, incumbent=kept)
    store.record_overhead(session_id, number, 0.0)


# ---------------------------------------------------------------------- reading
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
        metrics={name: value for name, value in pairs.items() if value is not None and name not in _BAD_NAMES},
        description=str(entry.get("description") or ""),
        at=_moment(entry.get("timestamp")),
        confidence=real(entry.get("confidence")),
        asi=asi if isinstance(asi, dict) else {},
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
    # The five columns do not say which way is better. What was kept does: each was the best so far.
    if len(kept) > 1 and all(a <= b for a, b in itertools.pairwise(kept)) and kept[0] < kept[-1]:
        log.direction = "maximize"
        log.warnings.append(f"{log.path}: every {log.metric} that was kept is higher: taken for better")


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
