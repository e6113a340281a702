"""Proposals from outside of a session's policy: the program to edit, the queue, and what became of one (ADR 56)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autoresearchd.app.known_secrets import session_redactor
from autoresearchd.app.project import Project
from autoresearchd.config import parse_task
from autoresearchd.domain import errors
from autoresearchd.domain.proposal import Suggestion
from autoresearchd.evaluator.rules.legality import check_edit, check_no_secret
from autoresearchd.loop.context import SystemClock
from autoresearchd.policy.edits.read_answer import read_parts
from autoresearchd.policy.policy_names import OUTSIDE
from autoresearchd.store.reader import Reader
from autoresearchd.workspace.git import open_workspace

MOST_WAITING = 32
_SHOWN = ("status", "label", "metric", "expected_gain", "confirmed", "reason", "commit", "description")


def program(directory: Path, tag: str | None) -> tuple[dict[str, Any], list[int]]:
    """The editable files at a session's tip, and the commit that an edit of them is made on; the ids of its notes.

    notes: of the user, where nobody else proposes; they are given again until ``notes_seen``: an answer may be lost.
    """
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick_own(store, tag)
        task = parse_task(session.task_json)
        with contextlib.closing(open_workspace(project.root, session.tag, task, project.root / session.folder)) as git:
            files = {path: git.read(session.incumbent, path) for path in task.editable}
        notes = store.unseen_notes(session.id) if session.policy == OUTSIDE else ()
    place = {"session": session.tag, "experiment": session.incumbent_experiment, "commit": session.incumbent}
    return {**place, "files": files, "notes": [note.text for note in notes]}, [note.id for note in notes]


def notes_seen(directory: Path, tag: str, notes: Sequence[int]) -> None:
    """An edit was proposed after they had been read."""
    with Project.of_session(directory).existing_store() as store:
        session = store.session(tag)
        latest = store.latest(session.id)
        store.mark_notes_seen(session.id, notes, latest.number + 1 if latest else 0)


def propose(
    directory: Path,
    tag: str | None,
    *,
    edits: Sequence[Mapping[str, Any]],
    files: Mapping[str, str],
    said: Mapping[str, Any],
    proposer: str,
    parent: str | None = None,
) -> tuple[str, int]:
    """Have an edit wait for the session's next experiment; (tag, the number of the proposal).

    parent: the commit that it was written against (None: the tip as it is now). UsageError: it cannot be used, and
    nothing waits; NothingRunning: no daemon would take it.
    """
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick_own(store, tag)
        task, on = parse_task(session.task_json), parent or session.incumbent
        with contextlib.closing(open_workspace(project.root, session.tag, task, project.root / session.folder)) as git:
            try:
                code = {path: git.read(on, path) for path in task.editable}
            except errors.RepositoryError as error:
                if parent is None:
                    raise
                what = f"the parent {on[:10]} is no commit here that has the editable files"
                raise errors.UsageError(what, hint="give the commit that `program` names") from error
        try:
            changed = read_parts(edits, files, code)
            check_edit(task, code, {**code, **changed}, required={})
            check_no_secret(session_redactor(project.root, task.execution.env), code, changed)
        except errors.PolicyError as error:
            raise errors.UsageError(error.what, hint=error.hint) from error
        if project.daemon(session.tag) is None and store.holder(session.tag) is None:
            what, hint = f"no daemon works on session {session.tag}", f"`autoresearchd resume {session.tag}` goes on"
            raise errors.NothingRunning(what, hint=hint)
        if store.waiting_suggestions(session.id) >= MOST_WAITING:
            what = f"{MOST_WAITING} proposals wait for session {session.tag} already"
            raise errors.UsageError(what, hint="wait until some of them are decided")
        made = Suggestion(changed, on, said, proposer)
        return session.tag, store.add_suggestion(session.id, made, SystemClock().now())


def verdict(project: Project, tag: str, number: int) -> dict[str, Any]:
    """What became of a proposal: ``state`` is ``waiting``, ``under_way`` or ``decided``. KeyError: there is none."""
    with Reader(project.journal) as reader:
        experiment = reader.taken_in(tag, number)
        found: dict[str, Any] = {"session": tag, "proposal": number, "experiment": experiment, "state": "waiting"}
        if experiment is None:
            return found
        record = reader.show(tag, experiment)
    found["state"] = "under_way" if record.get("status") is None else "decided"
    return found | {"phase": record.get("phase")} | {name: record.get(name) for name in _SHOWN}
