"""The program: ``autoresearchd …`` and ``python -m autoresearchd …``.

``status`` is asked for by people who wait and by scripts that poll, so its plain forms are answered without the command
line library, whose import costs more than the answer. Everything else, ``--help`` and completion go the long way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main() -> int:
    """Run the command line of this process; the exit code."""
    arguments = sys.argv[1:]
    plain = None if "_AUTORESEARCHD_COMPLETE" in os.environ else _plain_status(arguments)
    if plain is not None:
        return _status(*plain)
    from autoresearchd.cli.main import run

    return run(arguments)


def _plain_status(arguments: Sequence[str]) -> tuple[bool, bool, str | None] | None:
    """(json, watch, session) of a plain ``status`` command line; None for anything else."""
    if not arguments or arguments[0] != "status":
        return None
    as_json, watch, session = False, False, None
    rest = iter(arguments[1:])
    for argument in rest:
        if argument == "--json":
            as_json = True
        elif argument == "--watch":
            watch = True
        elif argument == "--session":
            session = next(rest, None)
            if session is None or session.startswith("-"):
                return None
        elif argument.startswith("--session="):
            session = argument.partition("=")[2]
        else:
            return None
    return None if as_json and watch else (as_json, watch, session)


def _status(as_json: bool, watch: bool, session: str | None) -> int:
    from autoresearchd.cli.failure import guarded

    def command() -> int:
        from pathlib import Path

        from autoresearchd.cli.status_view import show_status

        return show_status(Path(), session, as_json=as_json, watch=watch)

    return guarded(command)


if __name__ == "__main__":
    sys.exit(main())
