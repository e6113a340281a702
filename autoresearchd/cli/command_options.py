"""Options that several commands share, and the words of their help."""

from __future__ import annotations

from typing import Annotated

import typer

from autoresearchd.domain.errors import UsageError
from autoresearchd.domain.quantities import parse_duration

LARGEST = 2**63 - 1
"""The largest whole number that a database holds."""

SessionOption = Annotated[
    str | None,
    typer.Option(
        "--session",
        "--tag",
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
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def read_duration(option: str, text: str | None) -> float | None:
    """Seconds of a duration that was given for an option; UsageError where it is none."""
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", hint="write 90s, 5m, 8h or 1h30m") from error
