"""The learner and its versions put together for the commands ``learn`` and ``adapters``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoresearchd.app.compose import make_executor
from autoresearchd.app.project import Project
from autoresearchd.config.settings import load_settings
from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.policy_versions import LearnerStatus, VersionStatus
from autoresearchd.learner.learner_process import Tell, hold_learner_lock, stoppable
from autoresearchd.learner.versions.adapter_shelf import AdapterShelf, Pruned
from autoresearchd.loop.context import SystemClock
from autoresearchd.store.repository import SqlStore

if TYPE_CHECKING:
    from autoresearchd.learner.learn import LearnRequest

_KILLED = "its process ended before it did"


@contextlib.contextmanager
def _open_shelf(directory: Path) -> Iterator[tuple[Project, SqlStore, AdapterShelf]]:
    """The versions of a repository; what a dead process has left of one is removed first."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        shelf = AdapterShelf.of(project.root, store)
        shelf.sweep()
        yield project, store, shelf


def learn(request: LearnRequest, directory: Path, tell: Tell) -> Mapping[str, Any]:
    """Learn from the sessions of a repository, and of others; what came of it, as ``--json`` prints it."""
    from autoresearchd.learner.learn import LearnerRun, constants_of

    constants = constants_of(request)
    with (
        _open_shelf(directory) as (project, store, shelf),
        hold_learner_lock(project.locks),
        stoppable(request.mode, tell) as cancel,
    ):
        for run in store.learner_runs():
            if run.status is LearnerStatus.RUNNING:  # nobody else can be at work: the lock is ours
                store.record_learner_run(run.id, LearnerStatus.FAILED, SystemClock().now(), detail=_KILLED)
        _tell_of_daemons(project, store, tell)
        whole = LearnerRun(request, constants, directory, project.root, store, shelf, make_executor, tell, cancel)
        return whole.go()


def _tell_of_daemons(project: Project, store: SqlStore, tell: Tell) -> None:
    """Say of each daemon that is at work in a repository what it does while a learner is."""
    waits = load_settings(os.environ).learn.pause != "never"
    for session in store.sessions():
        if project.daemon(session.tag) in (None, os.getppid()):  # the one that has begun this learner knows
            continue
        does = "is at work and does not wait: its experiments are measured beside this run"
        if waits:
            does = (
                "is at work: where both compute on the same device, its next experiment waits for this run (learn: "
                "{pause: never} in config.yaml lets it go on)"
            )
        tell(f"session {session.tag} {does}")


def promote(directory: Path, name: str) -> str:
    """Put a version to use; the sentence to show. Raises AdapterDamaged: its files are not whole."""
    with _open_shelf(directory) as (_, _, shelf):
        found = shelf.find(name)
        if found.status is VersionStatus.PROMOTED:
            return f"{found.version} is in use already"
        shelf.promote(found.version, "promoted by hand")
        model = shelf.model_of(found)
        return f"{found.version} is in use: the policy local with {model} answers with it from the next experiment on"


def roll_back(directory: Path) -> str:
    """Go back to the version before the one in use; the sentence to show. Raises UsageError where none is in use."""
    with _open_shelf(directory) as (_, store, shelf):
        promoted = store.promoted_versions()
        if not promoted:
            hint = "`autoresearchd adapters list` shows which there are, `autoresearchd adapters promote` uses one"
            raise UsageError("no version is in use: the plain model answers already", hint=hint)
        left = promoted[0].version
        restored = shelf.roll_back(left, "rolled back by hand")
        name = "the plain model" if restored is None else restored.version
        return f"{left} is rolled back: {name} answers from the next experiment on"


def prune(directory: Path, keep: int, *, dry_run: bool = False) -> tuple[Pruned, ...]:
    """Remove the files of versions that nothing needs any more; which, and how many bytes each frees.

    keep: how many of those that were in use are kept for a rollback, for each base model.
    """
    with _open_shelf(directory) as (project, store, shelf), hold_learner_lock(project.locks):
        return tuple(shelf.prune(keep, store.versions_at_work(), dry_run=dry_run))
