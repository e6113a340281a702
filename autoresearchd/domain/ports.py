"""The doors of the house: small Protocols between the loop and what it uses. ``app/`` alone picks the adapters.

Contract suites that every adapter must pass live in ``tests.contract``. Unless a method says otherwise, adapters
are called from one thread, the loop's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from autoresearchd.domain.experiment import Experiment, Limits, RunResult, Trial
from autoresearchd.domain.outlook import Outlook
from autoresearchd.domain.policy_versions import BaseModel, ServedAdapter
from autoresearchd.domain.proposal import Answer, Proposal, Repair
from autoresearchd.domain.randomness import derive_seed
from autoresearchd.domain.redaction import Redactor
from autoresearchd.domain.task import Task


# ---------------------------------------------------------------------- the machine
class Clock(Protocol):
    """Time. ``now`` is UTC and goes to the store; ``monotonic`` is in seconds and measures durations."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class Cancel(Protocol):
    """Tells a blocking call that somebody wants it to end; ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool: ...


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
    CONFIRMING = "confirming"
    CONFIRMED = "confirmed"
    FAULT = "fault"
    HOUSEKEEPING = "housekeeping"
    LEARNED = "learned"
    LEARNER_FAILED = "learner_failed"
    HOOK = "hook"


@dataclass(frozen=True, slots=True)
class Event:
    """One event. data holds JSON values only; message is a line for people."""

    kind: EventKind
    at: datetime
    message: str
    experiment: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class EventSink(Protocol):
    """Takes events. Must not raise and must not block for long; may be called from several threads."""

    def emit(self, event: Event) -> None: ...


class Workspace(Protocol):
    """Files under version control, never the user's checkout. RepositoryError: act; EnvironmentFailure: it may pass."""

    def read(self, commit: str, path: str) -> str: ...

    def commit(self, *, number: int, parent: str, files: Mapping[str, str], message: str, when: datetime) -> str:
        """Commit ``files`` (path in the task's folder → text) on ``parent``; refs/autoresearch/<tag>/<number> names it.

        Deterministic and idempotent; the branch does not move. Paths are checked again: existing regular files inside
        the task's folder, no symbolic link.
        """

    def checkout(self, slot: int, commit: str) -> Path:
        """The task's folder in the slot's worktree, which then holds exactly ``commit``; damaged, it is made anew."""

    def confirmed(self) -> str:
        """Commit that the session branch points at."""

    def tip(self) -> str:
        """Commit that the next edit is made on; refs/autoresearch/<tag>/tip names it.

        Where that ref is missing, as in sessions of earlier versions, it is that of the branch.
        """

    def move_tip(self, commit: str) -> None:
        """Point the tip's ref at ``commit``, wherever it was, also where a power cut has emptied it."""

    def parent(self, commit: str) -> str: ...

    def advance(self, old: str, new: str) -> None:
        """Move the session branch by compare-and-swap; RepositoryError when it is at neither: somebody moved it."""

    def damaged(self, commits: Mapping[int, str]) -> Sequence[int]:
        """Of experiments and their commits, those that a power cut took; ``commit`` brings them back."""

    def restore_branch(self, commit: str) -> None:
        """Point the session branch at ``commit`` where a power cut has emptied it; else it is left as it is."""

    def record_discard(self, *, number: int, commit: str, incumbent: str, when: datetime) -> str:
        """``history: revert``: write a discard and its revert to the incumbent; the new tip."""

    def fall_back(self, commit: str, number: int, when: datetime) -> str:
        """``history: revert``: write on the tip that its files are those of ``commit`` again; the new tip.

        commit, number: of the confirmed program. The same again, as after a crash, changes nothing.
        """

    def diff(self, old: str, new: str) -> str:
        """Unified diff between two commits, the task's folder only."""

    def pack(self) -> None:
        """Pack loose objects and refs (slow; called when idle, from the housekeeping thread)."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run to execute. workspace: the task's folder at the commit; pristine: unedited; setup: what set-up left."""

    key: str
    task: Task
    commit: str
    seed: int
    workspace: Path
    pristine: Path
    setup: Path
    run_dir: Path
    source: Path
    slot: int = 0


class RunHandle(Protocol):
    """A run under way."""

    @property
    def run_dir(self) -> Path:
        """Where ``training.log``, ``evaluation.log`` … grow while it runs."""

    def wait(self, timeout: float | None = None) -> RunResult | None:
        """Wait at most ``timeout`` seconds until the run has ended (None: it runs); what the job did never raises."""

    def kill(self) -> None:
        """End the whole process tree now; ``wait`` then gives a result whose last stage is ``killed``."""


