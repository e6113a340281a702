"""A repository with sessions in it: where things lie, which session a command means, and whether its daemon lives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoresearchd import keys
from autoresearchd.domain.experiment import Session
from autoresearchd.errors import SessionLocked, StoreDamaged, UsageError
from autoresearchd.loop.lock import holder, holders, without_store
from autoresearchd.store import backups, health
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout


@dataclass(frozen=True, slots=True)
class Project:
    """A git repository that autoresearchd works in. root: the top of the user's checkout."""

    root: Path

    @classmethod
    def at(cls, directory: Path) -> Project:
        """The repository that a folder stands in (RepositoryError when there is none)."""
        return cls(layout.find_root(directory))

    @classmethod
    def of_session(cls, directory: Path) -> Project:
        """As ``at``, for whoever looks for a session that is there already."""
        return cls(layout.find_session_root(directory))

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return layout.database_path(self.root)

    def lock(self, tag: str) -> Path:
        """The lock file of a session."""
        return layout.lock_path(self.root, tag)

    @property
    def locks(self) -> Path:
        """The folder of the lock files of all sessions."""
        return layout.locks_dir(self.root)

    @property
    def backups(self) -> Path:
        """The folder of the database's backups."""
        return layout.backups_dir(self.root)

    def open_store(self) -> SqlStore:
        """The store, created or upgraded when needed; never created in the place of one that was lost."""
        self._refuse_lost()
        self._refuse_gone()
        self._refuse_upgrade()
        return SqlStore.open(f"sqlite:///{self.database}").hide(keys.redactor(folder=self.root))

    def existing_store(self) -> SqlStore:
        """The store of a repository that has sessions already; UsageError when it has none."""
        self._refuse_lost()
        self._refuse_gone()
        if not self.database.exists():
            raise UsageError(
                f"no session in {self.root}",
                mend=layout.left_by_a_failed_start(self.root) or layout.how_to_begin(self.root),
            )
        if not health.has_content(self.database):
            raise StoreDamaged(f"{self.database} {health.lack_of(self.database)}", mend=health.MEND)
        return self.open_store()

    def foreign_store(self) -> SqlStore:
        """The store of a repository that is somebody else's: read as it is, neither upgraded nor written to."""
        return SqlStore.open_readonly(self.database)

    def _refuse_lost(self) -> None:
        """Raise StoreDamaged where the database is gone from under a daemon that still writes to it."""
        lost = None if self.database.exists() else without_store(self.database, self.locks)
        if lost is not None:
            raise lost

    def _refuse_gone(self) -> None:
        """Raise StoreDamaged where the database is gone that there are backups of."""
        if not health.has_content(self.database) and backups.generations(self.backups):
            raise health.gone(self.database)

    def _refuse_upgrade(self) -> None:
        """Raise SessionLocked where the database would be upgraded under a daemon of the version that wrote it."""
        held = holders(self.locks)
        older = health.older_revision(self.database) if held else ""
        if not older:
            return
        named = ", ".join(f"session {tag} (process {pid})" for tag, pid in held.items())
        kill = " and ".join(f"`kill -TERM {pid}`" for pid in held.values())
        raise SessionLocked(
            f"the database {self.database} is of an older version (revision {older}) and can be upgraded only once "
            f"no daemon of that version is at work: {named}",
            mend=f"{kill}, wait for the running experiment to end, then `autoresearchd resume`",
        )

    def daemon(self, tag: str, *, ready: bool = False) -> int | None:
        """Pid of the session's live daemon; ``ready``: only when it has found everything in order."""
        return holder(self.lock(tag), ready=ready)

    def pick(self, store: SqlStore, tag: str | None) -> Session:
        """The session that a command means: the one named, the only one with a daemon, or the newest."""
        sessions = list(store.sessions())
        if not sessions:
            raise UsageError(
                f"no session in {self.root}",
                mend=layout.left_by_a_failed_start(self.root) or "`autoresearchd start` begins one",
            )
        if tag is not None:
            found = [s for s in sessions if s.tag == tag]
            if not found:
                known = ", ".join(s.tag for s in sessions)
                raise UsageError(f"no session {tag!r} in {self.root}", mend=f"sessions here: {known}")
            return found[0]
        own = [s for s in sessions if s.policy != "imported"]
        alive = [s for s in sessions if self.daemon(s.tag) is not None]
        if len(alive) > 1:
            raise UsageError(
                "several sessions are running: " + ", ".join(s.tag for s in alive),
                mend="name one: --session TAG, with `resume` TAG alone",
            )
        return alive[0] if alive else (own or sessions)[-1]
