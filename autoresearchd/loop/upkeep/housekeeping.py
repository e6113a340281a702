"""What happens beside the loop, each in a thread: requests of commands, heartbeat, backups, disk space.

They keep to the monotonic clock, as the other one may be set; learner runs that are due by that are APScheduler's.
Packing git waits for the loop, and so do learner runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import threading
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Self

from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.cron import CronTrigger

from autoresearchd.domain.errors import AutoresearchdError, EnvironmentFailure, SessionLocked, StoreDamaged, StoreError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.domain.labels import Phase
from autoresearchd.domain.ports import EventKind
from autoresearchd.domain.quantities import format_duration
from autoresearchd.loop.context import Context
from autoresearchd.loop.upkeep.service_manager import notify
from autoresearchd.store import backups
from autoresearchd.store.repository import SqlStore

REQUESTS_S = 0.5
HEARTBEAT_S = 10
DISK_S = 30
BACKUP_S = 3600
PACK_EVERY = 500
"""Experiments between two packings of git: about 1,500 loose objects, which git packs in under a second."""

LOW_DISK_BYTES = 200 * 2**20


class Housekeeping:
    """Starts with the daemon and ends with it. A backup is made when it starts, every hour, and when it ends.

    A journal that is moved or deleted would take all that is written from then on with it: that is looked for with each
    heartbeat and before each experiment; it is backed up once more, and the session ends. So it does where the journal
    was written over, but then it is not backed up, and nothing more is written (``refuse``: by the store). Of a journal
    on a server there is neither file nor backup (None); where another daemon got the session, this one ends at once.
    """

    def __init__(
        self,
        lab: Context,
        active_seconds: Callable[[], float],
        backup: Path | None,
        database: Path | None = None,
        refuse: Callable[[StoreDamaged], None] = lambda error: None,
    ) -> None:
        self._lab, self._active_seconds, self._backup = lab, active_seconds, backup
        self._database, self._refuse = database, refuse
        self._looking = threading.RLock()
        self._opened = database.stat() if database is not None and database.exists() else None
        self._stamp: tuple[int, int] | None = None
        self._mark: backups.Mark | None = None
        self._overwritten, self._room, self._since_pack = False, True, 0
        self._lost: StoreDamaged | SessionLocked | None = None
        self._said: dict[Callable[..., None], str] = {}
        self._damage: StoreDamaged | None = None
        self._over, self._threads = threading.Event(), list[threading.Thread]()
        self._scheduler: BackgroundScheduler | None = None

    def __enter__(self) -> Self:
        self.watch_disk()
        self._remember()
        # Looked for here, not by the loop: that may be waiting for a policy, a set-up or a service for minutes.
        jobs = [(REQUESTS_S, self._obey), (HEARTBEAT_S, self._beat), (DISK_S, self.watch_disk)]
        if self._backup is not None:
            jobs.append((BACKUP_S, self._copy))
        learning = self._lab.learning
        if learning is not None and learning.cron:
            self._scheduler = BackgroundScheduler(timezone="UTC")
            when = CronTrigger.from_crontab(learning.cron, timezone="UTC")  # config.yaml was checked when it was read
            self._scheduler.add_job(learning.request, when, coalesce=True, misfire_grace_time=None)
            self._scheduler.start()
            jobs.append((HEARTBEAT_S, self._scheduler.wakeup))  # it sleeps until the next one, by the clock of before
        self._threads = [threading.Thread(target=self._repeat, args=job, daemon=True) for job in jobs]
        for thread in self._threads:
            thread.start()
        return self

    def _repeat(self, seconds: float, job: Callable[[], None]) -> None:
        wait = 0.0 if job == self._copy else seconds
        while not self._over.wait(wait):
            wait = seconds
            try:
                self._quietly(job)
            except Exception as error:  # noqa: BLE001  # recorded with its traceback; other turns follow
                words = f"housekeeping: {type(error).__name__}: {error}"
                if self._said.get(job) != words:
                    self._said[job] = words
                    self._lab.emit(EventKind.FAULT, words, traceback=traceback.format_exc())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._scheduler is not None:
            self._scheduler.shutdown()
        if self._lab.learning is not None:
            self._quietly(self._lab.learning.end)
        self._quietly(self.watch_database)
        if (self._lost is not None or not isinstance(error, StoreDamaged)) and not self._overwritten:
            self._quietly(self._copy)
        of_that = error is None or isinstance(error, StoreError) or isinstance(self._lost, SessionLocked)
        if self._lost not in (None, error) and of_that:
            raise self._lost from error  # what else the store said came of that

    def between(self, enough: Callable[[], object]) -> None:
        """Between two experiments: refuse to begin one on a full disk; pack git when it is due and nothing runs.

        enough: see ``ports.Learning``.
        """
        self.watch_database()
        for trouble in (self._lost, self._damage):
            if trouble is not None:
                raise trouble
        self._remember()
        if not self._room:
            self.watch_disk()
        if not self._room:
            what = f"less than {LOW_DISK_BYTES // 2**20} MB are free on the disk of {self._lab.site.source}"
            raise EnvironmentFailure(what, hint="free some space; research goes on by itself")
        if self._lab.learning is not None:
            self._quietly(self._lab.learning.between, enough)
        self._since_pack += 1
        if self._since_pack >= PACK_EVERY:
            self._since_pack = 0
            started = self._lab.clock.monotonic()
            self._quietly(self._lab.workspace.pack)
            took = format_duration(self._lab.clock.monotonic() - started)
            self._lab.emit(EventKind.HOUSEKEEPING, f"packed git in {took}")

    def holds(self) -> bool:
        """Whether a learner is due, or at work, that experiments are not to be measured beside."""
        with contextlib.suppress(AutoresearchdError, OSError):  # ``between`` tells it
            return self._lab.learning is not None and self._lab.learning.due()
        return False

    def watch_disk(self) -> None:
        self._room = shutil.disk_usage(self._lab.site.source).free >= LOW_DISK_BYTES

    def watch_database(self) -> None:
        """End the session where the journal is not the file in its place any more; the store still has it."""
        with self._looking:  # the loop and the heartbeat look at the same time, perhaps
            if self._database is None or self._opened is None or self._mark is None or self._lost is not None:
                return
            try:
                facts = self._database.stat()
                moved, stamp = not os.path.samestat(facts, self._opened), (facts.st_ctime_ns, facts.st_size)
                trace = "" if moved or stamp == self._stamp else backups.traces(self._database, self._mark)
                self._stamp = stamp
            except FileNotFoundError:
                moved, trace = True, ""
            except (OSError, sqlite3.Error, StoreError):
                return  # it cannot be told now; the next look does
            if moved or trace:
                self._overwritten = bool(trace)
                self._give_up_journal(self._database, trace)

    def _give_up_journal(self, database: Path, trace: str) -> None:
        """The file is no more this session's. trace: what shows that it was written over; else it is another one."""
        what = f"the database {database} was moved, deleted or replaced while the session wrote to it"
        hint = (
            f"`autoresearchd doctor --repair` restores it from git and the newest backup in {self._backup}, "
            f"which has all of it; then `autoresearchd resume {self._lab.tag}` goes on"
        )
        if trace:
            what = f"the database {database} was written over while the session used it: it {trace}"
            hint = backups.OVERWRITTEN.format(path=database)
        self._lost = StoreDamaged(what, hint=hint)
        self._lab.emit(EventKind.WARNING, str(self._lost))
        self._lab.stop.end(what)
        if trace:
            self._refuse(self._lost)
        else:
            self._quietly(self._copy)

    def _remember(self) -> None:
        if self._database is not None:
            session, latest = self._lab.store.session(self._lab.tag), self._lab.store.latest(self._lab.session_id)
            newest = -1 if latest is None else latest.number
            self._mark = backups.Mark(session.tag, session.seed, session.base_commit, newest)

    def _obey(self) -> None:
        stop, store, session_id = self._lab.stop, self._lab.store, self._lab.session_id
        for control in store.take_controls(session_id):
            match control.kind:
                case "stop" | "stop_now":
                    stop.request("stopped by command", now=control.kind == "stop_now")
                case "pause":
                    stop.paused.set()
                case "unpause":
                    stop.paused.clear()
                case "confirm":
                    stop.confirm.set()
        if stop.announce():
            test, latest = store.open_confirmation_of(session_id), store.latest(session_id)
            tested = latest if test is None else store.experiment(session_id, test.experiment)
            say_that_it_stops(self._lab, tested, confirming=test is not None)

    def _beat(self) -> None:
        notify(WATCHDOG="1")  # first: a store that is away is waited for, and no reason to be killed
        self.watch_database()
        self._lab.store.heartbeat(self._lab.session_id, self._lab.clock.now(), self._active_seconds())

    def _copy(self) -> None:
        try:
            with self._looking:
                known = self._lost
                self.watch_database()
                if self._backup is None or self._overwritten or self._lost is not known:
                    return  # a stranger's is no backup of ours; one that is gone has been copied just now
            # Neither the heartbeat nor the loop waits for that; it has a lock of its own.
            backups.make(self._lab.store.backup, self._backup, self._lab.clock.now())
        except StoreDamaged as error:
            self._damage = error  # ends the loop before its next experiment: what it wrote might be lost
            raise

    def _quietly(self, job: Callable[..., None], *arguments: object) -> None:
        """Do a job; one that fails is reported and tried again at its next turn."""
        try:
            job(*arguments)
            self._said.pop(job, None)
        except (AutoresearchdError, OSError) as error:
            # Once: a server may be away for an hour, and is asked twice a second.
            if self._said.get(job) != str(error):
                self._said[job] = str(error)
                self._lab.emit(EventKind.WARNING, f"housekeeping: {error}")
            if isinstance(error, SessionLocked) and self._lost is None:
                self._lost = error
                self._lab.stop.request(error.what, now=True)


