"""The command mcp: sessions as tools of a coding agent."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from autoresearchd.cli.repository_here import here
from autoresearchd.domain.errors import MissingCapability, UsageError


def mcp(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="The folder that the tools are about (default: here).")
    ] = None,
) -> None:
    """Serve the sessions here to a coding agent, by the Model Context Protocol on stdin and stdout.

    An agent's program runs it: `claude mcp add autoresearchd -- autoresearchd mcp --dir FOLDER`. Its tools start,
    watch, steer and stop sessions, and propose edits; docs/agents.md has them all.
    """
    folder = (directory or here()).absolute()
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist", hint="correct --dir")
    if find_spec("mcp") is None:
        raise MissingCapability("the MCP server needs the package mcp", hint="pip install 'autoresearchd[mcp]'")
    from autoresearchd.cli.mcp_server import make_server

    make_server(folder).run("stdio")
