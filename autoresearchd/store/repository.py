"""The journal of the daemon, which the loop and all above it use as it is: there is one (docs/adr/0046)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Self

from autoresearchd.domain.errors import StoreDamaged
from autoresearchd.domain.redaction import Redactor
from autoresearchd.store.journal.confirmation_records import ConfirmationRecords
from autoresearchd.store.journal.experiment_records import ExperimentRecords
from autoresearchd.store.journal.session_records import SessionRecords
from autoresearchd.store.journal.version_records import VersionRecords
from autoresearchd.store.schema.database import Opened, Within, connect, upgrade
from autoresearchd.store.shared import Shared


class SqlStore(Opened, SessionRecords, ExperimentRecords, ConfirmationRecords, VersionRecords):
    """The journal, in SQLite or a shared PostgreSQL. Open it with ``SqlStore.open``; close it, or use a ``with`` block.

    Each method is one transaction that is on disk when it returns. What is written *lazily* survives the process, but
    not a power cut before the next method that is not lazy returns: what could be lost follows from what is on disk.
    Lists are oldest first. Safe to use from several threads. Raises StoreError, or EnvironmentFailure when the disk is
    full, the database locked, or its server away; SessionLocked: the session that it had ``leased`` is another's by
    now. Unknown session or experiment: KeyError.

    Not redacted: the text of a proposal's files, which must stay what is committed (an edit that brings a secret in is
    refused before it gets here), the names and the task that a session is created with, and hashes.
    """

    @classmethod
    def open(cls, where: str | Shared, *, busy_timeout: float = 10.0) -> Self:
        """The store at a URL: created when missing, upgraded (after a backup) when it is older. SchemaTooNew."""
        upgrade(where, busy_timeout=busy_timeout)
        database = connect(where, busy_timeout=busy_timeout)
        database.hold()
        return cls(database)

    @classmethod
    def open_readonly(cls, where: Path | Shared) -> Self:
        """The store as it is, never changed; read, an older version's is a StoreError."""
        return cls(connect(where, readonly=True))

    @contextmanager
    def as_one(self) -> Iterator[Self]:
        """The store in the block: all that it does there is on disk when the block ends, or has not happened."""
        with self._db.write() as transaction:
            yield type(self)(Within(self._db.name, transaction))

    def leased(self, tag: str) -> AbstractContextManager[None]:
        return self._db.leased(tag)

    def hide(self, redactor: Redactor) -> Self:
        """Hide what this redactor knows, too, in all that is written from now on; the store itself."""
        self._db.redactor = self._db.redactor.joined(redactor)
        return self

    @property
    def redactor(self) -> Redactor:
        """What hides in all that is written."""
        return self._db.redactor

    def refuse(self, error: StoreDamaged) -> None:
        """Write nothing from now on, and raise the error where that is asked for."""
        self._db.refusal = error

    def backup(self, target: Path) -> None:
        self._db.copy_to(target)
