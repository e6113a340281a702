"""The command status, for --help and completion; ``python -m autoresearchd status`` itself takes the short way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autoresearchd.cli.options import JsonOption, SessionOption
from autoresearchd.cli.session import here
from autoresearchd.errors import UsageError


def status(
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay and refresh every second until the session stops.")
    ] = False,
    session: SessionOption = None,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="The repository (default: the one here).", show_default=False),
    ] = None,
) -> None:
    """Show how a session stands.

    Baseline, best, what runs now, what was tried last, what it has cost.
    """
    from autoresearchd.cli.status_view import show_status

    if as_json and watch:
        raise UsageError("--json prints one document, --watch goes on printing", mend="use one of them")
    raise typer.Exit(show_status(directory or here(), session, as_json=as_json, watch=watch))
