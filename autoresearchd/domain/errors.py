"""The tree of errors: what each means, and the exit code that a command ends with when it meets one."""

from __future__ import annotations

from pathlib import Path

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Cost, Proposal


class AutoresearchdError(Exception):
    """Base of all errors raised on purpose. what: what happened and where; hint: how to fix it, where a user can."""

    exit_code = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.hint}" if self.hint else self.what


class UsageError(AutoresearchdError):
    """What was asked cannot be done as asked."""

    exit_code = 2


def unwritable(path: Path, error: OSError) -> UsageError:
    """A file that was named for output, and that cannot be written."""
    return UsageError(
        f"cannot write {path}: {error.strerror or error}", hint="name a file in a folder that exists and can be written"
    )


class ConfigError(UsageError):
    """A key (``execution.budget``) of task.yaml or a setting is wrong; its line counts from 1, None: it is missing."""

    def __init__(
        self, what: str, *, file: str = "task.yaml", line: int | None = None, key: str = "", hint: str = ""
    ) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {what}" if key else f"{where}: {what}", hint=hint)
        self.file, self.line, self.key = file, line, key


class RepositoryError(UsageError):
    """The git repository cannot be used as it is: dirty, bare, detached."""


class SchemaTooNew(UsageError):
    """The database was written by a newer version of autoresearchd."""


class BaselineError(AutoresearchdError):
    """Experiment 0 does not run, or gives no usable metric."""

    exit_code = 3


class DataMissing(BaselineError):
    """Data that task.yaml names is not there: once runs have had it, a disk that is away, which may come back."""


class LimitReached(AutoresearchdError):
    """A spend or time limit was reached before the first result."""

    exit_code = 4


class MissingCapability(AutoresearchdError):
    """This machine lacks something that the command needs: git, a GPU, a package, a sandbox."""

    exit_code = 5


class SessionLocked(AutoresearchdError):
    """Another daemon holds the session (EX_TEMPFAIL)."""

    exit_code = 75


class EnvironmentFailure(AutoresearchdError):
    """A fault of the surroundings (disk full, git locked), not of an experiment: the loop waits and tries again."""


class SpendCapReached(EnvironmentFailure):
    """No model is asked before a cap is raised or the day is over; whole_session: it is the session's own, for good."""

    def __init__(self, what: str, *, whole_session: bool, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.whole_session = whole_session


class PlaceTaken(EnvironmentFailure):
    """Somebody computes where a run is to begin, or it is not ready. Nobody has failed: the loop looks again soon."""


class ModelsRefused(EnvironmentFailure):
    """Every model refuses its key, its account or its name, which neither waiting nor a restart changes."""

    exit_code = 2


class StoreError(AutoresearchdError):
    """The database cannot be read or written."""


class StoreDamaged(StoreError):
    """The database is damaged, or older than what git knows; nothing is written before ``doctor --repair``."""


class PolicyError(AutoresearchdError):
    """A policy gave no usable proposal: recorded under ``label``; charged: its cost has been counted already.

    adapter: the version of the local policy that answered, as a proposal has it: what it earns is that version's.
    proposal: the one that is refused, where there is a whole one.
    """

    def __init__(self, what: str, *, label: Label = Label.ERROR, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.label, self.charged = label, True
        self.cost: Cost | None = None
        self.adapter = ""
        self.proposal: Proposal | None = None


class Passed(PolicyError):
    """A policy leaves its turn to the search that it works beside."""


class AdapterDamaged(AutoresearchdError):
    """A version of the local policy cannot be used: its files are not those that were learned."""


class NothingRunning(AutoresearchdError):
    """A session was asked to go on, but it has no daemon."""


class Interrupted(AutoresearchdError):
    """Somebody asked to stop at once. limit: it was a limit of the session that did."""

    def __init__(self, what: str, *, hint: str = "", limit: bool = False) -> None:
        super().__init__(what, hint=hint)
        self.limit = limit