def say_that_it_stops(lab: Context, experiment: Experiment | None, *, confirming: bool = False) -> None:
    """Tell whoever watches that the session stops, and after what: the experiment or confirmation that is open."""
    words, number = "stopping", None if experiment is None else experiment.number
    if lab.stop.now.is_set():
        words = "stopping at once"
    elif confirming:
        words = f"stopping once experiment {number} is confirmed, or is not"
    elif experiment is not None and experiment.phase is not Phase.DECIDED:
        waits = ", or now if a model keeps it waiting" if experiment.phase is Phase.PROPOSING else ""
        words = f"stopping after experiment {number}{waits}"
    again = "ask again, by a signal or `stop --now`, to stop" if lab.stop.asked else "`autoresearchd stop --now` stops"
    more = "" if lab.stop.now.is_set() else f"; {again} at once"
    lab.emit(EventKind.STOPPING, words + more, experiment=number)
    note_reason(lab.store, lab.tag, lab.clock.now(), words)


def note_reason(store: SqlStore, tag: str, at: datetime, reason: str) -> None:
    """Write down, for ``status``, what keeps a session as it is; the log says it, too, so a failure changes nothing."""
    with contextlib.suppress(AutoresearchdError, KeyError):  # KeyError: the row went with its database
        session = store.session(tag)
        store.set_state(session.id, session.state, at, pid=session.pid, reason=reason)
