"""What happens in a session, for whoever watches: the live display, the daemon's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class EventKind(StrEnum):
    """Kinds of events."""

    SESSION_STARTED = "session_started"
    SESSION_RESUMED = "session_resumed"
    STOPPING = "stopping"
    SESSION_STOPPED = "session_stopped"
    PAUSED = "paused"
    UNPAUSED = "unpaused"
    BACKING_OFF = "backing_off"
    WAITING = "waiting"
    RECOVERED = "recovered"
    WARNING = "warning"
    SETUP = "setup"
    OPENED = "opened"
    PROPOSED = "proposed"
    TURN = "turn"
    REPAIR = "repair"
    COMMITTED = "committed"
    RUN_STARTED = "run_started"
    RUN_FINISHED = "run_finished"
    DECIDED = "decided"
    FAULT = "fault"
    HOUSEKEEPING = "housekeeping"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. data holds JSON values only; message is a line for people."""

    kind: EventKind
    at: datetime
    message: str
    experiment: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
