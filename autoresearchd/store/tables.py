"""The tables of the journal, as typed SQLAlchemy classes; their types are those of ``columns``.

Here are sessions with what they tried and what it gave; what models said and learned is in ``model_tables``.
``migrations/`` creates them (a test holds the two together); ``reader`` and ``session_status`` read them by these
names. Times are integer microseconds of UTC since 1970, free-form values are JSON, long values are blobs compressed by
``codec.py``.

Rows that belong to an experiment carry its key (session_id, number), so that a step never has to look up another id.
What is read often (experiment, proposal) is kept apart from what is long (proposal_body), so that lists and sums
read few pages; sums over a session are counters (``totals``, ``tally``) that change together with what they count.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, ForeignKeyConstraint, Index, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from autoresearchd.store import model_tables as model_tables  # Base is to know all tables
from autoresearchd.store.columns import Base as Base
from autoresearchd.store.columns import experiment_key, session_key


class SessionTable(Base):
    """One run of the daemon on one task; the long ``task_json`` comes last."""

    __tablename__ = "session"

    id: Mapped[int] = mapped_column(primary_key=True)
    tag: Mapped[str] = mapped_column(unique=True)
    branch: Mapped[str]
    folder: Mapped[str]
    state: Mapped[str]
    reason: Mapped[str]
    pid: Mapped[int | None]
    policy: Mapped[str]
    executor: Mapped[str]
    base_commit: Mapped[str]
    incumbent: Mapped[str]
    incumbent_experiment: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger)
    started_at: Mapped[datetime]
    heartbeat_at: Mapped[datetime | None]
    active_seconds: Mapped[float]
    max_experiments: Mapped[int | None]
    max_seconds: Mapped[float | None]
    max_usd: Mapped[float | None]
    task_json: Mapped[str]


class TotalsTable(Base):
    """Counters of a session. opened: numbers handed out; experiments and what follows: decided ones."""

    __tablename__ = "totals"

    session_id: Mapped[int] = session_key(primary_key=True)
    opened: Mapped[int]
    experiments: Mapped[int]
    keeps: Mapped[int]
    discards: Mapped[int]
    crashes: Mapped[int]
    checks_failed: Mapped[int]
    aborted: Mapped[int]
    usd: Mapped[float]
    tokens_in: Mapped[int] = mapped_column(BigInteger)
    tokens_out: Mapped[int] = mapped_column(BigInteger)
    gpu_s: Mapped[float]


class SegmentTable(Base):
    """A stretch of a session in which results are comparable; ``first``: number of its first experiment."""

    __tablename__ = "segment"

    session_id: Mapped[int] = session_key(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    first: Mapped[int]
    fingerprint: Mapped[str]
    reason: Mapped[str]
    hardware: Mapped[str]
    started_at: Mapped[datetime]


class ExperimentTable(Base):
    """An experiment and the decision on it (status and what follows are NULL until it is decided).

    attempt: that of its current proposal, NULL while there is none. gpu_s: of all its runs.
    """

    __tablename__ = "experiment"
    __table_args__ = (
        Index("ix_experiment_value", "session_id", "segment", "value", "number"),
        Index("ix_experiment_status", "session_id", "status", "number"),
        Index("ix_experiment_commit", "session_id", "commit_sha"),
    )

    session_id: Mapped[int] = session_key(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    segment: Mapped[int]
    phase: Mapped[str]
    status: Mapped[str | None]
    label: Mapped[str | None]
    value: Mapped[float | None]
    delta: Mapped[float | None]
    confidence: Mapped[float | None]
    sigma: Mapped[float | None]
    reward: Mapped[float | None]
    overhead_ms: Mapped[float | None]
    gpu_s: Mapped[float]
    attempt: Mapped[int | None]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    parent: Mapped[str]
    commit_sha: Mapped[str | None]
    metrics: Mapped[dict[str, Any] | None]
    reason: Mapped[str | None]


class ProposalTable(Base):
    """A proposal: what was proposed, what it cost, and what the learner must know of it.

    An experiment has one for each attempt (a repair is a further attempt). usd: NULL when the price is unknown.
    reward_parts and reward_formula: components of the reward and the version of the formula; censored: the reward rests
    on a forecast. ``*_hash``: of the base model, its tokenizer and its chat template.
    """

    __tablename__ = "proposal"
    __table_args__ = (
        experiment_key(),
        Index("ix_proposal_code_hash", "session_id", "code_hash", "number"),
    )

    session_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    policy: Mapped[str]
    role: Mapped[str]
    adapter: Mapped[str]
    parent: Mapped[str | None]
    code_hash: Mapped[str]
    expected_delta: Mapped[float | None]
    usd: Mapped[float | None]
    tokens_in: Mapped[int] = mapped_column(BigInteger)
    tokens_out: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float]
    state_id: Mapped[str]
    round_id: Mapped[str] = mapped_column(index=True)
    reward: Mapped[float | None]
    reward_parts: Mapped[dict[str, Any] | None]
    reward_formula: Mapped[str | None]
    censored: Mapped[bool]
    model_hash: Mapped[str | None]
    tokenizer_hash: Mapped[str | None]
    template_hash: Mapped[str | None]
    generation_adapter: Mapped[str | None]
    sampling: Mapped[dict[str, Any] | None]
    changes: Mapped[dict[str, Any] | None]
    asi: Mapped[dict[str, Any] | None]
    hypothesis: Mapped[str]
    description: Mapped[str]


class ProposalBodyTable(Base):
    """The long parts of a proposal, compressed: new file texts, diff, and the model's answer as it was given."""

    __tablename__ = "proposal_body"
    __table_args__ = (
        ForeignKeyConstraint(
            ["session_id", "number", "attempt"],
            ["proposal.session_id", "proposal.number", "proposal.attempt"],
            ondelete="CASCADE",
        ),
    )

    session_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    diff: Mapped[bytes]
    files: Mapped[bytes]
    messages: Mapped[bytes | None]
    completion: Mapped[bytes | None]
    token_ids: Mapped[bytes | None]
    logprobs: Mapped[bytes | None]


