"""The commands sessions list and sessions remove."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from autoresearchd.cli import render
from autoresearchd.cli.failure import say
from autoresearchd.cli.options import JsonOption
from autoresearchd.cli.render import Paint, clean, json_text
from autoresearchd.cli.session import here
from autoresearchd.errors import UsageError

_HEADERS = ("session", "task", "state", "experiments", "kept", "best", "started")


def _found() -> list[dict[str, Any]]:
    """The sessions of the repository here, as they are shown. Raises NoSession where there is none."""
    from autoresearchd.cli.place import find_place

    place = find_place(here())
    found: list[dict[str, Any]] = []
    for row in place.sessions():
        status = place.status(row.tag)
        session = status["session"]
        found.append(
            {
                "tag": row.tag,
                "task": row.task,
                "state": session["state"],
                "experiments": session["experiments"],
                "keeps": session["keeps"],
                "metric": status["metric"]["name"],
                "best": status["metric"]["best"],
                "started_at": session["started_at"],
            }
        )
    return found


def list_sessions(as_json: JsonOption = False) -> None:
    """List the sessions of the repository here, oldest first."""
    from autoresearchd.cli.place import NoSession

    try:
        found = _found()
    except NoSession as none:
        found = []
        say(str(none))
    if as_json:
        print(json_text(found, indent=2))
        return
    rows = [
        [
            clean(one["tag"], 40), clean(one["task"], 40), str(one["state"]), str(one["experiments"]),
            str(one["keeps"]), "—" if one["best"] is None else f"{one['best']:.6g} {clean(one['metric'], 40)}",
            str(one["started_at"])[:16].replace("T", " "),
        ]
        for one in found
    ]  # fmt: skip
    print("\n".join(render.table(_HEADERS, rows, paint=Paint(sys.stdout))))


def remove(
    tag: Annotated[str, typer.Argument(metavar="TAG", help="The session, as `sessions list` names it.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a session for good.

    Its experiments, the refs and the branch that hold their commits, and its runs' logs go; your own branches and files
    stay, and so does what you wrote into its autoresearch.md. A session whose daemon runs, or whose branch is checked
    out, is not removed.
    """
    from autoresearchd.app.removing import removal
    from autoresearchd.app.removing import remove as remove_session

    words = removal(here(), tag)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("it is not removed without a yes, and nobody can be asked", mend="add --yes")
        if not typer.confirm(f"Remove for good {words}?", default=False, err=True):
            say("nothing was removed")
            return
    remove_session(here(), tag)
    say(f"removed {words}")
