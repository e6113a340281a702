"""The session branch is where this session left it, or nothing is done: nobody else's commit is overwritten."""

from __future__ import annotations

from collections.abc import Collection

from autoresearchd.errors import RepositoryError
from autoresearchd.loop.context import Context


def require_branch(context: Context, expected: Collection[str]) -> None:
    """Raise RepositoryError, with the command that mends it, when the branch is gone or at none of these commits.

    With ``history: revert`` it is at the last revert, which only git knows: that has the files of one of them.
    """
    try:
        tip = context.workspace.tip()
    except RepositoryError as error:
        session = context.store.session(context.tag)
        raise RepositoryError(
            error.what, mend=f"git branch {session.branch} {session.incumbent[:10]}, then `autoresearchd resume`"
        ) from error
    if tip in expected:
        return
    if context.task.history == "revert" and any(not context.workspace.diff(commit, tip) for commit in expected):
        return
    session = context.store.session(context.tag)
    raise RepositoryError(
        f"branch {session.branch} points at {tip[:10]}, but this session left it at {session.incumbent[:10]} "
        f"(experiment {session.incumbent_experiment})",
        mend=f"git branch --force {session.branch} {session.incumbent[:10]}, then `autoresearchd resume`; "
        "to build on your own commit, start a new session from it",
    )
