"""``sessions remove``: take a session away for good, with all that the daemon made for it and nothing else.

Its row goes last, so that a removal that was killed is simply done again.
"""

from __future__ import annotations

from pathlib import Path

from autoresearchd.app.project import Project
from autoresearchd.domain.quantities import counted
from autoresearchd.loop.lock import SessionLock
from autoresearchd.store.reader import Reader
from autoresearchd.store.repository import SqlStore
from autoresearchd.workspace import layout, preflight
from autoresearchd.workspace.files import disk_errors, remove_tree
from autoresearchd.workspace.git import GitWorkspace


def removal(directory: Path, tag: str) -> str:
    """What would go, in words. Raises UsageError where there is no such session."""
    project = Project.of_session(directory)
    with project.existing_store() as store:
        branch = project.pick(store, tag).branch
    with Reader(project.database) as reader:
        told = reader.status(tag, alive=False)["session"]
    tried = counted(int(told["experiments"]), "experiment")
    if not branch:
        return f"session {tag}: {tried}, imported"
    return (
        f"session {tag}: {tried} ({told['keeps']} kept), the branch {branch}, refs/autoresearch/{tag}/ and the folder "
        f"{_runs(project, tag)}"
    )


def remove(directory: Path, tag: str) -> None:
    """Remove a session.

    Raises SessionLocked while a daemon holds it; RepositoryError where its branch is checked out, or holds a commit
    that is none of the session's; then nothing is removed.
    """
    project = Project.of_session(directory)
    with project.existing_store() as store:
        session = project.pick(store, tag)
        with SessionLock(project.lock(tag), tag):
            if session.branch:
                _remove_files(project, store, tag, session.branch)
            store.remove_session(tag)


def _remove_files(project: Project, store: SqlStore, tag: str, branch: str) -> None:
    preflight.check_not_checked_out(project.root, branch, "a branch that is checked out cannot be removed")
    workspace = GitWorkspace.open(project.root, tag, task_folder=project.root, editable=())
    try:
        workspace.forget(store.session(tag).base_commit)
    finally:
        workspace.close()
    with disk_errors(f"removing {_runs(project, tag)}"):
        remove_tree(_runs(project, tag))


def _runs(project: Project, tag: str) -> Path:
    return layout.public_dir(project.root) / "runs" / tag