class AsiTable(Base):
    """Actionable side information of a decided experiment."""

    __tablename__ = "asi"
    __table_args__ = (experiment_key(),)

    session_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    hypothesis: Mapped[str]
    arch_change: Mapped[str]
    result: Mapped[str]
    next_action_hint: Mapped[str]
    extra: Mapped[dict[str, Any] | None]


class RunTable(Base):
    """One execution of a program; ``stages``: how each of its processes ended; ``curve``: compressed.

    program: number of the experiment whose commit ran, NULL where it is the experiment's own.
    attempt: of the experiment's proposal when it ran.
    """

    __tablename__ = "run"
    __table_args__ = (experiment_key(), UniqueConstraint("session_id", "number", "run_index"))

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[int]
    number: Mapped[int]
    run_index: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger)
    program: Mapped[int | None]
    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    label: Mapped[str]
    value: Mapped[float | None]
    duration_s: Mapped[float]
    exit_code: Mapped[int | None]
    tier: Mapped[str]
    host: Mapped[str]
    device: Mapped[str]
    metrics: Mapped[dict[str, Any] | None]
    detail: Mapped[str]
    stages: Mapped[list[Any] | None]
    curve: Mapped[bytes | None]


class TallyTable(Base):
    """Counters of decided experiments by role and label: keeps: of them, those kept; reward: the sum of theirs."""

    __tablename__ = "tally"

    session_id: Mapped[int] = session_key(primary_key=True)
    role: Mapped[str] = mapped_column(primary_key=True)
    label: Mapped[str] = mapped_column(primary_key=True)
    decided: Mapped[int]
    keeps: Mapped[int]
    reward: Mapped[float]


class VisitTable(Base):
    """How often an experiment was chosen to go on from; no row: never."""

    __tablename__ = "visit"
    __table_args__ = (experiment_key(),)

    session_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    visits: Mapped[int]


class LookTable(Base):
    """A look of early abort at a running job: its forecast, the probability that it misses the bar, all its reasons."""

    __tablename__ = "look"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("run.id", ondelete="CASCADE"), index=True)
    progress: Mapped[float]
    forecast: Mapped[float | None]
    probability: Mapped[float | None]
    details: Mapped[dict[str, Any] | None]


class AbortMemoryTable(Base):
    """What early abort has learned in the latest segment of a session; state: compressed, as of ``number``."""

    __tablename__ = "abort_memory"

    session_id: Mapped[int] = session_key(primary_key=True)
    segment: Mapped[int]
    number: Mapped[int]
    figures: Mapped[dict[str, Any] | None]
    state: Mapped[bytes | None]


class NoteTable(Base):
    """A message from the user to the policy; seen_in: the experiment whose prompt carried it."""

    __tablename__ = "note"
    __table_args__ = (Index("ix_note_unseen", "session_id", "seen_in"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[int] = session_key()
    text: Mapped[str]
    created_at: Mapped[datetime]
    seen_in: Mapped[int | None]


class ControlTable(Base):
    """A request from a command to the daemon."""

    __tablename__ = "control_request"
    __table_args__ = (Index("ix_control_request_pending", "session_id", "taken"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[int] = session_key()
    kind: Mapped[str]
    created_at: Mapped[datetime]
    taken: Mapped[bool]


class EventTable(Base):
    """What happened in a session."""

    __tablename__ = "event"
    __table_args__ = (Index("ix_event_session", "session_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[int] = session_key()
    kind: Mapped[str]
    at: Mapped[datetime]
    experiment: Mapped[int | None]
    message: Mapped[str]
    data: Mapped[dict[str, Any] | None]
