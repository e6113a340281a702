"""``import``: a log of pi-autoresearch, of the skill or of karpathy becomes a stopped session to list, plot, export."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.domain.experiment import Decision
from autoresearchd.domain.labels import SessionState, Status
from autoresearchd.domain.ports import NewSession
from autoresearchd.domain.proposal import ASI, Proposal
from autoresearchd.domain.quantities import counted
from autoresearchd.loop.upkeep.system_clock import SystemClock
from autoresearchd.report.log_import import ImportedExperiment, ImportedLog, read_log
from autoresearchd.store.repository import SqlStore

IMPORTED = "imported"


def import_log(directory: Path, path: Path) -> str:
    """Read a log into a session of its own; the sentence to show. Nothing is stored when the file cannot be read."""
    project = Project.at(directory)
    log = read_log(path)
    stem = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:24] or "log"
    with project.open_store() as store:
        known = {session.tag for session in store.sessions()}
        tags = (f"{IMPORTED}-{stem}" + (f"-{n}" if n > 1 else "") for n in itertools.count(1))
        tag = next(tag for tag in tags if tag not in known)
        _store(store, tag, log)
    warnings = "".join(f"\n  {warning}" for warning in log.warnings[:10])
    experiments = counted(len(log.experiments), "experiment")
    return f"{experiments} of {path} {'is' if len(log.experiments) == 1 else 'are'} now session {tag}{warnings}"


def _store(store: SqlStore, tag: str, log: ImportedLog) -> None:
    clock = SystemClock()
    first = log.experiments[0]
    task = {
        "name": log.name,
        "scoring": {"metric": log.metric, "direction": log.direction, "source": "self-reported"},
        "execution": {"budget": None},
    }
    session = store.create_session(
        NewSession(
            tag=tag,
            branch="",
            task_json=json.dumps(task),
            policy=IMPORTED,
            executor=IMPORTED,
            base_commit=first.commit,
            seed=0,
        ),
        first.at,
    )
    segment, best = -1, None
    for item in log.experiments:
        if item.segment != segment:
            segment, best = item.segment, None
            store.open_segment(session.id, f"{IMPORTED}-{segment}", IMPORTED, "", item.at)
        _store_experiment(store, session.id, item, best, minimize=log.direction == "minimize")
        if item.status is Status.KEEP and item.metric is not None:
            best = item.metric
    store.set_state(session.id, SessionState.STOPPED, clock.now(), pid=None, reason=f"imported from {log.name}")


def _store_experiment(
    store: SqlStore, session_id: int, item: ImportedExperiment, best: float | None, *, minimize: bool
) -> None:
    delta = None
    if item.metric is not None and best is not None:
        delta = best - item.metric if minimize else item.metric - best
    words = {key: str(item.asi.get(key, "")) for key in ("hypothesis", "arch_change", "result", "next_action_hint")}
    asi = ASI(**words, extra={k: v for k, v in item.asi.items() if k not in ASI.__slots__})
    experiment = store.open_experiment(session_id, parent=item.commit, segment=item.segment, at=item.at)
    proposal = Proposal({}, asi.hypothesis or item.description, IMPORTED, description=item.description, asi=asi)
    store.record_proposal(session_id, experiment.number, proposal, diff="", code_hash=f"{IMPORTED}-{item.number}")
    if item.commit:
        store.record_commit(session_id, experiment.number, item.commit)
    decision = Decision(
        item.status,
        item.label,
        value=item.metric,
        delta=delta,
        metrics=item.metrics,
        confidence=item.confidence,
        reason="as the imported log has it",
    )
    kept = item.commit if item.status is Status.KEEP else None
    store.record_decision(session_id, experiment.number, decision, asi, item.at, incumbent=kept)
    store.record_overhead(session_id, experiment.number, 0.0)
