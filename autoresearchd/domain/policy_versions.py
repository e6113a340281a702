"""Versions of the local policy and the learner runs that made them, as rows that are read back and never changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any


class VersionStatus(StrEnum):
    """Where a version stands; of those for one base model at most one is promoted. A rollback revives a retired one."""

    CANDIDATE = "candidate"
    PROMOTED = "promoted"
    REFUSED = "refused"
    RETIRED = "retired"


class LearnerStatus(StrEnum):
    """How a learner run stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The model that an adapter is made for, or that asks for one. name: its folder, or as its server calls it."""

    name: str
    model_hash: str | None = None
    tokenizer_hash: str | None = None
    template_hash: str | None = None


@dataclass(frozen=True, slots=True)
class LearnerRun:
    """One fine-tuning of the local policy. detail: in words, why it ended so; session_id: of earlier versions."""

    id: int
    algo: str
    mode: str
    status: LearnerStatus
    started_at: datetime
    trajectories: int
    session_id: int | None = None
    finished_at: datetime | None = None
    steps: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A version of the local policy: a LoRA adapter with its lineage. reason: in words, why it stands as it does.

    folder: its name; digest: over all files; parent: trained from; algo: of the learner run that made it; promoted_at:
    when last; session_id: of earlier versions.
    """

    version: str
    status: VersionStatus
    folder: str
    digest: str
    created_at: datetime
    model_hash: str | None = None
    tokenizer_hash: str | None = None
    template_hash: str | None = None
    parent: str | None = None
    learner_run_id: int | None = None
    session_id: int | None = None
    algo: str = ""
    promoted_at: datetime | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""

    def fits(self, base: BaseModel) -> bool:
        """Whether it was made for this model: all hashes that both know are the same, that of the model among them."""
        pairs = ((self.tokenizer_hash, base.tokenizer_hash), (self.template_hash, base.template_hash))
        same_words = all(own is None or other is None or own == other for own, other in pairs)
        return self.model_hash is not None and self.model_hash == base.model_hash and same_words


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """A version to answer with. folder: its files, as peft writes them."""

    version: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Rewarded:
    """What an experiment of a session earned. version: the adapter that proposed it, empty: the plain model."""

    number: int
    policy: str
    version: str
    reward: float
    started_at: datetime
