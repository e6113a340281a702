"""The session branch: moved as decisions want it, and never where anybody else has moved it."""

from __future__ import annotations

from collections.abc import Collection

from autoresearchd.domain.errors import RepositoryError
from autoresearchd.domain.experiment import Experiment
from autoresearchd.loop.context import Context
from autoresearchd.loop.messages import commit_of, is_baseline, is_keep
from autoresearchd.loop.session_view import SessionView


def move_branch(view: SessionView, e: Experiment) -> None:
    """Carry a decision out on the branch, by compare-and-swap; it may be repeated."""
    workspace, fallen, reverts = view.context.workspace, view.fallen(e), view.context.task.history == "revert"
    # The branch may still be at what lost its place; where reverts are written on it, it goes on from there.
    left = commit_of(fallen[0]) if fallen and not reverts else None
    if is_keep(e):
        before = e.parent if is_baseline(e) else workspace.parent(commit_of(e))
        workspace.advance(before if left is None else left, commit_of(e))
    elif e.commit is not None and reverts:
        workspace.record_discard(
            number=e.number,
            commit=e.commit,
            incumbent=e.parent,
            when=e.finished_at or e.started_at,
            back_to=view.tip_commit if fallen else None,
        )
    elif left is not None:
        workspace.advance(left, view.tip_commit)


def require_branch(context: Context, expected: Collection[str]) -> None:
    """Raise RepositoryError, with the command that puts it right, when the branch is gone or at none of these commits.

    With ``history: revert`` it is at the last revert, which only git knows: that has the files of one of them.
    """
    try:
        tip = context.workspace.tip()
    except RepositoryError as error:
        session = context.store.session(context.tag)
        raise RepositoryError(
            error.what, hint=f"git branch {session.branch} {session.incumbent[:10]}, then `autoresearchd resume`"
        ) from error
    if tip in expected:
        return
    if context.task.history == "revert" and any(not context.workspace.diff(commit, tip) for commit in expected):
        return
    session = context.store.session(context.tag)
    raise RepositoryError(
        f"branch {session.branch} points at {tip[:10]}, but this session left it at {session.incumbent[:10]} "
        f"(experiment {session.incumbent_experiment})",
        hint=f"git branch --force {session.branch} {session.incumbent[:10]}, then `autoresearchd resume`; "
        "to build on your own commit, start a new session from it",
    )
