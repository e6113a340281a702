"""Lines of the log say each thing once, and stay short whatever a program measured."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.domain.errors import PolicyError
from autoresearchd.domain.events import Event, EventKind
from autoresearchd.domain.experiment import Decision, Experiment, Measurement
from autoresearchd.domain.labels import Label, Phase, Status
from autoresearchd.domain.proposal import Proposal
from autoresearchd.evaluator.keep.decide import decide_failed_proposal
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


def test_a_failed_proposal_is_described_by_its_failure_once() -> None:
    error = PolicyError("the command ended with exit code 3:\n    no key")
    description = messages.failed_proposal(error)
    assert description == "the command ended with exit code 3"
    decision = Decision(Status.CRASH, Label.ERROR, reason="the command ended with exit code 3: no key.")
    assert messages.decided(experiment(description), decision, task()).count("exit code 3") == 1


def test_a_reason_too_long_for_a_description_is_told_once_too() -> None:
    """What a malformed answer is refused for is long: cut as the description, it stood again at the end of the line."""
    told = (
        "none of 3 answers could be used, the last: the answer holds no edit: neither a diff, nor blocks of text, nor "
    )
    error = PolicyError(f"{told}a whole file", label=Label.MALFORMED_ANSWER, hint="answer with one of them")
    description = messages.failed_proposal(error)
    assert description.endswith("…")
    line = messages.decided(experiment(description), decide_failed_proposal(error.label, str(error)), task())
    assert line == f"crash/malformed_answer: {told}a whole file → answer with one of them."


def test_an_astronomic_metric_takes_no_three_hundred_columns() -> None:
    decision = Decision(Status.DISCARD, Label.NO_GAIN, 4.01e250, -4.01e250, reason="worse")
    assert len(messages.decided(experiment("x"), decision, task())) < 80


def test_an_integer_metric_claims_no_six_decimals() -> None:
    kept = Decision(Status.KEEP, Label.NONE, 17.0, 7.0, reason="kept")
    assert messages.decided(experiment("x"), kept, task()) == "keep: val_bpb 17 (+7) · x"
    assert messages.run_finished(task(), Measurement(Label.NONE, 1_234_567.0)) == "val_bpb 1234567"
    assert [messages.short(value) for value in (-0.0, 3.5, -2.0)] == ["0", "3.500000", "-2"]


def test_a_gain_that_is_not_kept_is_said_to_be_doubtful() -> None:
    doubtful = Decision(Status.DISCARD, Label.NO_GAIN, 2.5, 0.018, reason="not sure enough to be kept")
    assert messages.decided(experiment("x"), doubtful, task()) == (
        "discard/no_gain: val_bpb 2.500000 (+0.018000, not surely better) · x"
    )
    for sure in (replace(doubtful, delta=-0.018), replace(doubtful, status=Status.KEEP, label=Label.NONE)):
        assert "surely" not in messages.decided(experiment("x"), sure, task())
