"""A learner as a process: one at a time in a repository, ended by signals, and begun on a schedule by a daemon.

What kills a learner (a crash, memory, a full disk, ``kill -9``) is told in a line and changes nothing else: the version
in use goes on answering. A learner outlives its daemon only where that is killed; it then ends by itself. Where learner
and jobs would share a device, experiments wait: what is measured beside a learner is slower.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from autoresearchd.config.settings import LearnSettings, ModelSettings
from autoresearchd.domain.errors import AutoresearchdError, Interrupted, SessionLocked
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.ports import Cancel, EventKind, Executor, Learning
from autoresearchd.learner.training.constant_values import values_of
from autoresearchd.sandbox.file_locks import hold
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout

Tell = Callable[[str], None]
"""Takes a line for people."""

GOES_ON = {"replay": "the same command goes on from its checkpoint", "live": "live mode keeps no checkpoint"}
"""What becomes of a run that is stopped, by its mode."""
_LOCK = ".learner.lock"  # no session's: no tag begins with a dot
COMMAND = (sys.executable, "-P", "-m", "autoresearchd")
"""Not with the checkout on the path: what lies there under a library's name would be imported."""
_END_S = 20.0  # how long a learner may take to write its checkpoint when the session ends
_LOOK_S = 1.0
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
"""Large blocks go back to the system at once: a third less memory at the peak (measured on a model of 135 M)."""


@contextmanager
def hold_learner_lock(folder: Path) -> Iterator[None]:
    """Be the only learner; SessionLocked where another one is at work. folder: of the locks."""

    def busy() -> SessionLocked:
        pid = learner_pid(folder)
        return SessionLocked(
            f"a learner is at work here{'' if pid is None else f', process {pid}'}",
            hint="wait for its end; `autoresearchd adapters list` then shows what came of it",
        )

    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder / _LOCK, busy=busy) as descriptor:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield


def is_learning(folder: Path) -> bool:
    """Whether a learner is at work."""
    try:
        with hold(folder / _LOCK, shared=True):
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:  # there is no such folder
        return False


def learner_pid(folder: Path) -> int | None:
    """Process id of the learner that was the last to begin, which is the one at work where one is; None: not known."""
    try:
        return int((folder / _LOCK).read_text("ascii"))
    except (OSError, ValueError):
        return None


def stopped_mark(root: Path) -> Path:
    """A file that is there while a learner was stopped together with its session, and none has begun since."""
    return layout.state_dir(root) / "learner" / "stopped"


