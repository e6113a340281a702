"""A repository with sessions, opened for reading: how each stands, with what only its daemon's lock tells."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from autoresearchd.app.project import Project
from autoresearchd.domain.quantities import format_duration
from autoresearchd.domain.redaction import Redactor
from autoresearchd.loop.upkeep.session_lock import starting, waiting
from autoresearchd.store.failed_start import FailedStart, recall
from autoresearchd.store.reader import Reader
from autoresearchd.workspace import layout

SILENT_S = 60.0
"""A daemon writes a heartbeat every ten seconds, whatever else it does."""


class Place:
    """A repository with at least one session, opened for reading."""

    def __init__(self, project: Project, reader: Reader | None = None) -> None:
        self.project, self.root = project, project.root
        self.reader = reader or Reader(project.journal)

    def pick(self, tag: str | None) -> str:
        sessions = [(session.tag, session.policy) for session in self.reader.sessions()]
        return self.project.choose(sessions, tag, self.reader.holder)

    def failed_start(self, tag: str | None) -> FailedStart | None:
        """The session ``tag`` that ended before its first result; without a tag: where nothing has worked since."""
        sessions = self.reader.sessions()
        found = recall(layout.failed_start_path(self.root), [session.tag for session in sessions])
        if found is None or tag is not None:
            return found if found is not None and found.tag == tag else None
        latest = max((self.reader.heartbeat(session.tag) for session in sessions), default=None)
        older = latest is None or latest < found.ended_at
        return found if older and not any(self.alive(session.tag) for session in sessions) else None

    def redactor(self, tag: str) -> Redactor:
        """For what the jobs of a session print, as long as its daemon has not cleaned it."""
        from autoresearchd.app.known_secrets import session_redactor  # it takes what `status` does without

        return session_redactor(self.root, self.reader.job_environment(tag))

    def alive(self, tag: str) -> bool:
        return self.project.daemon(tag) is not None or self.reader.holder(tag) is not None

    def status(self, tag: str) -> dict[str, Any]:
        """As ``status --json`` prints it; of a daemon that the database does not know yet, or cannot, what it does."""
        here = self.project.daemon(tag)
        elsewhere = self.reader.holder(tag) if here is None else None
        status = self.reader.status(tag, alive=(here or elsewhere) is not None)
        if elsewhere is not None:
            status["session"] |= {"pid": elsewhere.pid, "host": elsewhere.host}
        pid = starting(self.project.lock(tag)) if layout.valid_tag(tag) else None
        if pid is not None:  # what the database tells is of the daemon before this one
            status["session"] |= {"state": "running", "pid": pid, "reason": "starting"}
            status["session"].pop("extend", None)
            status |= {"current": None, "under_way": []}
            return status
        if reason := self.waits(tag):
            status["session"] |= {"state": "backing_off", "reason": reason}
        return status

    def waits(self, tag: str) -> str:
        """What a daemon waits for that could not say so in its database, where nothing new is read then."""
        if not layout.valid_tag(tag):
            return ""
        reason = waiting(self.project.lock(tag))
        if not reason and self.project.daemon(tag, ready=True) is not None:
            silent = (datetime.now(UTC) - self.reader.heartbeat(tag)).total_seconds()
            if silent > SILENT_S:
                reason = f"the daemon has not written its database for {format_duration(silent)}: its disk may be "
                reason += "read-only, or the process is stopped; daemon.log may say more"
        return reason
