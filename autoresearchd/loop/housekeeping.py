"""What happens beside the loop, on APScheduler's threads: requests of commands, heartbeat, backups, disk space.

Packing git waits for the loop, and so do learner runs.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from autoresearchd.domain.duration import format_duration
from autoresearchd.domain.events import EventKind
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Phase
from autoresearchd.errors import AutoresearchdError, EnvironmentFailure, StoreDamaged
from autoresearchd.loop.laboratory import Laboratory
from autoresearchd.store import backups

REQUESTS_S = 0.5
HEARTBEAT_S = 10
DISK_S = 30
BACKUP_S = 3600
PACK_EVERY = 500
"""Experiments between two packings of git: about 1,500 loose objects, which git packs in under a second."""

LOW_DISK_BYTES = 200 * 2**20


class Housekeeping:
    """Starts with the daemon and ends with it. ``between`` is called by the loop between two experiments.

    A backup of the journal is made when the daemon starts (unless one is younger than an hour), every hour, and when it
    ends.
    """

    def __init__(self, lab: Laboratory, active_seconds: Callable[[], float], backup: Path) -> None:
        self._lab = lab
        self._active_seconds = active_seconds
        self._backup = backup
        self._free = threading.Event()
        self._free.set()
        self._damage: StoreDamaged | None = None
        self._since_pack = 0
        self._scheduler = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(2)}, timezone="UTC", job_defaults={"coalesce": True}
        )

    def __enter__(self) -> Housekeeping:
        self.watch_disk()
        add = self._scheduler.add_job
        # Looked for here, not by the loop: that may be waiting for a policy, a set-up or a service for minutes.
        add(self._quietly, "interval", seconds=REQUESTS_S, args=[self._obey], misfire_grace_time=None)
        add(self._quietly, "interval", seconds=HEARTBEAT_S, args=[self._beat], misfire_grace_time=None)
        add(self._quietly, "interval", seconds=DISK_S, args=[self.watch_disk], misfire_grace_time=None)
        add(self._quietly, "interval", seconds=BACKUP_S, args=[self._copy], misfire_grace_time=None)
        if self._lab.learning is not None and self._lab.learning.cron:
            when = CronTrigger.from_crontab(self._lab.learning.cron, timezone="UTC")
            add(self._lab.learning.request, when, misfire_grace_time=None)
        if not self._has_young_backup():
            add(self._quietly, args=[self._copy], misfire_grace_time=None)
        self._scheduler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scheduler.shutdown(wait=True)
        if self._lab.learning is not None:
            self._quietly(self._lab.learning.end)
        if not isinstance(error, StoreDamaged):
            self._quietly(self._copy)

    def between(self) -> None:
        """Between two experiments: refuse to begin one on a full disk; pack git when it is due and nothing runs."""
        if self._damage is not None:
            raise self._damage
        if not self._free.is_set():
            self.watch_disk()
        if not self._free.is_set():
            raise EnvironmentFailure(
                f"less than {LOW_DISK_BYTES // 2**20} MB are free on the disk of {self._lab.site.source}",
                mend="free some space; research goes on by itself",
            )
        if self._lab.learning is not None:
            self._quietly(self._lab.learning.between)
        self._since_pack += 1
        if self._since_pack >= PACK_EVERY:
            self._since_pack = 0
            started = self._lab.clock.monotonic()
            self._quietly(self._lab.workspace.pack)
            took = format_duration(self._lab.clock.monotonic() - started)
            self._lab.emit(EventKind.HOUSEKEEPING, f"packed git in {took}")

    def watch_disk(self) -> None:
        """Note whether there is room for another experiment."""
        if shutil.disk_usage(self._lab.site.source).free < LOW_DISK_BYTES:
            self._free.clear()
        else:
            self._free.set()

    def _obey(self) -> None:
        """Carry out what commands have asked for."""
        stop = self._lab.stop
        for control in self._lab.store.take_controls(self._lab.session_id):
            match control.kind:
                case "stop" | "stop_now":
                    stop.request("stopped by command", now=control.kind == "stop_now")
                case "pause":
                    stop.paused.set()
                case "unpause":
                    stop.paused.clear()
        if stop.announce():
            say_that_it_stops(self._lab, self._lab.store.latest(self._lab.session_id))

    def _beat(self) -> None:
        self._lab.store.heartbeat(self._lab.session_id, self._lab.clock.now(), self._active_seconds())

    def _copy(self) -> None:
        try:
            backups.make(self._lab.store.backup, self._backup, self._lab.clock.now())
        except StoreDamaged as error:
            self._damage = error  # ends the loop before its next experiment: what it wrote might be lost
            raise

    def _has_young_backup(self) -> bool:
        oldest = f"{self._lab.clock.now() - timedelta(seconds=BACKUP_S):%Y%m%dT%H%M%S}"
        found = backups.generations(self._backup)
        return bool(found) and found[0].name > oldest

    def _quietly(self, job: Callable[[], None]) -> None:
        """A failing job is reported and tried again at its next turn."""
        try:
            job()
        except (AutoresearchdError, OSError) as error:
            self._lab.emit(EventKind.WARNING, f"housekeeping: {error}")


def say_that_it_stops(lab: Laboratory, experiment: Experiment | None) -> None:
    """Tell whoever watches that the session stops, and after what: the experiment that is open, if one is."""
    if lab.stop.now.is_set():
        words = "stopping at once"
    elif experiment is not None and experiment.phase is Phase.PROPOSING:
        words = f"stopping after experiment {experiment.number}, or now if a model keeps it waiting"
    elif experiment is not None and experiment.phase is not Phase.DECIDED:
        words = f"stopping after experiment {experiment.number}"
    else:
        words = "stopping"
    number = experiment.number if experiment is not None else None
    again = "" if lab.stop.now.is_set() else "; ask again to stop at once"
    lab.emit(EventKind.STOPPING, words + again, experiment=number)
    with contextlib.suppress(AutoresearchdError):  # it is said in the log, and it stops all the same
        session = lab.store.session(lab.tag)
        lab.store.set_state(lab.session_id, session.state, lab.clock.now(), pid=session.pid, reason=words)
