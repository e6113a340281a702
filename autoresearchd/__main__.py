"""The program: ``autoresearchd …`` and ``python -m autoresearchd …``.

``status`` and ``experiments --json`` are asked for by people who wait and by scripts that poll: their plain forms are
answered without the command line library, whose import costs more than the answer. Everything else, ``--help`` and
completion go the long way.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

_STATUS = {"--json": False, "--watch": False, "--session": True, "--dir": True}
_EXPERIMENTS = {"--json": False, "--status": True, "--last": True, "--session": True}


def main() -> int:
    """Run the command line of this process; the exit code."""
    arguments = sys.argv[1:]
    command = None if "_AUTORESEARCHD_COMPLETE" in os.environ else _plain(arguments)
    if command is not None:
        from autoresearchd.cli.failure import guarded

        return guarded(command)
    from autoresearchd.cli.main import run

    return run(arguments)


def _plain(arguments: Sequence[str]) -> Callable[[], int] | None:
    """What answers a plain ``status`` or ``experiments --json``; None for anything else."""
    name = arguments[0] if arguments else ""
    if name == "status":
        found = _options(arguments[1:], _STATUS)
        if found is not None and not ("--json" in found and "--watch" in found):
            return partial(_status, found)
    if name == "experiments":
        found = _options(arguments[1:], _EXPERIMENTS)
        if found is not None and "--json" in found and _plain_values(found):
            return partial(_experiments, found)
    return None


def _options(arguments: Sequence[str], known: Mapping[str, bool]) -> dict[str, str] | None:
    """Options by name, with their values where they take one; None when there is anything else."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if name not in known or (equals and not known[name]):
            return None
        if known[name] and not equals:
            value = next(rest, "-")
            if value.startswith("-"):
                return None
        found[name] = value
    return found


def _plain_values(found: Mapping[str, str]) -> bool:
    """Whether the values are right beyond doubt; where they are not, the command line library says what is wrong."""
    last = found.get("--last", "1")
    known = found.get("--status", "keep") in ("keep", "discard", "crash", "checks_failed")
    return known and last.isascii() and last.isdigit() and 0 < int(last[:20]) < 1 << 60


def _status(found: Mapping[str, str]) -> int:
    from pathlib import Path

    from autoresearchd.cli.status_view import show_status

    place = Path(found.get("--dir", "."))
    return show_status(place, found.get("--session"), as_json="--json" in found, watch="--watch" in found)


def _experiments(found: Mapping[str, str]) -> int:
    import gc
    from pathlib import Path

    from autoresearchd.cli.place import find_place
    from autoresearchd.cli.render import print_json_list

    gc.disable()  # thousands of small objects that live until the end, which is soon
    place = find_place(Path())
    last = int(found["--last"]) if "--last" in found else None
    print_json_list(place.experiments(place.pick(found.get("--session")), found.get("--status"), last))
    return 0


if __name__ == "__main__":
    sys.exit(main())