@contextmanager
def stoppable(mode: str, tell: Tell) -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets, so that a run ends at a checkpoint; the second ends it at once.

    It may come at any time: what a run leaves (a checkpoint, a version) is put in its place as a whole.
    """
    cancel, received, kinds = threading.Event(), list[int](), (signal.SIGINT, signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        for kind in kinds:
            signal.signal(kind, signal.SIG_DFL)  # by the kernel: also in the middle of what torch computes
        received.append(number)
        cancel.set()
        text = f"stopping after what is being computed; {GOES_ON[mode]}. Ctrl-C again ends it at once"
        try:
            tell(text)
        except RuntimeError:  # the signal came while something else was being printed
            os.write(sys.stderr.fileno(), f"{text}\n".encode())

    before = [signal.signal(kind, stop) for kind in kinds]
    try:
        yield cancel
    except Interrupted as error:
        if received:
            error.exit_code = 128 + received[0]
        raise
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)


# ---------------------------------------------------------------------- on a schedule
class LearnSchedule:
    """The learner runs of one session (``ports.Learning``), and its waiting for those that somebody started by hand.

    since: how many experiments were decided since the last learner run began, or since a later time that it is given.
    pauses: whether experiments wait while a learner is at work here. waits: called with what they wait for, and with
    nothing once they go on. free: called before they wait, to give back what the daemon's own model takes.
    """

    def __init__(
        self,
        settings: LearnSettings,
        model: str,
        root: Path,
        locks: Path,
        since: Callable[[datetime | None], int],
        *,
        pauses: bool,
        tell: Callable[[EventKind, str], None],
        stopping: Cancel,
        waits: Callable[[str], None] = lambda reason: None,
        free: Callable[[], None] = lambda: None,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._settings, self._model, self._root, self._locks = settings, model, root, locks
        self.cron = settings.cron
        self._since, self._pauses, self._tell, self._stopping = since, pauses, tell, stopping
        self._waits, self._free, self._command = waits, free, tuple(command)
        self._mark, self._log = stopped_mark(root), layout.public_dir(root) / "learner" / "learn.log"
        self._due = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._last: datetime | None = None
        self._began, self._again = 0.0, False

    def request(self) -> None:
        self._due.set()

    def due(self) -> bool:
        return self._pauses and (self._at_work() or self._is_due())

    def between(self, enough: Callable[[], object]) -> None:
        while True:
            self._collect()
            if enough():
                self.end()
                return
            if self._child is None and self._is_due():
                self._due.clear()
                self._begin()
            if not (self._pauses and self._at_work()):
                return
            self._wait(enough)
            if self._stopping.is_set() or not (enough() or self._mark.exists()):
                return  # else it was killed: once more, before an experiment begins

    def end(self) -> None:
        if self._child is None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._collect(ending=True)

    # -- waiting
    def _at_work(self) -> bool:
        return self._child is not None or is_learning(self._locks)

    def _wait(self, enough: Callable[[], object]) -> None:
        """Until no learner is at work, or the session is to end."""
        pid = learner_pid(self._locks) if self._child is None else self._child.pid
        who = "a learner" if pid is None else f"a learner, process {pid},"
        reason = f"experiments wait: {who} is at work in this repository"
        self._tell(EventKind.WAITING, reason)
        self._waits(reason)
        self._free()
        while self._at_work() and not enough() and not self._stopping.wait(_LOOK_S):
            self._collect()
        if not self._stopping.is_set():  # else it is said by now that the session stops
            self._waits("")

    # -- one run
    def _is_due(self) -> bool:
        # Where the lock is held, somebody learns by hand, or a learner of a daemon that was killed.
        if not self._settings.scheduled or is_learning(self._locks):
            return False
        if self._due.is_set() or self._mark.exists():
            return True
        every = self._settings.every
        return every is not None and self._since(self._last) >= every

    def _begin(self) -> None:
        self._last = datetime.now(UTC)  # one that fails at once is not tried again at once
        settings = self._settings
        arguments = ["learn", "--algo", settings.algo, "--model", self._model]
        if settings.steps is not None:
            arguments += ["--steps", str(settings.steps)]
        for name, value in settings.set.items():
            arguments += ["--set", f"{name}={value}"]
        self._again = self._mark.exists()
        self._mark.unlink(missing_ok=True)  # if it fails this time, it waits for its next turn
        for place in (self._log, self._mark):
            place.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                [*self._command, *arguments],
                cwd=self._root,
                env={**os.environ, **_MALLOC},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if settings.memory_mb is not None:  # it may lift the bound for the jobs that it starts, not for itself
            most, (_, hard) = settings.memory_mb * 2**20, resource.prlimit(self._child.pid, resource.RLIMIT_DATA)
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.prlimit(self._child.pid, resource.RLIMIT_DATA, (soft, hard))
        os.setpriority(os.PRIO_PROCESS, self._child.pid, 10)
        self._began = time.monotonic()
        self._tell(EventKind.HOUSEKEEPING, f"learning by {settings.algo}, process {self._child.pid}")

    def _collect(self, *, ending: bool = False) -> None:
        """Tell what became of a learner that has ended. ending: it was stopped."""
        code = None if self._child is None else self._child.poll()
        if code is None:
            return
        self._child = None
        minutes = (time.monotonic() - self._began) / 60
        said = self._log.read_bytes()[-20_000:].decode("utf-8", "replace").splitlines()
        lines = [line.rstrip() for line in said if line.strip() and not line.startswith("█")]
        if code == 0:
            self._tell(EventKind.LEARNED, f"learned in {minutes:.1f} min: " + "\n".join(lines[-4:]))
            return
        if ending:
            self._mark.touch()
            resumed = "it goes on when the session is resumed"
            self._tell(EventKind.HOUSEKEEPING, f"the learner is stopped with the session; {resumed}")
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        then = "research goes on with the version in use"
        if code < 0 and not self._again:
            # At once: its checkpoint is one of the answers that there are, and the next experiment adds to them.
            self._mark.touch()
            then = "it is begun once more, from its checkpoint where it has one"
        last = "\n".join(lines[-3:])
        self._tell(EventKind.LEARNER_FAILED, f"the learner {how} after {minutes:.1f} min; {then}. {last}")


def schedule_of(
    root: Path,
    session: Session,
    store: SqlStore,
    settings: ModelSettings,
    executor: Executor,
    *,
    stopping: Cancel,
    tell: Callable[[EventKind, str], None],
    waits: Callable[[str], None] = lambda reason: None,
    free: Callable[[], None] = lambda: None,
) -> Learning | None:
    """The learner runs of a session, as the user has set them; None where it need not know of any."""
    learn = settings.learn
    pauses = learn.pause == "always" or (
        learn.pause == "auto" and session.executor.startswith("local") and _shares(executor, learn)
    )
    place = _place(root / session.folder, session, settings, tell) if learn.scheduled else None
    if place is None:
        learn = learn.model_copy(update={"every": None, "cron": ""})
    if not learn.scheduled and not pauses:
        return None
    return LearnSchedule(
        learn,
        str(place or ""),
        root,
        layout.locks_dir(root),
        lambda begun: since_last(store, session.id, begun),
        pauses=pauses,
        tell=tell,
        stopping=stopping,
        waits=waits,
        free=free,
    )


def _place(
    source: Path, session: Session, settings: ModelSettings, tell: Callable[[EventKind, str], None]
) -> Path | None:
    """The base model of a schedule; None where nothing could be learned, which is told before anybody waits for it."""
    kind, _, named = session.policy.removeprefix("hybrid:").partition(":")
    if kind != "local":
        return None  # it has no answers of a local model, and only waits for a learner that somebody starts
    name = settings.learn.model or named or settings.local.model
    place = (source / Path(name).expanduser()).resolve()
    if not name or not place.exists():  # a server's name for a model is nothing that a learner could train
        tell(
            EventKind.WARNING,
            f"nothing is learned on the schedule: {name or 'the model'} is no folder on this machine; "
            "name the base model's folder in config.yaml as `learn: {model: DIR}`",
        )
        return None
    try:
        values_of(settings.learn.set, settings.learn.algo)
    except AutoresearchdError as error:
        tell(EventKind.WARNING, f"nothing is learned on the schedule: learn.set of config.yaml: {error.what}")
        return None
    return place


def _shares(executor: Executor, settings: LearnSettings) -> bool:
    """Whether a learner would compute on what jobs compute on: the processor, or one of the GPUs that slots use."""
    device, learner = executor.describe().get("device", "cpu"), settings.set.get("device", "auto")
    if device == "cpu" or learner == "cpu":
        return device == "cpu"
    index = learner.partition(":")[2]  # slots take the first GPUs, and so does a learner that is told no number
    return not (index.isdigit() and int(index) >= executor.slots)


def since_last(store: SqlStore, session_id: int, begun: datetime | None) -> int:
    """How many experiments were decided after the last learner run began, and after ``begun``; without the baseline."""
    times = [run.started_at for run in store.learner_runs()] + ([begun] if begun is not None else [])
    return store.decided_since(session_id, max(times, default=None))
