"""What happens beside the loop, on APScheduler's threads: requests of commands, heartbeat, backups, disk space.

Packing git waits for the loop.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from autoresearchd.domain.duration import format_duration
from autoresearchd.domain.events import EventKind
from autoresearchd.errors import AutoresearchdError, EnvironmentFailure
from autoresearchd.loop.laboratory import Laboratory

REQUESTS_S = 0.5
HEARTBEAT_S = 10
DISK_S = 30
BACKUP_S = 3600
PACK_EVERY = 500
"""Experiments between two packings of git: about 1,500 loose objects, which git packs in under a second."""

LOW_DISK_BYTES = 200 * 2**20


class Housekeeping:
    """Starts with the daemon and ends with it. ``between`` is called by the loop between two experiments."""

    def __init__(self, lab: Laboratory, active_seconds: Callable[[], float], backup: Path) -> None:
        self._lab = lab
        self._active_seconds = active_seconds
        self._backup = backup
        self._free = threading.Event()
        self._free.set()
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
        self._scheduler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._scheduler.shutdown(wait=True)

    def between(self) -> None:
        """Between two experiments: refuse to begin one on a full disk; pack git when it is due and nothing runs."""
        if not self._free.is_set():
            self.watch_disk()
        if not self._free.is_set():
            raise EnvironmentFailure(
                f"less than {LOW_DISK_BYTES // 2**20} MB are free on the disk of {self._lab.site.source}",
                mend="free some space; research goes on by itself",
            )
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

    def _beat(self) -> None:
        self._lab.store.heartbeat(self._lab.session_id, self._lab.clock.now(), self._active_seconds())

    def _copy(self) -> None:
        self._lab.store.backup(self._backup)

    def _quietly(self, job: Callable[[], None]) -> None:
        """A failing job is reported and tried again at its next turn."""
        try:
            job()
        except (AutoresearchdError, OSError) as error:
            self._lab.emit(EventKind.WARNING, f"housekeeping: {error}")
