"""Lines of the log say each thing once, and stay short whatever a program measured."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.domain.events import Event, EventKind
from autoresearchd.domain.experiment import Decision, Experiment
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.loop import messages
from autoresearchd.loop.upkeep.event_sinks import FileSink
from tests.unit.evaluator.builders import task

AT = datetime(2026, 3, 8, 20, 0, tzinfo=UTC)


def experiment(description: str) -> Experiment:
    proposal = Proposal({}, "", "search", description)
    return Experiment(1, 7, 0, Phase.DECIDED, "a" * 40, AT, proposal=proposal)


def test_a_line_of_the_log_names_kind_and_number_once(tmp_path: Path) -> None:
    log = tmp_path / "daemon.log"
    sink = FileSink(log, "t")
    sink.emit(Event(EventKind.COMMITTED, AT, "committed 1a2b3c4", 7))
    sink.emit(Event(EventKind.OPENED, AT, "on 1a2b3c4", 7))
    sink.close()
    assert log.read_text().splitlines() == [
        "2026-03-08 20:00:00Z t committed #7 1a2b3c4",
        "2026-03-08 20:00:00Z t opened #7 on 1a2b3c4",
    ]


def test_a_decision_says_its_label_once() -> None:
    decision = Decision(Status.CRASH, Label.NON_FINITE, reason="non_finite: val_bpb is nan in training.log.")
    line = messages.decided(experiment("LR 1 → 100"), decision, task())
    assert line == "crash/non_finite: val_bpb is nan in training.log. · LR 1 → 100"
