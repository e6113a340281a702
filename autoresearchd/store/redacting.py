"""A store that writes no secret down: whatever text reaches it is redacted first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from autoresearchd.domain.events import Event
from autoresearchd.domain.experiment import Decision, Experiment, Measurement, Note, RunResult, Segment
from autoresearchd.domain.labels import SessionState
from autoresearchd.domain.proposal import ASI, Answer, Generation, Proposal
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.version import LearnerRun, LearnerStatus, NewLearnerRun, NewVersion, PolicyVersion
from autoresearchd.store.repository import SqlStore


class RedactingStore(SqlStore):
    """``SqlStore`` behind a redactor.

    Not redacted: the text of a proposal's files, which must stay what is committed (an edit that brings a secret in is
    refused before it gets here), the names and the task that a session is created with, and hashes. The tokens of a
    completion that held a secret are left out: they would spell it.
    """

    redactor: Redactor = Redactor()

    @classmethod
    def over(cls, store: SqlStore, redactor: Redactor) -> RedactingStore:
        """The same database behind a redactor."""
        guarded = cls(store._db)
        guarded.redactor = redactor
        return guarded

    def set_state(
        self, session_id: int, state: SessionState, at: datetime, *, pid: int | None, reason: str = ""
    ) -> None:
        super().set_state(session_id, state, at, pid=pid, reason=self.redactor.text(reason))

    def open_segment(self, session_id: int, fingerprint: str, reason: str, hardware: str, at: datetime) -> Segment:
        clean = self.redactor.text
        return super().open_segment(session_id, fingerprint, clean(reason), clean(hardware), at)

    def record_proposal(
        self, session_id: int, number: int, proposal: Proposal, *, diff: str, code_hash: str
    ) -> Experiment:
        rest = self.redactor.value(replace(proposal, files={}, generation=Generation()))
        clean = replace(rest, files=proposal.files, generation=_redacted(self.redactor, proposal.generation))
        return super().record_proposal(session_id, number, clean, diff=self.redactor.text(diff), code_hash=code_hash)

    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime) -> None:
        rest = self.redactor.value(replace(answer, generation=Generation()))
        clean = replace(rest, generation=_redacted(self.redactor, answer.generation))
        super().record_answer(session_id, number, clean, at)

    def close_run(
        self, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime, *, last: bool
    ) -> Experiment:
        clean = replace(self.redactor.value(replace(measurement, curve=())), curve=measurement.curve)
        return super().close_run(run_id, clean, self.redactor.value(result), at, last=last)

    def record_decision(
        self,
        session_id: int,
        number: int,
        decision: Decision,
        asi: ASI,
        at: datetime,
        *,
        incumbent: str | None,
        fallen: Mapping[int, Decision] | None = None,
    ) -> Experiment:
        clean = self.redactor.value
        lost = {kept: clean(after) for kept, after in (fallen or {}).items()}
        return super().record_decision(
            session_id, number, clean(decision), clean(asi), at, incumbent=incumbent, fallen=lost
        )

    def add_note(self, session_id: int, text: str, at: datetime) -> Note:
        return super().add_note(session_id, self.redactor.text(text), at)

    def log_event(self, session_id: int, event: Event) -> None:
        super().log_event(session_id, self.redactor.value(event))

    def open_learner_run(self, new: NewLearnerRun, at: datetime) -> LearnerRun:
        return super().open_learner_run(replace(new, config=self.redactor.value(new.config)), at)

    def record_learner_run(
        self,
        run_id: int,
        status: LearnerStatus,
        at: datetime,
        *,
        steps: int | None = None,
        metrics: Mapping[str, Any] | None = None,
        detail: str | None = None,
    ) -> LearnerRun:
        clean = self.redactor.value
        return super().record_learner_run(run_id, status, at, steps=steps, metrics=clean(metrics), detail=clean(detail))

    def add_version(self, new: NewVersion, at: datetime) -> PolicyVersion:
        clean = self.redactor.value
        return super().add_version(replace(new, metrics=clean(new.metrics), reason=clean(new.reason)), at)

    def promote_version(
        self, version: str, at: datetime, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        clean = self.redactor.value
        return super().promote_version(version, at, reason=clean(reason), metrics=clean(metrics))

    def refuse_version(
        self, version: str, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        clean = self.redactor.value
        return super().refuse_version(version, reason=clean(reason), metrics=clean(metrics))

    def roll_back_version(self, version: str, *, reason: str = "") -> PolicyVersion | None:
        return super().roll_back_version(version, reason=self.redactor.text(reason))


def _redacted(redactor: Redactor, generation: Generation) -> Generation:
    """Messages and completion redacted, and the tokens only where they spell nothing that is hidden."""
    clean = redactor.value(replace(generation, token_ids=None, logprobs=None))
    if clean.completion != generation.completion:
        return clean
    return replace(clean, token_ids=generation.token_ids, logprobs=generation.logprobs)
