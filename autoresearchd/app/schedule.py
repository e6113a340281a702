"""Learner runs on a schedule: each a process of its own beside the daemon, with a memory limit and without a say.

What kills a learner (a crash, memory, a full disk, ``kill -9``) is told in a line and changes nothing else: the version
in use goes on answering. A learner outlives its daemon only where that is killed; it then ends by itself.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from autoresearchd.app.policies import Offer
from autoresearchd.app.project import Project
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.settings import LearnSettings
from autoresearchd.learner.lock import held
from autoresearchd.ports import Cancel, Learning, Store
from autoresearchd.workspace import layout

COMMAND = (sys.executable, "-P", "-m", "autoresearchd")
"""Not with the checkout on the path: what lies there under a library's name would be imported."""
_END_S = 20.0
"""How long a learner may take to write its checkpoint when the session ends."""
_LOOK_S = 1.0
_TOLD = 12
"""Lines of a learner's output that are told."""
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
"""Large blocks go back to the system at once: a third less memory at the peak (measured on a model of 135 M)."""


class LearnSchedule:
    """The learner runs of one session (``ports.Learning``).

    Args:
        settings: when and how.
        model: the base model, as ``--model`` takes it.
        root: top of the checkout.
        locks: folder of the lock files.
        since: how many experiments there were since the last learner run began, or since a later time that it is given;
            it need not count beyond ``every``.
        pauses: whether experiments wait while a learner is at work.
        tell: takes a line for whoever watches.
        stopping: set once the session is to end.
        command: what a learner is started with; the tests have another.
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
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._settings, self._model, self._root, self._locks = settings, model, root, locks
        self._since, self._pauses, self._tell, self._stopping = since, pauses, tell, stopping
        self._command = tuple(command)
        self._due = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._last: datetime | None = None
        self._ending = False

    @property
    def cron(self) -> str:
        return self._settings.cron

    def request(self) -> None:
        self._due.set()

    def between(self) -> None:
        self._collect()
        if self._child is None and self._is_due():
            self._due.clear()
            self._begin()
        while self._child is not None and self._pauses and not self._stopping.wait(_LOOK_S):
            self._collect()

    def end(self) -> None:
        if self._child is None:
            return
        self._ending = True
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._collect()

    # -- one run
    def _is_due(self) -> bool:
        if held(self._locks):  # somebody learns by hand, or a learner of a daemon that was killed
            return False
        every = self._settings.every
        return self._due.is_set() or (every is not None and self._since(self._last) >= every)

    def _begin(self) -> None:
        settings = self._settings
        arguments = ["learn", "--algo", settings.algo, "--model", self._model]
        if settings.steps is not None:
            arguments += ["--steps", str(settings.steps)]
        for name, value in settings.options.items():
            arguments += ["--set", f"{name}={value}"]
        self._log.parent.mkdir(parents=True, exist_ok=True)
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
        if settings.memory_mb is not None:
            most = settings.memory_mb * 2**20
            resource.prlimit(self._child.pid, resource.RLIMIT_DATA, (most, most))
        os.setpriority(os.PRIO_PROCESS, self._child.pid, 10)
        self._began, self._last = (
            time.monotonic(),
            datetime.now(UTC),
        )  # one that fails at once is not tried again at once
        waits = "; experiments wait for it" if self._pauses else ""
        self._tell(EventKind.HOUSEKEEPING, f"learning by {settings.algo}, process {self._child.pid}{waits}")

    def _collect(self) -> None:
        """Tell what became of a learner that has ended."""
        code = None if self._child is None else self._child.poll()
        if code is None:
            return
        self._child = None
        minutes = (time.monotonic() - self._began) / 60
        said = self._log.read_bytes()[-20_000:].decode("utf-8", "replace").splitlines()
        lines = [line.rstrip() for line in said if line.strip() and not line.startswith("█")][-_TOLD:]
        if code == 0:
            self._tell(EventKind.HOUSEKEEPING, f"learned in {minutes:.1f} min: " + "\n".join(lines[-4:]))
            return
        if self._ending:
            self._tell(
                EventKind.HOUSEKEEPING, "the learner is stopped with the session; it goes on when it is due again"
            )
            return
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = "\n".join(lines[-3:])
        self._tell(
            EventKind.WARNING,
            f"the learner {how} after {minutes:.1f} min; research goes on with the version in use. {last}",
        )

    @property
    def _log(self) -> Path:
        return layout.public_dir(self._root) / "learner" / "learn.log"


def schedule_of(
    project: Project, session: Session, offer: Offer, stopping: Cancel, tell: Callable[[EventKind, str], None]
) -> Learning | None:
    """The schedule that the user has set for a session with a local policy; None where there is none."""
    settings, executor, store = offer.settings, offer.executor, offer.store
    if not settings.learn.scheduled:
        return None
    name = settings.learn.model or session.policy.partition(":")[2] or settings.local_model
    place = (offer.source / Path(name).expanduser()).resolve()
    if not name or not place.exists():  # a server's name for a model is nothing that a learner could train
        tell(
            EventKind.WARNING,
            f"nothing is learned on the schedule: {name or 'the model'} is no folder on this machine; "
            "name the base model's folder in config.yaml as `learn: {model: DIR}`",
        )
        return None
    single = executor.describe().get("device", "cpu") != "cpu" and executor.slots == 1
    return LearnSchedule(
        settings.learn,
        str(place),
        project.root,
        project.locks,
        lambda begun: since_last(store, session.id, settings.learn.every or 1, begun),
        pauses=settings.learn.pause == "always" or (settings.learn.pause == "auto" and single),
        tell=tell,
        stopping=stopping,
    )


def since_last(store: Store, session_id: int, most: int, begun: datetime | None) -> int:
    """How many of the last ``most`` experiments were begun after the last learner run was, and after ``begun``."""
    times = [run.started_at for run in store.learner_runs()] + ([begun] if begun is not None else [])
    last = max(times, default=None)
    found = store.experiments(session_id, last=most)
    return sum(e.number > 0 and e.decision is not None and (last is None or e.started_at > last) for e in found)
