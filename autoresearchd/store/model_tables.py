"""The tables of what models answered, what was learned from it, and the versions that came of that."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, ForeignKeyConstraint, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from autoresearchd.store.columns import Base, experiment_key, session_key


class AnswerTable(Base):
    """An answer of a model, usable or not, in the order of their coming; usd: NULL when the price is unknown.

    ``*_hash``: of the base model, its tokenizer and its chat template. What is spent in a day is read off the index.
    """

    __tablename__ = "answer"
    __table_args__ = (experiment_key(), Index("ix_answer_spent", "at", "usd"))

    session_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    answer_index: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    at: Mapped[datetime]
    usd: Mapped[float | None]
    tokens_in: Mapped[int] = mapped_column(BigInteger)
    tokens_out: Mapped[int] = mapped_column(BigInteger)
    seconds: Mapped[float]
    model: Mapped[str]
    form: Mapped[str]
    finish: Mapped[str]
    model_hash: Mapped[str | None]
    tokenizer_hash: Mapped[str | None]
    template_hash: Mapped[str | None]
    adapter: Mapped[str | None]
    sampling: Mapped[dict[str, Any] | None]
    error: Mapped[str]


class AnswerBodyTable(Base):
    """The long parts of an answer, compressed. shared: so many messages are those of the answer before it.

    A question that is asked again goes on from the one before it: ``messages`` holds only what follows the shared ones.
    """

    __tablename__ = "answer_body"
    __table_args__ = (
        ForeignKeyConstraint(
            ["session_id", "number", "answer_index"],
            ["answer.session_id", "answer.number", "answer.answer_index"],
            ondelete="CASCADE",
        ),
    )

    session_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    answer_index: Mapped[int] = mapped_column(primary_key=True)
    shared: Mapped[int]
    messages: Mapped[bytes | None]
    completion: Mapped[bytes | None]
    token_ids: Mapped[bytes | None]
    logprobs: Mapped[bytes | None]


class LearnerRunTable(Base):
    """One fine-tuning of the local policy; session_id is NULL where it learned across sessions."""

    __tablename__ = "learner_run"

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[int | None] = session_key(index=True)
    algo: Mapped[str]
    mode: Mapped[str]
    status: Mapped[str]
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    trajectories: Mapped[int]
    steps: Mapped[int]
    config: Mapped[dict[str, Any] | None]
    metrics: Mapped[dict[str, Any] | None]
    detail: Mapped[str]


class PolicyVersionTable(Base):
    """A version of the local policy: an adapter with its lineage, its metrics, whether it is in use, and why.

    adapter_path: name of its folder; adapter_hash: over all of its files.
    """

    __tablename__ = "policy_version"

    id: Mapped[int] = mapped_column(primary_key=True)
    session_id: Mapped[int | None] = session_key(index=True)
    learner_run_id: Mapped[int | None] = mapped_column(ForeignKey("learner_run.id", ondelete="SET NULL"))
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("policy_version.id", ondelete="SET NULL"))
    version: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str]
    adapter_path: Mapped[str]
    adapter_hash: Mapped[str]
    model_hash: Mapped[str | None]
    tokenizer_hash: Mapped[str | None]
    template_hash: Mapped[str | None]
    created_at: Mapped[datetime]
    promoted_at: Mapped[datetime | None]
    metrics: Mapped[dict[str, Any] | None]
    reason: Mapped[str] = mapped_column(server_default=text("''"))
