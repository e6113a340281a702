"""Sessions of other repositories: whether their experiments may be run here, and what is told before any of them is.

What their databases say is a stranger's: the commands of a task run as the user, set-up commands even outside of the
sandbox. They are learned from; nothing of them is run unless the user has said so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.task import Task

NOT_RUN = "it is of another repository, and none of its commands is run (--set run_foreign=true runs them)"
"""Why a foreign session is not judged by experiments, in words."""


class Premises(Protocol):
    """As much of a session as is looked at before anything of it runs.

    scratch: where its runs are made.
    """

    scratch: Path

    @property
    def task(self) -> Task:
        """What its database says is run."""
        ...

    @property
    def folder(self) -> Path:
        """The folder of its task."""
        ...

    @property
    def foreign(self) -> bool:
        """Whether it is of another repository."""
        ...

    @property
    def executor(self) -> str:
        """Where it ran its experiments, as in ``--executor``."""
        ...


class Grounds(Protocol):
    """Sessions that are open, by name."""

    @property
    def names(self) -> Sequence[str]:
        """Of the sessions."""
        ...

    def ground(self, session: str) -> Premises:
        """The session of that name."""
        ...


def refuse(ground: Premises, *, run_foreign: bool) -> None:
    """Raise UsageError where the experiments of a session must not run here."""
    if ground.foreign and not run_foreign:
        raise UsageError(NOT_RUN, hint="take --set judge=predicted")


def told(name: str, ground: Premises) -> Iterator[str]:
    """What will be run for a foreign session and what its jobs get, a line each; nothing of it is shortened."""
    task = ground.task
    execution, evaluation = task.execution, task.evaluation
    yield f"of the other repository {str(ground.folder)!r}, session {name!r}, these commands are run as this user:"
    for command in execution.setup_commands:
        yield f"  set-up, outside of the sandbox and with the network: {command!r}"
    yield f"  each experiment: {execution.run_command!r}"
    if evaluation is not None:
        yield f"  its evaluation: {evaluation.command!r}"
        yield f"  which reads: {evaluation.private!r}"
        if evaluation.model_command:
            yield f"  its model, for the evaluation: {evaluation.model_command!r}"
    for check in task.checks:
        yield f"  a check: {check.command!r}"
    yield f"  executor: {ground.executor!r}; interpreter: {execution.python or 'that of its set-up'!r}"
    yield f"  network: {'yes' if execution.network else 'no'}; environment: {execution.env!r}"
    yield f"  its jobs read: {task.data!r}"
