"""A repository with sessions in it: where things lie, which session a command means, and whether its daemon lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoresearchd import keys
from autoresearchd.domain.errors import SessionLocked, StoreDamaged, UsageError
from autoresearchd.domain.experiment import Session
from autoresearchd.domain.labels import IMPORTED
from autoresearchd.loop.upkeep.session_lock import already_held, holder, holders, without_store
from autoresearchd.store import backups, shared
from autoresearchd.store.repository import SqlStore
from autoresearchd.store.schema import health
from autoresearchd.workspace import layout


class NoSession(UsageError):
    """A repository in which no session was begun, or none is left."""


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
        """The SQLite file, where the journal is in one."""
        return layout.database_path(self.root)

    @property
    def journal(self) -> Path | shared.Shared:
        """Where the journal is: ``database``, or a shared store. UsageError: it is in one, and none is set."""
        return shared.where(self.database)

    @property
    def is_shared(self) -> bool:
        return isinstance(self.journal, shared.Shared)

    def lock(self, tag: str) -> Path:
        return layout.lock_path(self.root, tag)

    @property
    def locks(self) -> Path:
        return layout.locks_dir(self.root)

    @property
    def backups(self) -> Path:
        return layout.backups_dir(self.root)

    def open_store(self, *, repairs: bool = False) -> SqlStore:
        """The store, created or upgraded when needed; never created in the place of one that was lost.

        Raises StoreDamaged: it was lost; SessionLocked: it would be upgraded under a daemon of the version that wrote
        it.
        """
        if not self.is_shared:
            self._refuse_gone()
        place = shared.begin(self.database)
        if isinstance(place, shared.Shared):
            return SqlStore.open(place).hide(keys.redactor(folder=self.root))
        held = {} if repairs else holders(self.locks)  # a repair holds all locks itself
        if older := health.older_revision(self.database) if held else "":
            named = ", ".join(f"session {tag} (process {pid})" for tag, pid in held.items())
            kill = " and ".join(f"`kill -TERM {pid}`" for pid in held.values())
            raise SessionLocked(
                f"the database {self.database} is of an older version (revision {older}) and can be upgraded only once "
                f"no daemon of that version is at work: {named}",
                hint=f"{kill}, wait for the running experiment to end, then `autoresearchd resume`",
            )
        return SqlStore.open(f"sqlite:///{self.database}").hide(keys.redactor(folder=self.root))

    def existing_store(self) -> SqlStore:
        """The store of a repository that has sessions already; NoSession when it has none."""
        self.require_database()
        if not self.is_shared and not health.has_content(self.database):
            raise StoreDamaged(f"{self.database} {health.lack_of(self.database)}", hint=health.HINT)
        return self.open_store()

    def require_database(self) -> None:
        """Raise NoSession where there is no database; StoreDamaged where it is gone."""
        if self.is_shared:
            return
        self._refuse_gone()
        if not self.database.is_file():
            raise self.no_session()

    def no_session(self) -> NoSession:
        hint = layout.left_by_a_failed_start(self.root) or layout.how_to_begin(self.root)
        return NoSession(f"there is no session in {self.root} yet", hint=hint)

    def _refuse_gone(self) -> None:
        """Raise StoreDamaged where the database is gone that a daemon writes to, or that there are backups of."""
        lost = None if self.database.exists() else without_store(self.database, self.locks)
        if lost is not None:
            raise lost
        # Whoever opens a database that is gone may leave an empty one.
        if not health.has_content(self.database) and backups.generations(self.backups):
            raise StoreDamaged(f"{self.database} is gone, but there are backups of it", hint=health.HINT)

    def notes(self) -> list[str]:
        """What whoever begins a session should know of where it is written."""
        if self.is_shared or not self.database.exists() or not shared.configured():
            return []
        return [
            f"the sessions of this repository are in {self.database}, where they began, not in the store that is set"
        ]

    def daemon(self, tag: str, *, ready: bool = False) -> int | None:
        """Pid of the session's live daemon; ``ready``: only when it has found everything in order."""
        return holder(self.lock(tag), ready=ready) if layout.valid_tag(tag) else None

    def refuse_held(self, store: SqlStore, tag: str) -> None:
        """Raise SessionLocked where a daemon holds the session, here or on another machine."""
        if (pid := self.daemon(tag)) is not None:
            raise already_held(tag, pid)
        if (elsewhere := store.holder(tag)) is not None:
            raise elsewhere.error(tag)

    def pick(self, store: SqlStore, tag: str | None) -> Session:
        sessions = [(session.tag, session.policy) for session in store.sessions()]
        return store.session(self.choose(sessions, tag, store.holder))

    def pick_own(self, store: SqlStore, tag: str | None) -> Session:
        """As ``pick``; UsageError where it was imported: nothing can be run, and there are no commits."""
        session = self.pick(store, tag)
        if session.policy == IMPORTED:
            what = f"session {session.tag} was imported: nothing runs there, and it has no program and no commits"
            raise UsageError(what, hint="`autoresearchd sessions list` shows the others, `start` begins one")
        return session

    def choose(self, sessions: Sequence[tuple[str, str]], tag: str | None, elsewhere: Callable[[str], object]) -> str:
        """Of the sessions here (tag, policy), oldest first: the named one, the only running, else the newest.

        elsewhere: whose daemon has one, on whatever machine; None: nobody's.
        """
        if not sessions:
            raise self.no_session()
        tags = [name for name, _ in sessions]
        if tag is not None:
            if tag not in tags:
                what = f"there is no session {tag[:60]!r} in {self.root}"
                raise UsageError(what, hint=f"name one of them: {', '.join(tags)}")
            return tag
        running = [name for name in tags if self.daemon(name) is not None or elsewhere(name) is not None]
        if len(running) > 1:
            what = f"several sessions run in {self.root}: {', '.join(running)}"
            raise UsageError(what, hint=f"say which: --session {' or --session '.join(running)}")
        own = [name for name, policy in sessions if policy != IMPORTED]
        return (running or own or tags)[-1]
