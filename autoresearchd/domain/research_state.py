"""The research state: all that a policy is shown when it is asked for a proposal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.proposal import Repair
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.task import Task


@dataclass(frozen=True, slots=True)
class ResearchState:
    """Code, history and notes, frozen at one instant.

    code: each editable file at ``parent``, not redacted, so that edits fit. recent: the last 32 decided experiments,
    oldest first; top: the five best; own: the role's own before those, up to 32. seed: of every random choice of the
    policy. incumbent: commit of the best, where ``parent`` is another one. failures: decided experiments by label.
    streak: experiments in a row that were not kept. memo: ``autoresearch.md``. repair: a failed proposal to be fixed.
    redactor: what leaves the daemon goes through it.
    """

    tag: str
    number: int
    parent: str
    task: Task
    code: Mapping[str, str]
    recent: tuple[Experiment, ...] = ()
    top: tuple[Experiment, ...] = ()
    own: tuple[Experiment, ...] = ()
    baseline: float | None = None
    incumbent_value: float | None = None
    sigma: float | None = None
    notes: tuple[str, ...] = ()
    role: str = ""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    state_id: str = ""
    round_id: str = ""
    incumbent: str = ""
    failures: Mapping[str, int] = field(default_factory=dict)
    streak: int = 0
    memo: str = ""
    repair: Repair | None = None
    redactor: Redactor = field(default_factory=Redactor, compare=False, repr=False)
