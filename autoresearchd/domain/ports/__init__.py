"""The doors of the house: small Protocols between the loop and what it uses. ``app/`` alone picks the adapters.

Contract suites that every adapter must pass live in ``tests.contract``. Unless a method says otherwise, adapters
are called from one thread, the loop's.
"""

from autoresearchd.domain.ports.machine import Cancel, Clock, EventSink, Executor, RunHandle, RunRequest, Workspace
from autoresearchd.domain.ports.proposing import Adapters, AnswerLog, Learning, Policy, Purse, TrialHistory
from autoresearchd.domain.ports.store import (
    AbortJournal,
    Answers,
    Control,
    History,
    Inbox,
    NewSession,
    Phases,
    Sessions,
    Shelf,
    Store,
    Tree,
)

__all__ = [
    "AbortJournal",
    "Adapters",
    "AnswerLog",
    "Answers",
    "Cancel",
    "Clock",
    "Control",
    "EventSink",
    "Executor",
    "History",
    "Inbox",
    "Learning",
    "NewSession",
    "Phases",
    "Policy",
    "Purse",
    "RunHandle",
    "RunRequest",
    "Sessions",
    "Shelf",
    "Store",
    "Tree",
    "TrialHistory",
    "Workspace",
]
