"""Options that several commands share, and the words of their help."""

from __future__ import annotations

from typing import Annotated

import typer

LARGEST = 2**63 - 1
"""The largest whole number that a database holds."""

SessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="TAG",
        help="Which session, where there are several (default: the running one, else the newest).",
    ),
]
SandboxOption = Annotated[
    str | None,
    typer.Option(
        "--sandbox",
        metavar="TIER",
        help="How runs are isolated: auto (the best that works here), bubblewrap, bubblewrap-noproc, namespaces, "
        "landlock, or none: edited code then runs as you, with your files and the network.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
