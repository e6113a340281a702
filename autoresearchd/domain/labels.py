"""Status, label and phase of an experiment, what each label decides, and how a confirmation ends."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The decision on an experiment."""

    KEEP = "keep"
    DISCARD = "discard"
    CRASH = "crash"
    CHECKS_FAILED = "checks_failed"


class Phase(StrEnum):
    """Where an experiment stands on its way; each step is one transaction in the store."""

    PROPOSING = "proposing"
    PROPOSED = "proposed"
    COMMITTED = "committed"
    RUNNING = "running"
    MEASURED = "measured"
    DECIDED = "decided"


class Label(StrEnum):
    """Why an experiment, or one run of it, ended as it did."""

    NONE = ""
    SIMPLER = "simpler"
    NO_GAIN = "no_gain"
    ABORTED_EARLY = "aborted_early"
    GATE_MISS = "gate_miss"
    SIZE_BLOCKED = "size_blocked"
    CONSTRAINT = "constraint"
    STALE_PARENT = "stale_parent"
    ERROR = "error"
    OOM = "oom"
    NAN_LOSS = "nan_loss"
    METRIC_MISSING = "metric_missing"
    NON_FINITE = "non_finite"
    TIMEOUT = "timeout"
    BUDGET_OVERRUN = "budget_overrun"
    ILLEGAL_EDIT = "illegal_edit"
    MALFORMED_ANSWER = "malformed_answer"
    METRIC_TAMPERING = "metric_tampering"
    NOT_CAUSAL = "not_causal"
    CHECK_FAILED = "check_failed"
    DUPLICATE = "duplicate"
    NO_OP = "no_op"
    INTERRUPTED = "interrupted"
    HOST_LOST = "host_lost"
    DISK_FULL = "disk_full"


_LABELS = {
    Status.KEEP: "NONE SIMPLER",
    Status.DISCARD: "NO_GAIN ABORTED_EARLY GATE_MISS SIZE_BLOCKED CONSTRAINT STALE_PARENT DUPLICATE NO_OP",
    Status.CRASH: "ERROR OOM NAN_LOSS METRIC_MISSING NON_FINITE TIMEOUT BUDGET_OVERRUN ILLEGAL_EDIT MALFORMED_ANSWER",
    Status.CHECKS_FAILED: "METRIC_TAMPERING NOT_CAUSAL CHECK_FAILED",
    None: "INTERRUPTED HOST_LOST DISK_FULL",
}
RULES = {Label[name]: status for status, names in _LABELS.items() for name in names.split()}
"""What a label decides; None: the experiment stays open."""

NEVER_RUN = frozenset({Label.ILLEGAL_EDIT, Label.MALFORMED_ANSWER, Label.DUPLICATE, Label.NO_OP})
"""No job was spent, so that nothing is known of the edit."""

FORBIDDEN = frozenset({Label.GATE_MISS, Label.SIZE_BLOCKED, Label.CONSTRAINT})
"""Measured, and maybe better than anything before, but outside what a program may be: nothing to build on."""


class Outcome(StrEnum):
    """What the runs of a confirmation have shown of the tip."""

    CONFIRMED = "confirmed"
    FELL = "fell"
    UNDECIDED = "undecided"


class SessionState(StrEnum):
    """What the daemon of a session is doing."""

    RUNNING = "running"
    PAUSED = "paused"
    BACKING_OFF = "backing_off"
    STOPPED = "stopped"
    CRASHED = "crashed"


IMPORTED = "imported"
"""The policy of a session that was read from a log: it has no program to run, and no commits."""
LIVING = (SessionState.RUNNING, SessionState.PAUSED, SessionState.BACKING_OFF)
"""Of a session that a daemon has."""
