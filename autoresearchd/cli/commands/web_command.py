"""The command web: the live page on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from autoresearchd.app.project import Project
from autoresearchd.cli.command_options import SessionOption
from autoresearchd.cli.repository_here import Place, here
from autoresearchd.cli.terminal_text import clean, say
from autoresearchd.domain.errors import MissingCapability


def web(
    port: Annotated[int, typer.Option("--port", metavar="P", min=1, max=65535, help="On 127.0.0.1.")] = 8765,
    session: SessionOption = None,
) -> None:
    """Show sessions live in a browser, on 127.0.0.1.

    It reads the store and costs the daemon nothing. The address that it prints has a token: who opens that one may also
    send notes, pause and stop; without it the page only reads. From another machine: ssh -L 8765:127.0.0.1:8765 HOST.
    """
    project = Project.of_session(here())
    try:
        from autoresearchd.web.server import Server
    except ModuleNotFoundError as error:
        hint = "pip install 'autoresearchd[web]'"
        raise MissingCapability(f"the page needs a package that is not here: {error.name}", hint=hint) from error
    path = f"/s/{Place(project).pick(session)}" if session is not None else "/"
    server = Server(project, port)
    say(f"the live page of {clean(project.root)}, until Ctrl-C:")
    print(f"  {server.address(path)}", flush=True)  # not as a message: those are kept free of anything secret
    server.serve_on()
