"""The tree of errors, what each means, and the exit code that a command ends with when it meets one.

::

    AutoresearchdError             1   something failed; every error below says what, where and how to fix it
    ├── UsageError                 2   what was asked cannot be done as asked: arguments, state of the repository
    │   ├── ConfigError            2   task.yaml or a setting is wrong: names file, line and key
    │   ├── RepositoryError        2   the git repository cannot be used as it is: dirty, bare, detached, …
    │   └── SchemaTooNew           2   the database was written by a newer version
    ├── BaselineError              3   experiment 0 does not run or gives no metric
    ├── LimitReached               4   a spend or time limit was reached before the first result
    ├── MissingCapability          5   this machine lacks something: git, a GPU, a package, a sandbox
    ├── SessionLocked             75   another daemon holds the session (EX_TEMPFAIL)
    ├── EnvironmentFailure         1   a fault outside any experiment: disk full, git locked; the loop backs off
    │   ├── SpendCapReached        1   a model may cost nothing more for now: the loop waits, or goes on without one
    │   └── ModelsRefused          1   every model refuses its key or its name: again and again, it ends the session
    ├── StoreError                 1   the database cannot be read or written
    │   └── StoreDamaged           1   the database is damaged: `doctor --repair` rebuilds it
    ├── AdapterDamaged             1   files of a version of the local policy are not those that were learned
    ├── PolicyError                1   a policy gave no usable proposal; carries the label it is recorded under
    ├── NothingRunning             1   a session was asked to go on, but it has no daemon
    └── Interrupted                1   somebody asked to stop at once, in the middle of an experiment
"""

from __future__ import annotations

from autoresearchd.domain.labels import Label
from autoresearchd.domain.proposal import Cost


class AutoresearchdError(Exception):
    """Base of all errors raised on purpose.

    Args:
        what: what happened and where, in one sentence.
        fix: how to fix it, in one sentence; empty where there is nothing that a user could do.
    """

    exit_code: int = 1

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.hint}" if self.hint else self.what


class UsageError(AutoresearchdError):
    """What was asked cannot be done as asked."""

    exit_code = 2


class ConfigError(UsageError):
    """A key of task.yaml or a setting is wrong.

    Args:
        what: what is wrong with it.
        file: the file, as the user knows it.
        line: 1-based line of the key, None where the key is missing altogether.
        key: dotted path of the key, e.g. ``execution.budget``.
        fix: what would be right.
    """

    def __init__(
        self, what: str, *, file: str = "task.yaml", line: int | None = None, key: str = "", hint: str = ""
    ) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {what}" if key else f"{where}: {what}", hint=hint)
        self.file, self.line, self.key = file, line, key


class RepositoryError(UsageError):
    """The git repository cannot be used as it is."""


class SchemaTooNew(UsageError):
    """The database was written by a newer version of autoresearchd."""


class BaselineError(AutoresearchdError):
    """Experiment 0 does not run, or gives no usable metric."""

    exit_code = 3


class LimitReached(AutoresearchdError):
    """A spend or time limit was reached before the first result."""

    exit_code = 4


class MissingCapability(AutoresearchdError):
    """This machine lacks something that the command needs."""

    exit_code = 5


class SessionLocked(AutoresearchdError):
    """Another daemon holds the session."""

    exit_code = 75


class EnvironmentFailure(AutoresearchdError):
    """A fault of the surroundings, not of an experiment: the loop waits and tries again."""


class SpendCapReached(EnvironmentFailure):
    """A spend cap is reached: no model is asked before the cap is raised or the day is over.

    Args:
        what: which cap, and what has been spent.
        whole_session: whether it is the session's own cap, which no waiting changes.
    """

    def __init__(self, what: str, *, whole_session: bool, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.whole_session = whole_session


class ModelsRefused(EnvironmentFailure):
    """Every model refuses its key, its account or its name, which no waiting changes."""


class StoreError(AutoresearchdError):
    """The database cannot be read or written."""


class StoreDamaged(StoreError):
    """The database is damaged, or older than what git knows; nothing is written to it before it is repaired."""


class PolicyError(AutoresearchdError):
    """A policy gave no usable proposal.

    Args:
        label: what the experiment is recorded as (``illegal_edit``, ``malformed_answer``, ``no_op``, ``error``).
        cost: what was spent on it; None: nothing that is known.
        charged: whether the cost has been charged already, answer by answer.
    """

    def __init__(
        self,
        what: str,
        *,
        label: Label = Label.ERROR,
        hint: str = "",
        cost: Cost | None = None,
        charged: bool = True,
    ) -> None:
        super().__init__(what, hint=hint)
        self.label = label
        self.cost = cost
        self.charged = charged


class AdapterDamaged(AutoresearchdError):
    """A version of the local policy cannot be used: its files are not those that were learned."""


class NothingRunning(AutoresearchdError):
    """A session was asked to go on, but it has no daemon."""


class Interrupted(AutoresearchdError):
    """Somebody asked to stop at once."""