class Executor(Protocol):
    """Runs jobs, ``slots`` at once. Where is its own affair."""

    @property
    def slots(self) -> int: ...

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        """Run ``setup_commands`` once, in a copy of ``pristine`` at ``setup``. BaselineError where one fails."""

    def ready(self, slot: int) -> bool:
        """Whether a run could be started there now: its host answers, and nothing runs in it."""

    def require(self, slot: int) -> None:
        """Asked before a run there is written down: PlaceTaken where somebody computes there, or it is not ready."""

    def start(self, request: RunRequest) -> RunHandle: ...

    def recover(self, run_dir: Path) -> RunResult | None:
        """The result of a dead daemon's run that had ended by itself; else None, and nothing of it is left alive."""

    def warnings(self, task: Task | None = None) -> Sequence[str]:
        """What the user should know about this machine (jobs are not isolated); also what ``task`` cannot have here."""

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        """Facts that make results comparable: ``tier``, ``device``, ``host``, ``cpu``, ``python`` (of the jobs)."""


# ---------------------------------------------------------------------- what proposes
HOOK_SAYS = "A hook says: "
"""What a note begins with that no person has written."""


@dataclass(frozen=True, slots=True)
class ResearchState:
    """Code, history and notes, frozen at one instant.

    code: each editable file at ``parent``, not redacted, so that edits fit. recent: the last 32 decided experiments,
    oldest first; top: the five best; own: the role's own before those, up to 32. seed: of every random choice of the
    policy. incumbent: commit of the best, where ``parent`` is another one. failures: decided experiments by label.
    streak: experiments in a row that were not kept. under_way: proposed and not decided yet, oldest first. memo:
    ``autoresearch.md``. repair: a failed proposal to be fixed. outlook: what a search beside the policy believes.
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
    under_way: tuple[Experiment, ...] = ()
    memo: str = ""
    repair: Repair | None = None
    outlook: Outlook | None = None
    redactor: Redactor = field(default_factory=Redactor, compare=False, repr=False)

    @property
    def round_seed(self) -> int:
        """Of random choices that are the same for all members of a round."""
        return derive_seed(0, 0, self.round_id) if self.task.proposing.group > 1 else self.seed


class Policy(Protocol):
    """Proposes edits.

    ``propose`` may take minutes; it raises Interrupted soon after ``cancel`` is set, PolicyError when it has no usable
    proposal, EnvironmentFailure when its service cannot be reached (the loop backs off). The same state gives the same
    proposal where no model is asked.
    """

    @property
    def name(self) -> str:
        """As in ``--policy``, e.g. ``search`` or ``command:./propose.sh``."""

    @property
    def repairs(self) -> int:
        """How often it can be given back a proposal whose run failed for a simple reason (``state.repair``)."""

    def propose(self, state: ResearchState, cancel: Cancel) -> Proposal: ...


class AnswerLog(Protocol):
    """Where a policy that asks a model writes each answer down, before it does anything with it."""

    def record(self, number: int, answer: Answer) -> None:
        """Store it and charge its cost to experiment ``number``; on disk when it returns. From any thread."""


class Purse(Protocol):
    """What models may cost."""

    def check(self) -> None:
        """Raise SpendCapReached where nothing more may be spent; called before each question to a model."""


class TrialHistory(Protocol):
    """What a search learns from: all decided experiments of the session whose changes are known, in order of number."""

    def trials(self, after: int = -1) -> Sequence[Trial]: ...


class Adapters(Protocol):
    """Which version of the local policy answers, and for which model. From any thread."""

    def known(self, base: BaseModel) -> BaseModel:
        """A model of a server with its hash, where a folder of it is known here; else as it is."""

    def in_use(self, base: BaseModel) -> ServedAdapter | None:
        """The version for this model to answer with from now on, its files whole; None: the plain model."""


class Learning(Protocol):
    """Learner runs beside a session; they are processes of their own, and never fail it."""

    @property
    def cron(self) -> str:
        """When one is due (crontab(5), UTC); empty: not by the clock."""

    def request(self) -> None:
        """One is due. From any thread."""

    def due(self) -> bool:
        """Whether one is due, or at work, that experiments must wait for."""

    def between(self, enough: Callable[[], object]) -> None:
        """Between two experiments: begin one that is due, tell what became of one, wait where experiments must.

        enough: whether the time of the session is over but for what its end takes; then nothing is waited for or begun,
        and one that this session began is stopped.
        """

    def end(self) -> None:
        """The session ends: one that is at work is stopped, to go on from its checkpoint the next time."""


# ---------------------------------------------------------------------- the journal
@dataclass(frozen=True, slots=True)
class NewSession:
    """What a session is created from. folder: the task's folder, relative to the top of the repository."""

    tag: str
    branch: str
    task_json: str
    policy: str
    executor: str
    base_commit: str
    seed: int
    limits: Limits = field(default_factory=Limits)
    folder: str = "."


@dataclass(frozen=True, slots=True)
class Control:
    """A request from a command to the daemon: ``stop``, ``stop_now``, ``pause``, ``unpause``."""

    id: int
    kind: str
    created_at: datetime
