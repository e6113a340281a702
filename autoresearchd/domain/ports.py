"""The doors of the house: small Protocols between the loop and what it uses. ``app/`` alone picks the adapters.

Contract suites that every adapter must pass live in ``tests.contract``. Unless a method says otherwise, adapters
are called from one thread, the loop's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from autoresearchd.domain.events import Event
from autoresearchd.domain.experiment import (
    AbortMemory,
    CurvePoint,
    Decision,
    Experiment,
    Limits,
    Measurement,
    Node,
    Note,
    Run,
    RunResult,
    Segment,
    Session,
    StageResult,
    Totals,
    Trial,
)
from autoresearchd.domain.labels import SessionState
from autoresearchd.domain.policy_versions import (
    BaseModel,
    LearnerRun,
    LearnerStatus,
    NewLearnerRun,
    NewVersion,
    PolicyVersion,
    Rewarded,
    ServedAdapter,
)
from autoresearchd.domain.proposal import ASI, Answer, Proposal
from autoresearchd.domain.research_state import ResearchState
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


class EventSink(Protocol):
    """Takes events. Must not raise and must not block for long; may be called from several threads."""

    def emit(self, event: Event) -> None: ...


class Workspace(Protocol):
    """Files under version control. Commits are 40 hex digits. The user's own checkout is never written to.

    All methods raise RepositoryError for what the user must fix and EnvironmentFailure for what may pass (lock, disk).
    """

    def read(self, commit: str, path: str) -> str: ...

    def commit(self, *, number: int, parent: str, files: Mapping[str, str], message: str, when: datetime) -> str:
        """Commit ``files`` (path in the task's folder → text) on ``parent``; refs/autoresearch/<tag>/<number> names it.

        Deterministic and idempotent; the branch does not move. Paths are checked again: existing regular files inside
        the task's folder, no symbolic link.
        """

    def checkout(self, slot: int, commit: str) -> Path:
        """The task's folder in the slot's worktree, which then holds exactly ``commit``; damaged, it is made anew."""

    def tip(self) -> str:
        """Commit that the session branch points at."""

    def parent(self, commit: str) -> str: ...

    def advance(self, old: str, new: str) -> None:
        """Move the session branch by compare-and-swap; RepositoryError when it is at neither: somebody moved it."""

    def damaged(self, commits: Mapping[int, str]) -> Sequence[int]:
        """Of experiments and their commits, those that a power cut took; ``commit`` brings them back."""

    def restore_branch(self, commit: str) -> None:
        """Point the session branch at ``commit`` where a power cut has emptied it; else it is left as it is."""

    def record_discard(
        self, *, number: int, commit: str, incumbent: str, when: datetime, back_to: str | None = None
    ) -> str:
        """``history: revert``: write a discard and its revert (to the incumbent, or ``back_to``); the new tip."""

    def diff(self, old: str, new: str) -> str:
        """Unified diff between two commits, the task's folder only."""

    def pack(self) -> None:
        """Pack loose objects and refs (slow; called when idle, from the housekeeping thread)."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run to execute.

    workspace: the task's folder at the commit; pristine: with nothing edited; setup: what setup commands left; run_dir:
    where logs and the result go.
    """

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
        """Wait until the run has ended, at most ``timeout`` seconds, without polling; None while it runs.

        Never raises for what the job did.
        """

    def kill(self) -> None:
        """End the whole process tree now; ``wait`` then gives a result whose last stage is ``killed``."""


class Executor(Protocol):
    """Runs jobs, ``slots`` at once. Where is its own affair."""

    @property
    def slots(self) -> int: ...

    def setup(self, task: Task, pristine: Path, setup: Path, log: Path, cancel: Cancel) -> None:
        """Run ``setup_commands`` once, in a copy of ``pristine`` at ``setup``. BaselineError where one fails."""

    def start(self, request: RunRequest) -> RunHandle: ...

    def recover(self, run_dir: Path) -> RunResult | None:
        """The result of a dead daemon's run that had ended by itself; else None, and nothing of it is left alive."""

    def warnings(self, task: Task | None = None) -> Sequence[str]:
        """What the user should know about this machine (jobs are not isolated); also what ``task`` cannot have here."""

    def describe(self, task: Task | None = None, setup: Path | None = None) -> Mapping[str, str]:
        """Facts that make results comparable: ``tier``, ``device``, ``host``, ``cpu``, ``python`` (of the jobs)."""


# ---------------------------------------------------------------------- what proposes
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

    def between(self) -> None:
        """Between two experiments: begin one that is due, tell what became of one, wait where experiments must."""

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


class Tree(Protocol):
    """Experiments as a tree to go on from, and how often each was chosen."""

    def tree(self, session_id: int, segment: int, after: int = -1) -> Sequence[Node]:
        """Experiments of a segment with a commit and a value and a number greater than ``after``, in order of number.

        Those that broke a constraint, a size or a gate are left out: what is built on them breaks it, too.
        """

    def add_visit(self, session_id: int, number: int) -> int:
        """Count that an experiment was chosen to go on from; how often it has been, this time included. Lazily."""

    def visits(self, session_id: int) -> Mapping[int, int]:
        """How often experiments were chosen to go on from, by number; without those that never were."""


class Shelf(Protocol):
    """Learner runs, and the versions of the local policy that they made, which belong to the repository.

    All lists are oldest first. Unknown run or version: KeyError.
    """

    def open_learner_run(self, new: NewLearnerRun, at: datetime) -> LearnerRun: ...

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
        """How a run stands now; what is None stays as it was. ``at`` is when it ended, unless it is still running."""

    def learner_runs(self) -> Sequence[LearnerRun]: ...

    def add_version(self, new: NewVersion, at: datetime) -> PolicyVersion:
        """List a version, whose files are in their place, as a candidate."""

    def versions(self) -> Sequence[PolicyVersion]: ...

    def promoted_versions(self) -> Sequence[PolicyVersion]:
        """Those in use, at most one for each base model, promoted last first."""

    def promote_version(
        self, version: str, at: datetime, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        """Put a version to use, with ``metrics`` laid over its own, and retire the one for the same base model."""

    def refuse_version(
        self, version: str, *, reason: str = "", metrics: Mapping[str, Any] | None = None
    ) -> PolicyVersion:
        """Keep a candidate and do not use it. One that is or was in use is rolled back instead: StoreError."""

    def roll_back_version(self, version: str, *, reason: str = "") -> PolicyVersion | None:
        """Refuse the version in use and bring back the one promoted last before it, if any. StoreError: not in use."""

    def rewards(self, session_id: int, after: int = -1) -> Sequence[Rewarded]:
        """What decided experiments with a number greater than ``after`` earned, in order of number, if anything."""


class Store(Tree, Shelf, Protocol):
    """The journal; lists are oldest first.

    Each method is one transaction that is on disk when it returns. What is written *lazily* survives the process, but
    not a power cut before the next method that is not lazy returns: what could be lost follows from what is on disk.
    Safe to use from several threads. Raises StoreError, or EnvironmentFailure when the disk is full or the database
    locked. Unknown session or experiment: KeyError.
    """

    def create_session(self, new: NewSession, at: datetime) -> Session: ...

    def delete_session(self, tag: str) -> None:
        """Forget a session that never got a baseline."""

    def session(self, tag: str) -> Session: ...

    def sessions(self) -> Sequence[Session]: ...

    def set_state(
        self, session_id: int, state: SessionState, at: datetime, *, pid: int | None, reason: str = ""
    ) -> None: ...

    def set_limits(self, session_id: int, limits: Limits) -> None: ...

    def heartbeat(self, session_id: int, at: datetime, active_seconds: float) -> None: ...

    def open_segment(self, session_id: int, fingerprint: str, reason: str, hardware: str, at: datetime) -> Segment: ...

    def segment(self, session_id: int) -> Segment | None:
        """The latest segment."""

    # ------------------------------------------------------------------ one experiment, in the order of its phases
    def open_experiment(self, session_id: int, *, parent: str, segment: int, at: datetime) -> Experiment:
        """Allocate the next number, from 0 without gaps; phase ``proposing``. Written lazily."""

    def record_proposal(
        self, session_id: int, number: int, proposal: Proposal, *, diff: str, code_hash: str
    ) -> Experiment:
        """Store the proposal; its cost is counted unless it is ``charged``. Phase ``proposed``.

        ``proposal.parent``, when given, becomes the experiment's. A later attempt (a repair) is taken when measured.
        """

    def record_commit(self, session_id: int, number: int, commit: str) -> Experiment:
        """Phase ``committed``. Written lazily: the commit follows from the proposal."""

    def open_run(self, session_id: int, number: int, seed: int, at: datetime, *, of: int | None = None) -> Run:
        """A run of its own program, or that of experiment ``of``, is about to start; phase ``running``. Lazily."""

    def close_run(
        self, run_id: int, measurement: Measurement, result: RunResult | None, at: datetime, *, last: bool
    ) -> Experiment:
        """Store what a run gave, its curve compressed; phase ``measured`` if it is the ``last``, else ``committed``."""

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
        """Store the decision, phase ``decided``; ``incumbent``: the session's new incumbent (a keep), None: unchanged.

        ``fallen``: keeps that lost their place beside it, with what is decided of them instead; the latest keep that is
        left is then the session's. The branch is moved after.
        """

    def record_overhead(self, session_id: int, number: int, overhead_ms: float) -> None:
        """The experiment is settled: branch and worktree are as decided. Need not survive a power cut."""

    def record_answer(self, session_id: int, number: int, answer: Answer, at: datetime) -> None:
        """Store an answer of a model and count its cost in the session's totals."""

    def answers(self, session_id: int, number: int) -> Sequence[Answer]: ...

    def spent_since(self, at: datetime) -> float:
        """US dollars that answers of all sessions have cost since ``at``; unknown prices count nothing."""

    def charges_since(self, at: datetime) -> Sequence[tuple[datetime, float]]:
        """What ``spent_since`` adds up: when each answer came and what it cost."""

    # ------------------------------------------------------------------ what was found out
    def experiment(self, session_id: int, number: int) -> Experiment: ...

    def latest(self, session_id: int) -> Experiment | None:
        """The experiment with the highest number."""

    def experiments(self, session_id: int, *, last: int | None = None, role: str | None = None) -> Sequence[Experiment]:
        """Without generations (token ids and messages); ``role``: only those that it proposed."""

    def top(self, session_id: int, segment: int, count: int, maximize: bool) -> Sequence[Experiment]:
        """The best decided experiments of a segment by value, best first."""

    def values(self, session_id: int, segment: int) -> Sequence[float]:
        """Values of all decided experiments of a segment, in order of number."""

    def decided_runs(self, session_id: int, segment: int) -> Sequence[Run]:
        """Good runs of all decided experiments of a segment, in order of experiment and run."""

    def trials(self, session_id: int, after: int = -1) -> Sequence[Trial]: ...

    def diff(self, session_id: int, number: int) -> str: ...

    def find_duplicate(self, session_id: int, code_hash: str) -> int | None:
        """Number of the earliest experiment of the session whose proposal had this ``code_hash``."""

    def totals(self, session_id: int) -> Totals: ...

    def label_counts(self, session_id: int) -> Mapping[str, int]:
        """How many decided experiments ended under each label."""

    def role_stats(self, session_id: int) -> Mapping[str, tuple[int, int, float]]:
        """Of each role (empty: none) its decided experiments, how many of them were kept, and the sum of rewards."""

    def role_turns(self, session_id: int, last: int) -> Sequence[tuple[int, str, bool]]:
        """Of the latest decided experiments that were proposed: number, role, and whether it was kept."""

    def stages(self, run_id: int) -> Sequence[StageResult]: ...

    def curve(self, run_id: int) -> Sequence[CurvePoint]: ...

    # ------------------------------------------------------------------ early abort; need not survive a power cut
    def record_look(self, run_id: int, details: Mapping[str, Any]) -> None:
        """Write a look at a running job down: JSON values, ``progress``, ``forecast`` and ``probability`` by name."""

    def looks(self, run_id: int) -> Sequence[Mapping[str, Any]]: ...

    def remember_aborts(self, session_id: int, memory: AbortMemory) -> None:
        """Keep the figures; the state where one is given, else that of the same segment stays."""

    def abort_memory(self, session_id: int) -> AbortMemory | None: ...

    def add_note(self, session_id: int, text: str, at: datetime) -> Note: ...

    def unseen_notes(self, session_id: int) -> Sequence[Note]: ...

    def mark_notes_seen(self, session_id: int, note_ids: Sequence[int], number: int) -> None: ...

    def add_control(self, session_id: int, kind: str, at: datetime) -> Control: ...

    def take_controls(self, session_id: int) -> Sequence[Control]:
        """Pending requests, oldest first; each is handed out once."""

    def backup(self, target: Path) -> None: ...

    def close(self) -> None: ...
