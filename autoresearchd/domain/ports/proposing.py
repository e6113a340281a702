"""The ports to what proposes: policies, the price of their answers, and the versions that the learner makes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autoresearchd.domain.experiment import (
    Trial,
)
from autoresearchd.domain.policy_versions import (
    BaseModel,
    ServedAdapter,
)
from autoresearchd.domain.ports.machine import Cancel
from autoresearchd.domain.proposal import Answer, Proposal
from autoresearchd.domain.research_state import ResearchState


class Policy(Protocol):
    """Proposes edits.

    ``propose`` may take minutes; it ends soon after ``cancel`` is set, by raising Interrupted. It raises PolicyError
    when it has no usable proposal (the experiment is then recorded under the error's label), EnvironmentFailure when
    its service cannot be reached (the loop backs off). The same state gives the same proposal where no model is asked.
    """

    @property
    def name(self) -> str:
        """As in ``--policy``, e.g. ``search`` or ``command:./propose.sh``."""
        ...

    @property
    def repairs(self) -> int:
        """How often it can be given back a proposal whose run failed for a simple reason (``state.repair``)."""
        ...

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal: ...


class AnswerLog(Protocol):
    """Where a policy that asks a model writes each answer down, before it does anything with it."""

    def record(self, number: int, answer: Answer) -> None:
        """Store it and count its cost against experiment ``number`` and the session; on disk when it returns.

        May be called from any thread.
        """
        ...


class Purse(Protocol):
    """What models may cost."""

    def check(self) -> None:
        """Raise SpendCapReached where nothing more may be spent; called before each question to a model."""
        ...


class TrialHistory(Protocol):
    """What a search learns from: all decided experiments of the session whose changes are known."""

    def trials(self, after: int = -1) -> Sequence[Trial]:
        """Trials of experiments with a number greater than ``after``, in order of number."""
        ...


class Adapters(Protocol):
    """Which version of the local policy answers, and for which model. May be called from any thread."""

    def known(self, base: BaseModel) -> BaseModel:
        """A model of a server with its hash, where a folder of it is known here; else as it is."""
        ...

    def in_use(self, base: BaseModel) -> ServedAdapter | None:
        """The version for this model to answer with from now on, its files whole; None: the plain model."""
        ...


class Learning(Protocol):
    """Learner runs beside a session; they are processes of their own, and never fail it."""

    @property
    def cron(self) -> str:
        """When one is due, as crontab(5) has it, in UTC; empty: not by the clock."""
        ...

    def request(self) -> None:
        """One is due. May be called from any thread."""
        ...

    def between(self) -> None:
        """Between two experiments: begin one that is due, tell what became of one, wait where experiments must."""
        ...

    def end(self) -> None:
        """The session ends: one that is at work is stopped, and goes on from its checkpoint the next time."""
        ...
